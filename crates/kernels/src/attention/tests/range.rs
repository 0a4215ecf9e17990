//! Numbers that a format of pages cannot hold.

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
