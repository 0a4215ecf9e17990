//! Our linear programmes against another solver: HiGHS, by way of SciPy (`scripts/lp_instances.py` writes what it found).

#[path = "instances/mod.rs"]
mod instances;

use policy::cost::{OverLink, Sparse};
use policy::plan::{Question, place, programme};
use serde_json::Value;

#[test]
fn another_solver_finds_the_same() {
    let text = include_str!("instances/highs.json");
    let found: Value = serde_json::from_str(text).expect("JSON");
    let (mut solved, mut infeasible) = (0, 0);
    for (name, question, block) in instances::instances() {
        let ours = programme(&question, block);
        let Some(ours) = ours else {
            assert!(
                found.get(&name).is_none(),
                "{name}: what has no programme was not given to the other solver"
            );
            continue;
        };
        let theirs = found.get(&name).unwrap_or_else(|| panic!("{name}: run scripts/lp_instances.py"));
        let Some(values) = theirs["values"].as_array() else {
            assert!(ours.solve().is_none() && place(&question, block).is_none(), "{name} has no solution");
            infeasible += 1;
            continue;
        };
        let values: Vec<f64> = values.iter().map(|value| value.as_f64().expect("a number")).collect();
        let least = theirs["sum"].as_f64().expect("a number");
        // It was this very programme that was solved.
        assert_eq!(values.len(), ours.weights.len(), "{name}");
        assert!(
            ours.miss(&values) < 1e-6 && (ours.sum(&values) - least).abs() < 1e-6 * least.max(1.0),
            "{name}"
        );
        let own = ours.solve().unwrap_or_else(|| panic!("{name}: the other solver found a solution"));
        assert!(ours.miss(&own) < 1e-6, "{name}: ours misses a row by {}", ours.miss(&own));
        let sum = ours.sum(&own);
        assert!((sum - least).abs() <= 1e-6 * least.max(1e-3), "{name}: ours {sum}, theirs {least}");
        solved += 1;
    }
    assert!(solved >= 60 && infeasible >= 5, "{solved} solved, {infeasible} infeasible");
}

#[test]
fn fewer_values_are_never_slower_and_mostly_faster_where_kv_is_brought() {
    let (mut placed, mut faster) = (0, 0);
    for (name, question, block) in instances::instances() {
        let sparse = Question {
            sparse: Some(Sparse { share: 0.01, queries: 1, link: OverLink::Tokens }),
            ..question.clone()
        };
        let (Some(all), Some(few)) = (place(&question, block), place(&sparse, block)) else { continue };
        assert!(few.seconds <= all.seconds * (1.0 + 1e-6), "{name}: {} against {}", few.seconds, all.seconds);
        placed += 1;
        faster += usize::from(few.seconds < 0.99 * all.seconds);
    }
    assert!(faster > 3, "{faster} of {placed} gain a hundredth");
}
