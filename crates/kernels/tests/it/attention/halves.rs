//! Sparse attention in two halves: keys are scored while values are elsewhere.

use super::*;
use kernels::attention::choose;

#[test]
fn shares() {
    for share in [0.1, 0.5, 1.0] {
        check(Case::new(1, 3, 64, &[400, 33]).share(share));
        check(Case::new(2, 1, 80, &[300]).share(share).f16());
        check(Case::new(2, 1, 80, &[300]).share(share).fp8());
        check(Case::new(2, 1, 80, &[300]).share(share).int4());
        check(Case::new(1, 2, 16, &[200]).window(150).share(share).f32());
    }
}

/// The two halves of sparse attention: a row's values come after its keys were scored, and only those pages that it chose.
#[test]
fn values_that_nobody_chose_need_not_be_there() {
    let mut spared = 0;
    for (case, isa) in halves().iter().flat_map(|c| families().map(move |i| (c, i))) {
        for threads in [1, 3] {
            let (mut whole, mut cut) = (World::new(case, 3), World::new(case, 3));
            let team = Team::new(threads);
            let last: Vec<Piece> = case.lengths.iter().enumerate().map(|(s, &n)| (s, n - 1, 1)).collect();
            for world in [&mut whole, &mut cut] {
                for (seq, &n) in case.lengths.iter().enumerate() {
                    world.call(&team, isa, &[(seq, 0, n)]);
                }
            }
            spared += forget(&mut cut, &team, isa);
            [&mut whole, &mut cut].into_iter().for_each(|world| world.call(&team, isa, &last));
            let bits = |world: &World| -> Vec<Vec<u32>> {
                world.results.iter().map(|seq| seq.iter().map(|x| x.to_bits()).collect()).collect()
            };
            assert_eq!(bits(&whole), bits(&cut), "{isa}, {threads} threads, {case:?}");
        }
    }
    assert!(spared > 100, "{spared} pages of values were not needed");
}

fn halves() -> Vec<Case> {
    vec![
        Case::new(2, 1, 64, &[900, 33, 640]).share(0.01),
        Case::new(1, 3, 80, &[700]).share(0.02).int4(),
        Case::new(2, 2, 32, &[600, 1]).window(300).share(0.05).fp8(),
        Case::new(1, 2, 64, &[600, 1]).share(0.05).f16(),
        Case::new(2, 1, 16, &[500]).share(0.01).f32(),
    ]
}

/// Makes senseless what of the values no last row of a sequence chooses, but for the page that the row itself is written to.
/// How many pages of a head that is.
fn forget(world: &mut World, team: &Team, isa: Isa) -> usize {
    let (case, layout, blocks) = (world.case.clone(), world.case.layout(), world.blocks.clone());
    let cols = case.qkv_cols();
    let rows = case.lengths.iter().zip(&world.qkv).flat_map(|(n, qkv)| &qkv[(n - 1) * cols..]);
    let rows: Vec<f32> = rows.copied().collect();
    let seqs = case.lengths.iter().enumerate();
    let span = |(seq, n): (usize, &usize)| Span { blocks: &blocks[seq], start: n - 1, rows: seq..seq + 1 };
    let spans: Vec<Span<'_>> = seqs.map(span).collect();
    let q: Vec<f32> = rows.chunks_exact(cols).flat_map(|row| &row[..case.q_cols()]).copied().collect();
    let narrow: Vec<bf16> = q.iter().map(|x| bf16::from_f32(*x)).collect();
    let rows = match case.dtype {
        KvDtype::F32 => Rows::F32(Mat::new(&q, spans.len(), case.q_cols())),
        _ => Rows::Bf16(Mat::new(&narrow, spans.len(), case.q_cols())),
    };
    let queries = Queries { rows, spans: &spans };
    let cache = Cache { bytes: &world.cache, layout };
    let chosen = choose(team, isa, queries, cache, case.softmax(), &mut Scratch::default());
    let mut forgotten = 0;
    for (seq, span) in spans.iter().enumerate() {
        for (head, page) in
            (0..case.kv_heads).flat_map(|h| (0..span.start / BLOCK_TOKENS).map(move |p| (h, p)))
        {
            if chosen.tokens(seq, head, page) == 0 {
                let values = layout.k_start(span.blocks[page], head) + layout.plane_bytes();
                world.cache[values..][..layout.plane_bytes()].fill(0xff);
                forgotten += 1;
            }
        }
    }
    forgotten
}
