//! The planner on a machine of the papers: the linear programme chooses, the timeline has the last word.

use super::case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::{Block, Compute, Copies, Expand, Grain, Mechanism, Order};
use super::memory::excess;
use super::placement::elements;
use super::run::{Prediction, predict};
use policy::cost::{Dims, ElementBytes};
use policy::pipeline::DiskPath;
use policy::plan::{Attends, Attention, BlockSize, Habits, Kernels, Placed, Question, place, search};
use spec::{
    ByTier, Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos, Part, Placement, Split,
    Tier,
};

/// Memory that is planned with: the rest is left to fragments and to what no formula counts.
const DERATED: f64 = 0.9;
/// Candidates of the programme that are run on the timeline.
const RESCORED: usize = 12;
/// All on the host.
const ON_HOST: ByTier<u32> = ByTier { device: 0, host: Split::WHOLE, disk: 0 };

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
    /// What the programme thought of it.
    pub placed: Placed,
    /// What it was asked.
    pub question: Question,
}

/// Plans; nothing where nothing fits (or nothing is fast enough).
pub fn plan(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Option<Planned> {
    let soon =
        |planned: &Planned| wanted.max_latency_s.is_none_or(|most| planned.prediction.latency_s() <= most);
    // With a limit the best may be far down the list.
    let keep = if wanted.max_latency_s.is_some() { usize::MAX } else { RESCORED };
    let scored = scored(wanted, rates, mechanism, keep).into_iter().filter(soon);
    scored.max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

/// What is worth having at each latency: from the soonest on, each with more tokens a second than all that are sooner.
pub fn frontier(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Vec<Planned> {
    let mut all = scored(wanted, rates, mechanism, usize::MAX);
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
        place(&question(wanted, rates, mechanism), block).is_some()
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

fn rate(planned: &Planned) -> f64 {
    planned.prediction.generated_tokens_per_s
}

/// The best `keep` that fit, in the programme's order, as the timeline has them; where the CPU may attend, with and
/// without.
fn scored(wanted: &Wanted, rates: Rates, mechanism: Mechanism, keep: usize) -> Vec<Planned> {
    let elsewhere = match wanted.host_attention {
        HostAttention::On => vec![HostAttention::On, HostAttention::Off],
        HostAttention::Off => vec![HostAttention::Off],
    };
    let one = |host_attention| {
        let wanted = Wanted { host_attention, ..*wanted };
        let question = question(&wanted, rates, mechanism);
        let candidates = match wanted.block {
            Some(block) => place(&question, block).into_iter().collect(),
            None => search(&question, usize::MAX),
        };
        let fitting = candidates.into_iter().filter_map(move |placed| {
            let case = fitting(&wanted, &placed, rates, mechanism)?;
            Some((case, placed))
        });
        fitting.take(keep).map(move |(case, placed)| {
            let prediction = predict(&case, rates, mechanism);
            Planned { case, prediction, placed, question: question.clone() }
        })
    };
    elsewhere.into_iter().flat_map(one).collect()
}

/// The case of a placement, its weights pinned if they may be and there is room.
fn fitting(wanted: &Wanted, placed: &Placed, rates: Rates, mechanism: Mechanism) -> Option<Case> {
    let case = case(wanted, placed, mechanism);
    let pinnings: &[Pinning] = match wanted.pinning {
        Pinning::Auto => &[Pinning::Auto, Pinning::Off],
        Pinning::On => &[Pinning::On],
        Pinning::Off => &[Pinning::Off],
    };
    let cases = pinnings.iter().map(|&pinning| Case { policy: Policy { pinning, ..case.policy }, ..case });
    cases.into_iter().find(|case| excess(case, rates, mechanism).is_empty())
}

fn case(wanted: &Wanted, placed: &Placed, mechanism: Mechanism) -> Case {
    let weights = match mechanism.grain {
        Grain::Slices => placed.placement.weights,
        Grain::WholeTensors => reachable(&wanted.dims, placed.placement.weights),
    };
    wanted.case(placed.block, Placement { weights, ..placed.placement })
}

impl Wanted {
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

/// The nearest shares below those of the programme that whole tensors do not overshoot, on the device and on the host.
fn reachable(dims: &Dims, asked: Split) -> Split {
    const PERCENT: u32 = Split::WHOLE / 100;
    let real = |split: Split, tier: Tier| {
        let parts = [Part::Attention(0), Part::Mlp(0)];
        let found = parts.map(|part| elements(dims, part, split, Grain::WholeTensors)[tier]);
        found.iter().sum::<f64>() / dims.layer() * f64::from(Split::WHOLE)
    };
    let split = |device: u32, host: u32| {
        let (device, host) = (device * PERCENT, host * PERCENT);
        Split::new(spec::ByTier { device, host, disk: Split::WHOLE - device - host })
            .expect("the rest is on the drive")
    };
    let fits = |split: Split, tier: Tier| real(split, tier) <= f64::from(asked.part(tier)) + 1.0;
    let device = asked.part(Tier::Device) / PERCENT;
    let away = 100 - device;
    let device =
        (0..=device).rev().find(|&device| fits(split(device, 100 - device), Tier::Device)).unwrap_or(0);
    if asked.part(Tier::Disk) == 0 {
        return split(device, 100 - device);
    }
    let host =
        (0..=asked.part(Tier::Host) / PERCENT).rev().find(|&host| fits(split(device, host), Tier::Host));
    split(device, host.unwrap_or(0).min(away))
}

/// The machine as the programme sees it, and what overlaps there.
fn question(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Question {
    let case = wanted.case(BlockSize { batch_size: 1, num_batches: 1 }, Placement::RESIDENT);
    let on_host = mechanism.attends_on_host(&case.policy);
    Question {
        dims: wanted.dims,
        bytes: ElementBytes { weight: wanted.weights.bytes(), kv: wanted.cache.bytes(), hidden: 2.0 },
        prompt: wanted.lengths.prompt,
        generated: wanted.lengths.generated,
        hardware: hardware(rates, mechanism),
        layers: case.layers(),
        overlap: match (mechanism.order, mechanism.block) {
            (Order::Barriers, _) => policy::plan::Overlap::Barriers,
            (Order::Buffers, Block::ZigZag) => policy::plan::Overlap::Phases,
            (Order::Buffers, Block::Diagonal) => policy::plan::Overlap::Diagonal,
        },
        attends: if on_host { Attends::Host } else { Attends::Device },
        kernels: match mechanism.compute {
            Compute::Eager => Kernels::Eager,
            Compute::Fused => Kernels::Fused,
        },
        disk_path: DiskPath::ThroughHost,
        sparse: None,
        habits: habits(wanted, rates, mechanism),
    }
}

/// Rates below the hardware's: pageable copies, and a pass that expands.
fn habits(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Habits {
    let weights = Split::new(ON_HOST).expect("all of it");
    let all_on_host = Placement { weights, ..Placement::RESIDENT };
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

fn hardware(rates: Rates, mechanism: Mechanism) -> HardwareSpec {
    let link = |bytes_per_s| LinkSpec { bytes_per_s, latency: Nanos::ZERO };
    let derated = |bytes: f64| Bytes((bytes * DERATED) as u64);
    let down = if mechanism.copies == Copies::Pinned { rates.pinned } else { rates.pageable_down };
    let host_attention = match mechanism.compute {
        Compute::Eager => rates.host_attention,
        Compute::Fused => rates.host_memory,
    };
    HardwareSpec {
        name: "a preset".into(),
        devices: 1,
        device: DeviceSpec {
            memory: derated(rates.device_bytes),
            read_bytes_per_s: rates.device_bytes_per_s,
            matmul_flops: rates.gemm_flops,
            attention_flops: rates.gemm_flops,
            launch: Nanos::ZERO,
        },
        host: HostSpec {
            memory: derated(rates.host_bytes),
            attention_bytes_per_s: host_attention,
            matmul_flops: rates.host_attention,
            launch: Nanos::ZERO,
        },
        disk: DiskSpec {
            capacity: derated(rates.disk_bytes),
            read_bytes_per_s: rates.disk_read,
            write_bytes_per_s: rates.disk_write,
            latency: Nanos::ZERO,
        },
        up: link(rates.pinned),
        down: link(down),
        peer: link(rates.pinned),
        step_gap: Nanos::ZERO,
    }
}
