//! From the best of a few blocks on to what is better beside it. The programme, for which many blocks are alike, cannot say which of
//! them are worth a look; the timeline can, and of blocks that differ little it says much the same.

use super::candidates::candidates;
use super::machine::Rates;
use super::mechanism::Mechanism;
use super::plan::{HOPE, Planned, Wanted, estimated, rate};
use policy::plan::{BlockSize, around};
use std::collections::BTreeSet;

/// Rounds of looking around at the most.
const ROUNDS: usize = 6;
/// Blocks that are looked around in each, the best ones: the best of all may not lie on the way up from the best of a few.
const WIDTH: usize = 3;

/// Adds what is around the best of `scored`, and around what is better there, until nothing is, or after some rounds.
pub(super) fn climb(wanted: &Wanted, rates: Rates, mechanism: Mechanism, scored: &mut Vec<Planned>) {
    let (mut tried, mut left) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..ROUNDS {
        let top = tops(scored);
        let Some(least) = top.first().map(|(_, rate)| *rate) else { return };
        let new: Vec<BlockSize> =
            top.into_iter().map(|(block, _)| block).filter(|block| left.insert(*block)).collect();
        if new.is_empty() {
            return;
        }
        for here in new {
            let near = std::iter::once(here).chain(around(here).filter(|_| wanted.block.is_none()));
            for block in near.filter(|block| tried.insert(*block)) {
                scored.extend(at(wanted, rates, mechanism, block, least));
            }
        }
    }
}

/// The best blocks, each with its best rate.
fn tops(scored: &mut [Planned]) -> Vec<(BlockSize, f64)> {
    scored.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let mut top: Vec<(BlockSize, f64)> = Vec::new();
    for planned in scored {
        let block = planned.placed.block;
        if top.len() < WIDTH && top.iter().all(|(other, _)| *other != block) {
            top.push((block, rate(planned)));
        }
    }
    top
}

/// A block in all ways of which the programme hopes for more than `least` tokens a second.
pub(super) fn at(
    wanted: &Wanted,
    rates: Rates,
    mechanism: Mechanism,
    block: BlockSize,
    least: f64,
) -> Vec<Planned> {
    let generated = f64::from(wanted.lengths.generated);
    let of = |way: Wanted| candidates(&Wanted { block: Some(block), ..way }, rates, mechanism);
    let hopeful = wanted.ways().flat_map(of).filter(|found| wanted.may_be_soon(found));
    let hopeful = hopeful.filter(|found| HOPE * generated * found.rate() > least);
    let scored = estimated(hopeful.collect(), rates, mechanism);
    scored.filter(|planned| wanted.is_soon(&planned.prediction)).collect()
}
