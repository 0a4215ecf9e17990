//! The planner on a machine of the papers: the linear programme chooses, the timeline has the last word.

use super::case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
use super::machine::Rates;
use super::mechanism::{Block, Compute, Copies, Grain, Mechanism, Order};
use super::placement::elements;
use super::run::{Prediction, predict};
use policy::cost::{Dims, ElementBytes};
use policy::pipeline::DiskPath;
use policy::plan::{Attends, BlockSize, Kernels, Placed, Question, place, search};
use spec::{
    Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos, Part, Placement, Split, Tier,
};

/// Memory that is planned with: the rest is left to fragments and to what no formula counts.
const DERATED: f64 = 0.9;
/// Candidates of the programme that are run on the timeline.
const RESCORED: usize = 12;

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
    let question = question(wanted, rates, mechanism);
    let candidates = match (wanted.block, wanted.max_latency_s) {
        (Some(block), _) => place(&question, block).into_iter().collect(),
        // With a limit the best may be far down the list.
        (None, Some(_)) => search(&question, usize::MAX),
        (None, None) => search(&question, RESCORED),
    };
    let scored = candidates.into_iter().map(|placed| {
        let case = case(wanted, &placed, mechanism);
        (predict(&case, rates, mechanism), case, placed)
    });
    let soon =
        |prediction: &Prediction| wanted.max_latency_s.is_none_or(|most| prediction.latency_s() <= most);
    let best = scored
        .filter(|(prediction, ..)| soon(prediction))
        .max_by(|(a, ..), (b, ..)| a.generated_tokens_per_s.total_cmp(&b.generated_tokens_per_s));
    best.map(|(prediction, case, placed)| Planned { case, prediction, placed, question })
}

fn case(wanted: &Wanted, placed: &Placed, mechanism: Mechanism) -> Case {
    let BlockSize { batch_size, num_batches } = placed.block;
    let weights = match mechanism.grain {
        Grain::Slices => placed.placement.weights,
        Grain::WholeTensors => reachable(&wanted.dims, placed.placement.weights),
    };
    Case {
        dims: wanted.dims,
        lengths: wanted.lengths,
        policy: Policy {
            batch_size,
            num_batches,
            placement: Placement { weights, ..placed.placement },
            weights: wanted.weights,
            cache: wanted.cache,
            overlap: wanted.overlap,
            host_attention: wanted.host_attention,
            pinning: Pinning::Auto,
        },
        devices: wanted.devices,
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
    let case = Case {
        dims: wanted.dims,
        lengths: wanted.lengths,
        policy: Policy {
            batch_size: 1,
            num_batches: 1,
            placement: Placement::RESIDENT,
            weights: wanted.weights,
            cache: wanted.cache,
            overlap: wanted.overlap,
            host_attention: wanted.host_attention,
            pinning: Pinning::Auto,
        },
        devices: wanted.devices,
    };
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
