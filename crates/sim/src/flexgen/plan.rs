//! The planner on a machine of the papers: the linear programme chooses, the timeline has the last word.

use super::candidates::{Candidate, candidates, spread, stepwise, worth_a_look};
use super::case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
use super::climb::{at, climb};
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::{Block, Compute, Copies, Expand, Mechanism, Order};
use super::memory::peak;
use super::run::{Prediction, estimate, predict};
use policy::cost::Dims;
use policy::pipeline::DiskPath;
use policy::plan::{Attends, Attention, BlockSize, Habits, Kernels, Placed, Question};
use spec::{ByTier, HardwareSpec, Placement, Split, Tier};

/// Candidates of the programme that are run on the timeline, before what is around the best of them.
const RESCORED: usize = 12;
/// The same for a machine that has a little more of one tier.
const RESCORED_RICHER: usize = 4;
/// Of a tier's memory: of one that a plan fills no further, more is not asked for.
const AMPLE: f64 = 0.75;
/// Of these, how many are run with all their layers.
const FINALISTS: usize = 2;
/// Times the best that was found, what the programme must believe of a candidate to try its steps: it knows no barriers and is
/// ahead of the timeline by a little.
pub(super) const HOPE: f64 = 1.01;
/// Of the latency that the programme believes in, what is surely there.
const TRUSTED: f64 = 0.8;

/// What is to be planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The model.
    pub dims: Dims,
    /// The requests.
    pub lengths: Lengths,
    /// Format of the weights.
    pub weights: Format,
    /// Format of the cache.
    pub cache: Format,
    /// Whether copies may overlap.
    pub overlap: Overlap,
    /// Whether the CPU may attend.
    pub host_attention: HostAttention,
    /// Whether the host's weights are pinned.
    pub pinning: Pinning,
    /// Machines in a pipeline.
    pub devices: u32,
    /// Batch and block, where they are given.
    pub block: Option<BlockSize>,
    /// The longest that a request may take, seconds.
    pub max_latency_s: Option<f64>,
}

/// The best that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The policy.
    pub case: Case,
    /// What it comes to on the timeline.
    pub prediction: Prediction,
    /// What the programme thought of its block.
    pub placed: Placed,
}

/// Plans; nothing where nothing fits (or nothing is fast enough).
pub fn plan(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Option<Planned> {
    match mechanism.order {
        Order::Barriers => best(wanted.ways().filter_map(|way| best_of_all(&way, rates, mechanism))),
        Order::Buffers => best_of_a_few(wanted, rates, mechanism, (RESCORED, None)),
    }
}

/// Tokens a second that one more GiB of each tier would add to a plan: as much as is planned with it, or nothing.
pub fn one_more_gib(planned: &Planned, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> ByTier<f64> {
    const GIB: f64 = (1 << 30) as f64;
    let peak = peak(&planned.case, rates, mechanism);
    let gain = |held: f64, has: f64, grow: fn(&mut Rates)| {
        if held < AMPLE * has {
            return 0.0;
        }
        let mut richer = rates;
        grow(&mut richer);
        let then = match mechanism.order {
            Order::Barriers => plan(wanted, richer, mechanism),
            Order::Buffers => {
                let few = (RESCORED_RICHER, Some(planned.placed.block));
                best_of_a_few(wanted, richer, mechanism, few)
            }
        };
        then.map_or(0.0, |then| (rate(&then) - rate(planned)).max(0.0))
    };
    ByTier {
        device: gain(peak.device, rates.device_bytes, |rates| rates.device_bytes += GIB),
        host: gain(peak.host, rates.host_bytes, |rates| rates.host_bytes += GIB),
        disk: gain(peak.disk, rates.disk_bytes, |rates| rates.disk_bytes += GIB),
    }
}

/// With FlexGen's loop, whose rounds are few and soon run: all candidates, and of those that the programme believes are ahead
/// of the best of them what whole tensors make of each.
fn best_of_all(way: &Wanted, rates: Rates, mechanism: Mechanism) -> Option<Planned> {
    let soon = |candidate: &Candidate| way.may_be_soon(candidate);
    let all: Vec<Candidate> = candidates(way, rates, mechanism).into_iter().filter(soon).collect();
    let run = |list| {
        let scored = estimated(list, rates, mechanism);
        best(scored.filter(|planned| way.is_soon(&planned.prediction)))
    };
    let mut found = run(all.clone());
    for candidate in all {
        let least = found.as_ref().map_or(0.0, rate);
        if f64::from(way.lengths.generated) * candidate.rate() <= HOPE * least {
            break;
        }
        let stepped = run(stepwise(&candidate, way, rates, mechanism));
        found = best(found.into_iter().chain(stepped));
    }
    found
}

/// With ours, whose programs are long: the candidates that the programme thinks best, so many in each way, what is around the best of
/// them and of a block that is named, and the best of those with all layers.
fn best_of_a_few(
    wanted: &Wanted,
    rates: Rates,
    mechanism: Mechanism,
    (few, named): (usize, Option<BlockSize>),
) -> Option<Planned> {
    let best_of_way = |way: Wanted| {
        let soon = candidates(&way, rates, mechanism).into_iter().filter(|found| wanted.may_be_soon(found));
        let scored = estimated(spread(soon.collect(), few), rates, mechanism);
        scored.filter(|planned| wanted.is_soon(&planned.prediction)).take(few).collect::<Vec<_>>()
    };
    let mut scored: Vec<Planned> = wanted.ways().flat_map(best_of_way).collect();
    scored.extend(named.into_iter().flat_map(|block| at(wanted, rates, mechanism, block, 0.0)));
    climb(wanted, rates, mechanism, &mut scored);
    scored.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    scored.dedup_by(|a, b| a.case == b.case);
    let whole = scored.into_iter().map(|planned| {
        let prediction = predict(&planned.case, rates, mechanism);
        Planned { prediction, ..planned }
    });
    best(whole.filter(|planned| wanted.is_soon(&planned.prediction)).take(FINALISTS))
}

/// What is worth having at each latency: from the soonest on, each with more tokens a second than all that are sooner.
pub fn frontier(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Vec<Planned> {
    let candidates: Vec<_> = wanted.ways().flat_map(|way| candidates(&way, rates, mechanism)).collect();
    let candidates = match mechanism.order {
        Order::Barriers => candidates,
        Order::Buffers => worth_a_look(candidates),
    };
    let mut all: Vec<_> = estimated(candidates, rates, mechanism)
        .filter(|planned| wanted.is_soon(&planned.prediction))
        .collect();
    if mechanism.order == Order::Buffers {
        // It ends where the plan is.
        climb(wanted, rates, mechanism, &mut all);
    }
    all.sort_by(|a, b| a.prediction.latency_s().total_cmp(&b.prediction.latency_s()));
    let mut best = 0.0;
    all.retain(|planned| {
        let better = rate(planned) > best;
        best = rate(planned).max(best);
        better
    });
    all
}

/// The least memory of a tier, bytes, with which something fits while the others stay as they are; nothing where no
/// amount of it would do.
pub fn least(wanted: &Wanted, rates: Rates, mechanism: Mechanism, tier: Tier) -> Option<f64> {
    const MOST: f64 = 1e17;
    let block = wanted.block.unwrap_or(BlockSize { batch_size: 1, num_batches: 1 });
    let fits = |bytes: f64| {
        let mut rates = rates;
        *match tier {
            Tier::Device => &mut rates.device_bytes,
            Tier::Host => &mut rates.host_bytes,
            Tier::Disk => &mut rates.disk_bytes,
        } = bytes;
        let wanted = Wanted { block: Some(block), ..*wanted };
        !candidates(&wanted, rates, mechanism).is_empty()
    };
    let (mut little, mut enough) = (0.0, MOST);
    if !fits(enough) {
        return None;
    }
    while enough - little > enough * 1e-3 {
        let middle = if little == 0.0 { enough / 2.0 } else { (little + enough) / 2.0 };
        *(if fits(middle) { &mut enough } else { &mut little }) = middle;
    }
    Some(enough)
}

pub(super) fn rate(planned: &Planned) -> f64 {
    planned.prediction.generated_tokens_per_s
}

/// Of those that are as good, the first.
fn best(all: impl Iterator<Item = Planned>) -> Option<Planned> {
    all.reduce(|best, next| if rate(&next) > rate(&best) { next } else { best })
}

/// Candidates as the timeline has them, by a few of their layers.
pub(super) fn estimated(
    candidates: Vec<Candidate>,
    rates: Rates,
    mechanism: Mechanism,
) -> impl Iterator<Item = Planned> {
    candidates.into_iter().map(move |Candidate { case, placed }| {
        let prediction = estimate(&case, rates, mechanism);
        Planned { case, prediction, placed }
    })
}

impl Wanted {
    pub(super) fn is_soon(&self, prediction: &Prediction) -> bool {
        self.max_latency_s.is_none_or(|most| prediction.latency_s() <= most)
    }

    /// Whether the programme leaves hope that it is.
    pub(super) fn may_be_soon(&self, candidate: &Candidate) -> bool {
        self.max_latency_s.is_none_or(|most| TRUSTED * candidate.latency_s() <= most)
    }

    /// Where the CPU may attend, with and without.
    pub(super) fn ways(&self) -> impl Iterator<Item = Wanted> + use<> {
        let (wanted, ways) = (*self, [HostAttention::On, HostAttention::Off]);
        let may = move |way: &HostAttention| {
            *way == HostAttention::Off || wanted.host_attention == HostAttention::On
        };
        ways.into_iter().filter(may).map(move |host_attention| Wanted { host_attention, ..wanted })
    }

    /// With a block and a placement.
    pub fn case(&self, block: BlockSize, placement: Placement) -> Case {
        Case {
            dims: self.dims,
            lengths: self.lengths,
            policy: Policy {
                batch_size: block.batch_size,
                num_batches: block.num_batches,
                placement,
                weights: self.weights,
                cache: self.cache,
                overlap: self.overlap,
                host_attention: self.host_attention,
                pinning: self.pinning,
            },
            devices: self.devices,
        }
    }
}

/// The machine as the programme sees it, and what overlaps there.
pub(super) fn question(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Question {
    let case = wanted.case(BlockSize { batch_size: 1, num_batches: 1 }, Placement::RESIDENT);
    let on_host = mechanism.attends_on_host(&case.policy);
    Question {
        dims: wanted.dims,
        bytes: case.policy.bytes(),
        prompt: wanted.lengths.prompt,
        generated: wanted.lengths.generated,
        hardware: hardware(rates, mechanism),
        layers: case.layers(),
        stages: wanted.devices,
        weights_on_device: None,
        overlap: match (mechanism.order, mechanism.block) {
            (Order::Barriers, _) => policy::plan::Overlap::Barriers,
            (Order::Buffers, Block::ZigZag) => policy::plan::Overlap::Phases,
            (Order::Buffers, Block::Diagonal) => policy::plan::Overlap::Diagonal,
        },
        attends: if on_host { Attends::Host } else { Attends::Device },
        kernels: match (mechanism.order, mechanism.compute) {
            // What a batch of bounded size works in is among the pools.
            (Order::Buffers, _) => Kernels::Chunked,
            (Order::Barriers, Compute::Eager) => Kernels::Eager,
            (Order::Barriers, Compute::Fused) => Kernels::Fused,
        },
        disk_path: DiskPath::ThroughHost,
        sparse: None,
        habits: habits(wanted, rates, mechanism),
    }
}

/// Rates below the hardware's: pageable copies, and a pass that expands.
fn habits(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Habits {
    let all_on_host = Placement { weights: Split::ON_HOST, ..Placement::RESIDENT };
    let case = wanted.case(BlockSize { batch_size: 1, num_batches: 1 }, all_on_host);
    let prices = Prices::new(&case, rates, mechanism);
    let pageable = mechanism.copies != Copies::Pinned;
    Habits {
        // Less of them on the host might be pinned; the timeline knows.
        weights_up: (!prices.weights_are_pinned()).then(|| prices.pageable_up()),
        kv_up: pageable.then(|| prices.pageable_up()),
        expand: (mechanism.expand == Expand::Pass).then_some(rates.dequantise),
        attention: match mechanism.compute {
            Compute::Eager => Attention::Eager,
            Compute::Fused => Attention::Lean,
        },
    }
}

/// The machine with its rates for these copies and these kernels.
fn hardware(rates: Rates, mechanism: Mechanism) -> HardwareSpec {
    let at_work = Rates {
        host_memory: match mechanism.compute {
            Compute::Eager => rates.host_attention,
            Compute::Fused => rates.host_memory,
        },
        ..rates
    };
    let mut hardware = at_work.hardware("a preset");
    if mechanism.copies != Copies::Pinned {
        hardware.down.bytes_per_s = rates.pageable_down;
    }
    hardware
}
