//! Numbers that a format of pages cannot hold, and what is no number.

use super::*;

/// Keys and values beyond the range of f16 count as its largest number: nothing becomes infinite, or no number.
#[test]
fn numbers_beyond_halves_count_as_the_largest() {
    let case = Case::new(2, 2, 64, &[150]).f16();
    for isa in families() {
        let [mut beyond, mut largest] = [1e6, 65504.0].map(|size| {
            let mut world = World::new(&case, 19);
            // A key, and values with either sign.
            let at = |position: usize, column: usize| position * case.qkv_cols() + column * case.head_dim;
            world.qkv[0][at(3, 4)] = size;
            world.qkv[0][at(5, 6)] = size;
            world.qkv[0][at(6, 7) + 1] = -size;
            world
        });
        for world in [&mut beyond, &mut largest] {
            world.call(&Team::new(2), isa, &[(0, 0, 150)]);
        }
        // Means are rounded, too.
        assert!(beyond.results[0].iter().all(|x| x.abs() < 65505.0), "{isa}");
        assert!(beyond.results[0].iter().any(|x| x.abs() > 100.0), "{isa}: large values weigh");
        check_same(&case, isa, &largest.results, beyond, "beyond the range");
    }
}

/// A key that is no number makes none of who sees it, and leaves alone who does not.
#[test]
fn a_key_that_is_no_number_is_not_passed_over() {
    let (position, n) = (40, 150);
    for case in [Case::new(1, 3, 64, &[n]), Case::new(2, 2, 128, &[n]).f16(), Case::new(1, 2, 32, &[n]).f32()]
    {
        for isa in families() {
            let mut world = World::new(&case, 23);
            let key = position * case.qkv_cols() + case.q_cols();
            world.qkv[0][key..][..case.kv_heads * case.head_dim].fill(f32::NAN);
            let team = Team::new(2);
            world.call(&team, isa, &[(0, 0, n - 1)]);
            world.call(&team, isa, &[(0, n - 1, 1)]);
            for (at, row) in world.results[0].chunks(case.q_cols()).enumerate() {
                let as_it_should = if at < position { f32::is_finite } else { f32::is_nan };
                assert!(row.iter().all(|x| as_it_should(*x)), "{isa} {case:?}: position {at}");
            }
        }
    }
}
