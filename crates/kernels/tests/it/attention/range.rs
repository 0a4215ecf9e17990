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

/// A key or value that is no number makes none of who sees it, and leaves alone who does not.
#[test]
fn what_is_no_number_is_seen_by_those_who_see_it_alone() {
    let (position, n) = (40, 150);
    let cases = [
        Case::new(1, 3, 64, &[n]),
        Case::new(2, 2, 128, &[n]).f16(),
        Case::new(1, 2, 32, &[n]).f32(),
        Case::new(1, 3, 64, &[n]).fp8(),
        Case::new(1, 3, 64, &[n]).int4(),
        Case::new(1, 3, 64, &[n]).window(50),
        Case::new(1, 3, 64, &[n]).share(1.0),
    ];
    for (case, of_values) in cases.iter().flat_map(|case| [(case, false), (case, true)]) {
        for isa in families() {
            let mut world = World::new(case, 23);
            let heads = case.kv_heads * case.head_dim;
            let at = position * case.qkv_cols() + case.q_cols() + usize::from(of_values) * heads;
            world.qkv[0][at..][..heads].fill(f32::NAN);
            let team = Team::new(2);
            world.call(&team, isa, &[(0, 0, n - 1)]);
            world.call(&team, isa, &[(0, n - 1, 1)]);
            for (at, row) in world.results[0].chunks(case.q_cols()).enumerate() {
                let sees = (position..position + case.window.unwrap_or(n)).contains(&at);
                let as_it_should = if sees { f32::is_nan } else { f32::is_finite };
                let what = if of_values { "value" } else { "key" };
                assert!(row.iter().all(|x| as_it_should(*x)), "{isa} {case:?}: {what}, position {at}");
            }
        }
    }
}

/// Nor does what a row comes to that sees such a number depend on the rows beside it.
#[test]
fn who_sees_what_is_infinite_comes_to_the_same_in_any_company() {
    let (position, n) = (40, 150);
    for case in
        [Case::new(1, 3, 64, &[n]), Case::new(2, 2, 128, &[n]).int4(), Case::new(1, 2, 80, &[n]).f32()]
    {
        for isa in families() {
            let spans: [&[_]; 2] = [&[(0, 0, n)], &[(0, 0, n - 1), (0, n - 1, 1)]];
            let last = spans.map(|spans| {
                let mut world = World::new(&case, 29);
                let value = case.q_cols() + case.kv_heads * case.head_dim;
                world.qkv[0][position * case.qkv_cols() + value + 3] = f32::INFINITY;
                for span in spans {
                    world.call(&Team::new(2), isa, &[*span]);
                }
                let row = &world.results[0][(n - 1) * case.q_cols()..];
                assert!(
                    row.iter().any(|x| x.is_finite()) && !row.iter().all(|x| x.is_finite()),
                    "{isa} {case:?}"
                );
                row.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            });
            assert_eq!(last[0], last[1], "{isa} {case:?}");
        }
    }
}
