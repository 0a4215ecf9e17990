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
use super::sums::{Kind, LANES, Lanes, SHARES, Sum, add, serial};
use crate::cost::{Dims, ElementBytes, Sparse};
use crate::pipeline::DiskPath;
use spec::{ByTier, Bytes, HardwareSpec, Lane, Part, Placement, Split, Tier};

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
    /// Devices of a pipeline (section 4.4); as many blocks are under way, and each device holds its part of all of them.
    pub stages: u32,
    /// The share of the weights that the device is to hold, where it is given.
    pub weights_on_device: Option<f64>,
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

impl Question {
    /// Whether the device is the processor, whose memory counts as the device's: the host has none beside it.
    fn is_one_memory(&self) -> bool {
        self.disk_path == DiskPath::Direct && self.hardware.host.memory == Bytes::ZERO
    }
}

/// A batch and a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize {
    /// Sequences of a batch.
    pub batch_size: u32,
    /// Batches of a block.
    pub num_batches: u32,
}

impl BlockSize {
    /// Sequences of all its batches.
    pub fn sequences(self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.num_batches)
    }
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
    let shares = solve(question, &stretches, &memory)?;
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

    fn stages(&self) -> f64 {
        f64::from(self.question.stages)
    }

    /// Times that a phase occurs for each block. Prompts of as many blocks as there are stages take `2 * stages - 1` turns
    /// of a stage, since the pipeline fills and empties; after them it is always full.
    fn times(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Prefill => (2.0 * self.stages() - 1.0) / self.stages(),
            Phase::Decode => self.steps(),
        }
    }

    fn rows(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Prefill => self.batch * f64::from(self.question.prompt),
            Phase::Decode => self.batch,
        }
    }

    /// Whether FlexGen's loop has one batch to go through.
    fn is_alone(&self) -> bool {
        self.question.overlap == Overlap::Barriers && self.batches <= 1.0
    }

    /// Rows of a batch whose activations move with their shares: those of a batch alone stay on the device.
    fn moved(&self, rows: f64) -> f64 {
        if self.is_alone() { 0.0 } else { rows }
    }

    /// Times that activations come and go in half a layer: FlexGen's loop moves them with every one, ours once a layer (A.3).
    fn moves(&self, half: Half) -> f64 {
        match (self.question.overlap, half) {
            (Overlap::Barriers, _) | (_, Half::Attention) => 1.0,
            (_, Half::Mlp) => 0.0,
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
        let hidden = self.moves(half) * self.moved(rows) * dims.hidden as f64 * self.question.bytes.hidden;
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
            Overlap::Phases => [Phase::Prefill, Phase::Decode]
                .map(|phase| Stretch { times: self.times(phase), lanes: self.layer(phase).to_vec() })
                .into(),
            Overlap::Barriers => [Phase::Prefill, Phase::Decode]
                .into_iter()
                .flat_map(|phase| [Half::Attention, Half::Mlp].map(|half| self.rounds(phase, half)))
                .flatten()
                .collect(),
        }
    }

    /// Algorithm 1's rounds of one half: the first brings the next half's weights.
    fn rounds(&self, phase: Phase, half: Half) -> [Stretch; 2] {
        let (batch, times) = (self.round(phase, half), self.times(phase));
        let first = add(batch, self.load(half.next()), 1.0);
        [
            Stretch { times, lanes: serial(first) },
            Stretch { times: times * (self.batches - 1.0), lanes: serial(batch) },
        ]
    }

    /// What one batch computes, and what is copied beside it: the next batch's, which of a batch alone is its own in the
    /// other half.
    fn round(&self, phase: Phase, half: Half) -> Lanes {
        let ([device, host, ..], after) = (self.batch(phase, half), self.batch(phase, half.next()));
        let [_, _, up, down, read, write] = if self.is_alone() { after } else { self.batch(phase, half) };
        [device, host, up, down, read, write]
    }

    /// The head of all batches and tokens; one device of a pipeline has it, for which all others wait.
    fn head(&self) -> f64 {
        let rows = match self.question.kernels {
            Kernels::Eager => self.rows(Phase::Prefill),
            Kernels::Fused | Kernels::Chunked => self.batch,
        };
        // A pass never expands the head: it is not compressed where there are passes.
        let bytes = self.question.read(self.question.bytes.weight);
        let linear = |rows| self.question.linear(rows, self.question.dims.head(), bytes);
        let block = self.times(Phase::Prefill) * linear(rows) + self.steps() * linear(self.batch);
        self.batches * block
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
        let held = self.batch * self.batches * self.stages();
        let home = |tier| {
            let hidden = s * dims.hidden as f64 * bytes.hidden * held;
            Sum::default()
                .with(Kind::Weights, tier, weights * layers)
                .with(Kind::Kv, tier, longest * self.kv() * held * layers)
                .with(Kind::Hidden, tier, hidden)
        };
        let slots = 2.0 * self.batch * (s + n) * self.kv();
        let passing = match self.question.overlap {
            // Each half of a layer has one, which is filled while the other half computes.
            Overlap::Barriers => 1.0,
            Overlap::Phases | Overlap::Diagonal => 2.0,
        };
        let mut device = home(Tier::Device).away(Kind::Weights, passing * weights);
        device = device.away(Kind::Hidden, 2.0 * self.batch * s * dims.hidden as f64 * bytes.hidden);
        device.constant += self.working();
        if self.question.attends == Attends::Device {
            device = device.away(Kind::Kv, slots);
        }
        let staged = match self.question.disk_path {
            DiskPath::Direct => 0.0,
            DiskPath::ThroughHost => 2.0 * weights,
        };
        let mut host = home(Tier::Host).with(Kind::Weights, Tier::Disk, staged);
        // The drive's KV is attended from slots on the host, or passes through them.
        let slots_at = if self.question.is_one_memory() { &mut device } else { &mut host };
        *slots_at = slots_at.with(Kind::Kv, Tier::Disk, slots);
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

/// What each tier may hold, bytes.
pub fn room(question: &Question) -> [f64; 3] {
    let hardware = &question.hardware;
    [hardware.device.memory.0, hardware.host.memory.0, hardware.disk.capacity.0].map(|bytes| bytes as f64)
}

/// The programme of a block: least time under the tiers' capacities; nothing where what is always on a tier has no room
/// there. Rows are scaled, so that the solver sees numbers of one size. Variables are the nine shares, then the times.
pub fn programme(question: &Question, block: BlockSize) -> Option<Programme> {
    let model = Model { question, batch: f64::from(block.batch_size), batches: f64::from(block.num_batches) };
    rows(question, &model.stretches(), &model.memory())
}

fn rows(question: &Question, stretches: &[Stretch], memory: &[Sum; 3]) -> Option<Programme> {
    let unit = stretches.iter().flat_map(|s| s.lanes.iter().map(Sum::largest)).fold(1e-12, f64::max);
    let mut programme = Programme::default();
    for share in 0..SHARES {
        // Of equal plans, the one that leans on the faster tier.
        programme.variable([0.0, 1e-6, 2e-6][share % 3], Some(1.0));
    }
    for kind in 0..3 {
        programme.row((0..3).map(|tier| (3 * kind + tier, 1.0)).collect(), Compare::Equals, 1.0);
    }
    if let Some(share) = question.weights_on_device {
        programme.row(vec![(Kind::Weights as usize, 1.0)], Compare::Equals, share);
    }
    for stretch in stretches.iter().filter(|stretch| stretch.times > 0.0) {
        let time = programme.variable(stretch.times, None);
        for lane in stretch.lanes.iter().filter(|lane| lane.largest() > 0.0) {
            let row = terms(lane, unit).chain([(time, -1.0)]).collect();
            programme.row(row, Compare::AtMost, -lane.constant / unit);
        }
    }
    for (tier, room) in memory.iter().zip(room(question)) {
        let left = 1.0 - tier.constant / room.max(1.0);
        if left < 0.0 {
            return None;
        }
        programme.row(terms(tier, room.max(1.0)).collect(), Compare::AtMost, left);
    }
    Some(programme)
}

fn solve(question: &Question, stretches: &[Stretch], memory: &[Sum; 3]) -> Option<[f64; SHARES]> {
    let values = rows(question, stretches, memory)?.solve()?;
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
