//! Scores that come no further from zero than a cap.

use super::*;

/// So low that most scores come close to it.
const CAP: f32 = 1.5;

#[test]
fn scores_are_capped() {
    for case in [Case::new(2, 2, 64, &[300, 33]), Case::new(1, 1, 256, &[40]).window(9)] {
        let uncapped = World::whole(&case, Isa::Scalar, 1);
        assert_ne!(World::whole(&case.clone().cap(CAP), Isa::Scalar, 1), uncapped, "{case:?}");
        for case in [case.clone(), case.clone().f16(), case.clone().fp8(), case.clone().int4(), case.f32()] {
            check(case.cap(CAP));
        }
    }
    // Many queries to a block, and few.
    check(Case::new(1, 20, 80, &[140]).window(50).cap(CAP));
    check(Case::new(1, 1, 128, &[SPLIT_TOKENS + 77]).cap(CAP));
}

/// By a cap so low that most of them become one number, of which the first would be chosen.
#[test]
fn a_share_of_capped_scores_is_chosen_by_what_they_were() {
    for case in [Case::new(1, 3, 64, &[400, 33]), Case::new(2, 1, 80, &[300]).window(150)] {
        for case in [case.clone(), case.clone().f16(), case.clone().fp8(), case.clone().int4(), case.f32()] {
            check(case.share(0.1).cap(0.01));
        }
    }
}
