//! The linear programme of FlexGen's policy search (section 4.3, appendix A.3), for a given batch and block.
//!
//! Nine shares (weights, KV and activations on device, host and drive) and the times that they lead to. Times are the
//! longest lane of a stretch of work, memory is that of each tier. Corrected against the printed formulas:
//!
//! - 4.3 writes `gd` where weights on the drive are meant;
//! - compute reads its weights from device memory, once a batch (A.3 has no such term);
//! - copies up carry the KV that the device attends and does not hold, copies down the new KV (`ctog^g`, `gtoc^g`);
//! - working memory of prefill attention is not multiplied by `cg`: it always runs on the device;
//! - `gpu_w^g` has an `s` too many, and only weights on the drive are staged on the host (`cpu_w^p`);
//! - the head and its logits take time and memory.

use super::habits::Habits;
use super::programme::{Compare, Programme};
use crate::cost::{Dims, ElementBytes, Sparse};
use crate::pipeline::DiskPath;
use spec::{ByTier, HardwareSpec, Lane, Part, Placement, Split, Tier};

/// How work is ordered, which says what overlaps with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// A barrier after each (layer, batch): the next layer's weights come beside one batch only.
    Barriers,
    /// All of a phase, prefill or decodes, overlaps.
    Phases,
    /// Prompts enter one after the other: prefill overlaps with decodes too, and KV is reserved for the average length.
    Diagonal,
}

/// Where KV off the device is attended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attends {
    /// On the host.
    Host,
    /// On the device.
    Device,
}

/// How attention and head are computed, for their working memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Scores and logits of all positions in memory.
    Eager,
    /// Scores on chip, logits of the last position.
    Fused,
    /// As fused, and prompts go through in pieces of bounded size, whose memory the capacities leave out already.
    Chunked,
}

/// What is asked of the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The model.
    pub dims: Dims,
    /// In which numbers.
    pub bytes: ElementBytes,
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens generated for it.
    pub generated: u32,
    /// Rates and capacities; capacities are what may be planned with.
    pub hardware: HardwareSpec,
    /// Layers of this device: all, but for a pipeline.
    pub layers: u64,
    /// What overlaps.
    pub overlap: Overlap,
    /// Where KV off the device is attended.
    pub attends: Attends,
    /// How attention and head are computed.
    pub kernels: Kernels,
    /// How what is on the drive comes to the device.
    pub disk_path: DiskPath,
    /// Whether a share of the keys alone counts: then decodes are brought fewer values.
    pub sparse: Option<Sparse>,
    /// What the runtime does slower than the hardware could.
    pub habits: Habits,
}

/// A batch and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Sequences of a batch.
    pub batch_size: u32,
    /// Batches of a block.
    pub num_batches: u32,
}

/// The best placement for a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// For which block.
    pub block: BlockSize,
    /// What lives where.
    pub placement: Placement,
    /// Time of a whole block, all layers, prompts and tokens, as the programme sees it; the head's included.
    pub seconds: f64,
    /// Bytes that each tier holds at the most.
    pub peak: ByTier<f64>,
    /// Busy time of each lane over a block, seconds.
    pub lanes: Vec<(Lane, f64)>,
}

/// Shares, in the order weights, KV, activations, each on device, host, drive.
const SHARES: usize = 9;

/// A linear expression of the shares.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    shares: [f64; SHARES],
    constant: f64,
}

#[derive(Clone, Copy)]
enum Kind {
    Weights = 0,
    Kv = 3,
    Hidden = 6,
}

impl Sum {
    fn constant(constant: f64) -> Sum {
        Sum { constant, ..Sum::default() }
    }

    fn with(mut self, kind: Kind, tier: Tier, times: f64) -> Sum {
        self.shares[kind as usize + tier as usize] += times;
        self
    }

    /// Of what is not on the device.
    fn away(self, kind: Kind, times: f64) -> Sum {
        self.with(kind, Tier::Host, times).with(kind, Tier::Disk, times)
    }

    fn plus(mut self, other: Sum, times: f64) -> Sum {
        self.shares.iter_mut().zip(other.shares).for_each(|(mine, theirs)| *mine += times * theirs);
        self.constant += times * other.constant;
        self
    }

    fn at(&self, shares: &[f64; SHARES]) -> f64 {
        self.constant + self.shares.iter().zip(shares).map(|(a, b)| a * b).sum::<f64>()
    }

    fn largest(&self) -> f64 {
        self.shares.iter().fold(self.constant.abs(), |most, share| most.max(share.abs()))
    }
}

/// Time on each lane.
type Lanes = [Sum; 6];
const LANES: [Lane; 6] = [Lane::Device, Lane::Host, Lane::Up, Lane::Down, Lane::DiskRead, Lane::DiskWrite];

/// A stretch of work, how often it occurs in a block, and what its time must cover.
struct Stretch {
    times: f64,
    lanes: Vec<Sum>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Prefill,
    Decode,
}

#[derive(Clone, Copy)]
enum Half {
    Attention,
    Mlp,
}

impl Half {
    fn part(self) -> Part {
        match self {
            Half::Attention => Part::Attention(0),
            Half::Mlp => Part::Mlp(0),
        }
    }

    fn next(self) -> Half {
        match self {
            Half::Attention => Half::Mlp,
            Half::Mlp => Half::Attention,
        }
    }
}

/// Solves for one block; nothing where it does not fit.
pub fn place(question: &Question, block: BlockSize) -> Option<Placed> {
    let model = Model { question, batch: f64::from(block.batch_size), batches: f64::from(block.num_batches) };
    let (stretches, memory) = (model.stretches(), model.memory());
    let shares = solve(&stretches, &memory, &room(question))?;
    let longest = |stretch: &Stretch| stretch.lanes.iter().map(|lane| lane.at(&shares)).fold(0.0, f64::max);
    let layer: f64 = stretches.iter().map(|stretch| stretch.times * longest(stretch)).sum();
    let lanes = LANES
        .into_iter()
        .zip(model.busy())
        .map(|(lane, sum)| (lane, sum.at(&shares) * question.layers as f64));
    let peak =
        ByTier { device: memory[0].at(&shares), host: memory[1].at(&shares), disk: memory[2].at(&shares) };
    Some(Placed {
        block,
        placement: placement(&shares),
        seconds: layer * question.layers as f64 + model.head(),
        peak,
        lanes: lanes.collect(),
    })
}

struct Model<'a> {
    question: &'a Question,
    batch: f64,
    batches: f64,
}

impl Model<'_> {
    fn steps(&self) -> f64 {
        f64::from(self.question.generated) - 1.0
    }

    fn rows(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Prefill => self.batch * f64::from(self.question.prompt),
            Phase::Decode => self.batch,
        }
    }

    /// Bytes of a layer's KV of one position.
    fn kv(&self) -> f64 {
        self.question.dims.kv() * self.question.bytes.kv
    }

    fn linear(&self, rows: f64, elements: f64) -> f64 {
        self.question.linear(rows, elements, self.question.bytes.weight)
    }

    /// All lanes of one batch in half a layer, weights apart.
    fn batch(&self, phase: Phase, half: Half) -> Lanes {
        let Question { dims, hardware, prompt, generated, .. } = self.question;
        let rows = self.rows(phase);
        let hidden = rows * dims.hidden as f64 * self.question.bytes.hidden;
        let mut device = Sum::constant(self.linear(rows, dims.part(half.part())));
        let mut host = Sum::default();
        let mut up = Sum::default().away(Kind::Hidden, hidden / hardware.up.bytes_per_s);
        let mut down = Sum::default().away(Kind::Hidden, hidden / hardware.down.bytes_per_s);
        let mut read = Sum::default().with(Kind::Hidden, Tier::Disk, hidden / hardware.disk.read_bytes_per_s);
        let mut write =
            Sum::default().with(Kind::Hidden, Tier::Disk, hidden / hardware.disk.write_bytes_per_s);
        if let Half::Attention = half {
            let new = rows * self.kv();
            down = down.away(Kind::Kv, new / hardware.down.bytes_per_s);
            write = write.with(Kind::Kv, Tier::Disk, new / hardware.disk.write_bytes_per_s);
            let s = f64::from(*prompt);
            if phase == Phase::Prefill {
                device.constant += self.question.prompt_attention(self.batch * s * (s + 1.0) / 2.0);
            } else {
                let positions = s + f64::from(*generated) / 2.0;
                let elements = self.batch * positions * dims.kv();
                let context = |hop| {
                    let brought = self.question.sparse.map_or(1.0, |sparse| sparse.brought(positions, hop));
                    elements * self.question.bytes.kv * brought
                };
                let (off_drive, up_link) =
                    (context((Tier::Disk, Tier::Host)), context((Tier::Host, Tier::Device)));
                let on_device = self.question.device_attention(elements);
                device = device.with(Kind::Kv, Tier::Device, on_device);
                read = read.with(Kind::Kv, Tier::Disk, off_drive / hardware.disk.read_bytes_per_s);
                match self.question.attends {
                    Attends::Host => {
                        host = host.away(Kind::Kv, self.question.host_attention(elements));
                    }
                    Attends::Device => {
                        device = device.away(Kind::Kv, on_device);
                        up = up.with(Kind::Kv, Tier::Host, up_link / self.question.kv_up());
                        up = up.with(Kind::Kv, Tier::Disk, up_link / hardware.up.bytes_per_s);
                    }
                }
            }
        }
        [device, host, up, down, read, write]
    }

    /// Half a layer's weights on their way to the device.
    fn load(&self, half: Half) -> Lanes {
        let (hardware, bytes) =
            (&self.question.hardware, self.question.dims.part(half.part()) * self.question.bytes.weight);
        let mut lanes = Lanes::default();
        lanes[2] = Sum::default().with(Kind::Weights, Tier::Host, bytes / self.question.weights_up());
        if self.question.disk_path == DiskPath::ThroughHost {
            lanes[2] = lanes[2].with(Kind::Weights, Tier::Disk, bytes / hardware.up.bytes_per_s);
        }
        lanes[4] = Sum::default().with(Kind::Weights, Tier::Disk, bytes / hardware.disk.read_bytes_per_s);
        lanes
    }

    /// All lanes of a layer of the whole block.
    fn layer(&self, phase: Phase) -> Lanes {
        let halves = [Half::Attention, Half::Mlp];
        halves.into_iter().fold(Lanes::default(), |sum, half| {
            add(add(sum, self.batch(phase, half), self.batches), self.load(half), 1.0)
        })
    }

    fn busy(&self) -> Lanes {
        add(self.layer(Phase::Prefill), self.layer(Phase::Decode), self.steps())
    }

    fn stretches(&self) -> Vec<Stretch> {
        match self.question.overlap {
            Overlap::Diagonal => vec![Stretch { times: 1.0, lanes: self.busy().to_vec() }],
            Overlap::Phases => [(Phase::Prefill, 1.0), (Phase::Decode, self.steps())]
                .map(|(phase, times)| Stretch { times, lanes: self.layer(phase).to_vec() })
                .into(),
            Overlap::Barriers => [(Phase::Prefill, 1.0), (Phase::Decode, self.steps())]
                .into_iter()
                .flat_map(|(phase, times)| {
                    [Half::Attention, Half::Mlp].map(|half| self.rounds(phase, half, times))
                })
                .flatten()
                .collect(),
        }
    }

    /// Algorithm 1's rounds of one half: the first brings the next half's weights.
    fn rounds(&self, phase: Phase, half: Half, times: f64) -> [Stretch; 2] {
        let batch = self.batch(phase, half);
        let first = add(batch, self.load(half.next()), 1.0);
        [
            Stretch { times, lanes: serial(first) },
            Stretch { times: times * (self.batches - 1.0), lanes: serial(batch) },
        ]
    }

    /// The head of all batches and tokens.
    fn head(&self) -> f64 {
        let rows = match self.question.kernels {
            Kernels::Eager => self.rows(Phase::Prefill),
            Kernels::Fused | Kernels::Chunked => self.batch,
        };
        // A pass never expands the head: it is not compressed where there are passes.
        let bytes = self.question.read(self.question.bytes.weight);
        let linear = |rows| self.question.linear(rows, self.question.dims.head(), bytes);
        self.batches * (linear(rows) + self.steps() * linear(self.batch))
    }

    /// Bytes on device, host and drive.
    fn memory(&self) -> [Sum; 3] {
        let Question { dims, bytes, prompt, generated, .. } = self.question;
        let (s, n) = (f64::from(*prompt), f64::from(*generated));
        let layers = self.question.layers as f64;
        let weights = dims.layer() * bytes.weight;
        let longest = match self.question.overlap {
            // Appendix A.2.1: sequences at all depths share the hold.
            Overlap::Diagonal => (2.0 * s + n) * (n - 1.0) / (2.0 * n) + s / n,
            _ => s + n,
        };
        let block = self.batch * self.batches;
        let home = |tier| {
            let hidden = s * dims.hidden as f64 * bytes.hidden * block;
            Sum::default()
                .with(Kind::Weights, tier, weights * layers)
                .with(Kind::Kv, tier, longest * self.kv() * block * layers)
                .with(Kind::Hidden, tier, hidden)
        };
        let slots = 2.0 * self.batch * (s + n) * self.kv();
        let mut device = home(Tier::Device).away(Kind::Weights, 2.0 * weights);
        device = device.away(Kind::Hidden, 2.0 * self.batch * s * dims.hidden as f64 * bytes.hidden);
        device.constant += self.working();
        if self.question.attends == Attends::Device {
            device = device.away(Kind::Kv, slots);
        }
        let staged = match self.question.disk_path {
            DiskPath::Direct => 0.0,
            DiskPath::ThroughHost => 2.0 * weights,
        };
        let host = home(Tier::Host).with(Kind::Weights, Tier::Disk, staged).with(Kind::Kv, Tier::Disk, slots);
        [device, host, home(Tier::Disk)]
    }

    /// What the largest piece of a batch's prefill needs beside its input, and the head's weights.
    fn working(&self) -> f64 {
        let Question { dims, bytes, prompt, .. } = self.question;
        if self.question.kernels == Kernels::Chunked {
            return 0.0;
        }
        let s = f64::from(*prompt);
        let rows = self.batch * s;
        let inner = rows * (dims.hidden + dims.ffn) as f64 * bytes.hidden;
        let projected = rows * 4.0 * dims.hidden as f64 * bytes.hidden;
        let (scores, logits) = match self.question.kernels {
            Kernels::Eager => (self.batch * dims.heads as f64 * s * s * 2.0, rows * dims.vocab as f64 * 2.0),
            Kernels::Fused | Kernels::Chunked => (0.0, self.batch * dims.vocab as f64 * 4.0),
        };
        dims.head() * 2.0 + inner.max(projected + scores).max(logits)
    }
}

/// Compute on device and host follow each other; copies run beside them.
fn serial(lanes: Lanes) -> Vec<Sum> {
    let mut lanes = lanes;
    lanes[0] = lanes[0].plus(lanes[1], 1.0);
    lanes.to_vec()
}

fn add(mut lanes: Lanes, other: Lanes, times: f64) -> Lanes {
    lanes.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = mine.plus(theirs, times));
    lanes
}

/// What each tier may hold, bytes.
pub fn room(question: &Question) -> [f64; 3] {
    let hardware = &question.hardware;
    [hardware.device.memory.0, hardware.host.memory.0, hardware.disk.capacity.0].map(|bytes| bytes as f64)
}

/// The programme of a block: least time under the tiers' capacities; nothing where what is always on a tier has no room
/// there. Rows are scaled, so that the solver sees numbers of one size. Variables are the nine shares, then the times.
pub fn programme(question: &Question, block: BlockSize) -> Option<Programme> {
    let model = Model { question, batch: f64::from(block.batch_size), batches: f64::from(block.num_batches) };
    rows(&model.stretches(), &model.memory(), &room(question))
}

fn rows(stretches: &[Stretch], memory: &[Sum; 3], room: &[f64; 3]) -> Option<Programme> {
    let unit = stretches.iter().flat_map(|s| s.lanes.iter().map(Sum::largest)).fold(1e-12, f64::max);
    let mut programme = Programme::default();
    for share in 0..SHARES {
        // Of equal plans, the one that leans on the faster tier.
        programme.variable([0.0, 1e-6, 2e-6][share % 3], Some(1.0));
    }
    for kind in 0..3 {
        programme.row((0..3).map(|tier| (3 * kind + tier, 1.0)).collect(), Compare::Equals, 1.0);
    }
    for stretch in stretches.iter().filter(|stretch| stretch.times > 0.0) {
        let time = programme.variable(stretch.times, None);
        for lane in stretch.lanes.iter().filter(|lane| lane.largest() > 0.0) {
            let row = terms(lane, unit).chain([(time, -1.0)]).collect();
            programme.row(row, Compare::AtMost, -lane.constant / unit);
        }
    }
    for (tier, &room) in memory.iter().zip(room) {
        let left = 1.0 - tier.constant / room.max(1.0);
        if left < 0.0 {
            return None;
        }
        programme.row(terms(tier, room.max(1.0)).collect(), Compare::AtMost, left);
    }
    Some(programme)
}

fn solve(stretches: &[Stretch], memory: &[Sum; 3], room: &[f64; 3]) -> Option<[f64; SHARES]> {
    let values = rows(stretches, memory, room)?.solve()?;
    Some(std::array::from_fn(|share| values[share].clamp(0.0, 1.0)))
}

fn terms(sum: &Sum, unit: f64) -> impl Iterator<Item = (usize, f64)> {
    let terms = sum.shares.into_iter().enumerate().map(move |(share, times)| (share, times / unit));
    terms.filter(|(_, times)| *times > 0.0)
}

fn placement(shares: &[f64; SHARES]) -> Placement {
    let split = |kind: Kind| {
        let part =
            |tier: Tier| (shares[kind as usize + tier as usize] * f64::from(Split::WHOLE)).round() as u32;
        let device = part(Tier::Device).min(Split::WHOLE);
        let host = part(Tier::Host).min(Split::WHOLE - device);
        Split::new(ByTier { device, host, disk: Split::WHOLE - device - host })
            .expect("the rest is on the drive")
    };
    Placement { weights: split(Kind::Weights), kv: split(Kind::Kv), hidden: split(Kind::Hidden) }
}
