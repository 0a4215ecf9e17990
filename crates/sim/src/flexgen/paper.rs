//! The figures of FlexGen's tables, and the policy behind each.
//!
//! Policies are those of the paper's table 5, of the slides' table 23, and else of the benchmark suite of the released
//! code. Errata: table 5 and the slides differ in the block of OPT-30B (64x2, 48x3) and in "no policy search" (6.93, 7.26),
//! table 2 and they in (c) of OPT-30B (8.38, 8.70); table 4's parts exceed its totals, and its prefill weight (R), 768 s, is eight times one
//! reading of the weights.

use super::case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
use super::mechanism::Mechanism;
use policy::cost::Dims;
use spec::{ByTier, Placement, Split};

/// Where a figure stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Table 2: generation throughput on one device.
    Two,
    /// Table 2, FlexGen (c): 4 bits.
    TwoCompressed,
    /// Table 2, the systems that FlexGen is compared with, as row-by-row at the batches of the released benchmark.
    TwoBaselines,
    /// Comments of the released benchmark: prompts of 256.
    Suite,
    /// Table 3: four devices.
    Three,
    /// Table 4: where the time goes, OPT-175B, without overlap.
    Four,
    /// Table 5: ablations.
    Five,
    /// The slides' table 23: ablations, with other policies.
    Slides,
}

impl Table {
    /// All, in the order in which they are printed.
    pub const ALL: [Table; 8] = [
        Table::Two,
        Table::TwoCompressed,
        Table::TwoBaselines,
        Table::Suite,
        Table::Three,
        Table::Four,
        Table::Five,
        Table::Slides,
    ];

    /// A heading.
    pub fn title(self) -> &'static str {
        match self {
            Table::Two => "Table 2, FlexGen: generated tokens/s",
            Table::TwoCompressed => "Table 2, FlexGen (c): generated tokens/s",
            Table::TwoBaselines => "Table 2, baselines, row by row: generated tokens/s",
            Table::Suite => "Released benchmark, prompts of 256: generated tokens/s",
            Table::Three => "Table 3, 1 and 4 devices: tokens/s",
            Table::Four => "Table 4, OPT-175B without overlap: seconds",
            Table::Five => "Table 5, ablations: generated tokens/s",
            Table::Slides => "Slides, table 23, ablations: generated tokens/s",
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Generated tokens over all time.
    Generation,
    /// Tokens after the first over the time of decoding.
    Decoding,
    /// Seconds of prefill, in all.
    PrefillTotal,
    /// Seconds of prefill, compute.
    PrefillCompute,
    /// Seconds of prefill, weights in.
    PrefillWeights,
    /// Seconds of prefill, KV in.
    PrefillCacheIn,
    /// Seconds of prefill, KV out.
    PrefillCacheOut,
    /// Seconds of decoding, in all.
    DecodeTotal,
    /// Seconds of decoding, compute.
    DecodeCompute,
    /// Seconds of decoding, weights in.
    DecodeWeights,
    /// Seconds of decoding, KV in.
    DecodeCacheIn,
    /// Seconds of decoding, KV out.
    DecodeCacheOut,
}

/// What the paper says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Published {
    /// This.
    Number(f64),
    /// Something that rounds to 0.01.
    Hundredth,
    /// That it did not fit.
    OutOfMemory,
}

/// A figure and how it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Where it stands.
    pub table: Table,
    /// Its row.
    pub row: &'static str,
    /// The model, by its name.
    pub model: &'static str,
    /// Tokens of a prompt; 32 are generated.
    pub prompt: u32,
    /// Sequences of a batch, and batches of a block.
    pub block: (u32, u32),
    /// Percent of weights, KV and activations on device and host, as FlexGen's `--percent`.
    pub percent: [u8; 6],
    /// Formats of weights and cache.
    pub formats: (Format, Format),
    /// Whether copies overlap.
    pub overlap: Overlap,
    /// Whether the CPU attends.
    pub host_attention: HostAttention,
    /// Whether the host's weights are pinned.
    pub pinning: Pinning,
    /// What ran it.
    pub mechanism: Mechanism,
    /// Machines in a pipeline.
    pub devices: u32,
    /// What is compared.
    pub metric: Metric,
    /// With what.
    pub published: Published,
}

impl Cell {
    /// As it is simulated.
    pub fn case(&self) -> Case {
        let [wg, wc, cg, cc, hg, hc] = self.percent;
        Case {
            dims: Dims::named(self.model).expect("tables name models that are known"),
            lengths: Lengths { prompt: self.prompt, generated: 32 },
            policy: Policy {
                batch_size: self.block.0,
                num_batches: self.block.1,
                placement: Placement { weights: split(wg, wc), kv: split(cg, cc), hidden: split(hg, hc) },
                weights: self.formats.0,
                cache: self.formats.1,
                overlap: self.overlap,
                host_attention: self.host_attention,
                pinning: self.pinning,
            },
            devices: self.devices,
        }
    }
}

/// Shares in percent on device and host; the rest is on the drive.
fn split(device: u8, host: u8) -> Split {
    let part = |percent: u8| u32::from(percent) * (Split::WHOLE / 100);
    let parts = ByTier { device: part(device), host: part(host), disk: part(100 - device - host) };
    Split::new(parts).expect("percentages of the tables add up")
}

type Row = (&'static str, &'static str, u32, (u32, u32), [u8; 6], Published);

const fn cell(table: Table, (row, model, prompt, block, percent, published): Row) -> Cell {
    Cell {
        table,
        row,
        model,
        prompt,
        block,
        percent,
        formats: (Format::Half, Format::Half),
        overlap: Overlap::On,
        host_attention: HostAttention::On,
        pinning: Pinning::Auto,
        mechanism: Mechanism::FLEXGEN,
        devices: 1,
        metric: Metric::Generation,
        published,
    }
}

const fn kv4(cell: Cell) -> Cell {
    Cell { formats: (Format::Half, Format::Int4), ..cell }
}

const fn all4(cell: Cell) -> Cell {
    Cell { formats: (Format::Int4, Format::Int4), ..cell }
}

const fn serial(cell: Cell) -> Cell {
    Cell { overlap: Overlap::Off, ..cell }
}

/// Hooks bring a module's weights when it is its turn: nothing overlaps. Accelerate's are in pageable memory.
const fn accelerate(cell: Cell) -> Cell {
    Cell { pinning: Pinning::Off, mechanism: Mechanism::HOOKS, ..serial(cell) }
}

/// The same with pinned weights, as the released benchmark starts it; it looks ahead by one matrix, which is next to nothing.
const fn deepspeed(cell: Cell) -> Cell {
    Cell { pinning: Pinning::On, mechanism: Mechanism::HOOKS, ..serial(cell) }
}

const fn streamed(cell: Cell) -> Cell {
    Cell { host_attention: HostAttention::Off, ..cell }
}

const fn decoding(cell: Cell) -> Cell {
    Cell { metric: Metric::Decoding, ..cell }
}

const fn four(cell: Cell) -> Cell {
    Cell { devices: 4, ..cell }
}

const fn part(metric: Metric, published: Published) -> Cell {
    let row = ("", B175, 512, (32, 8), DISK, published);
    Cell { metric, overlap: Overlap::Off, ..cell(Table::Four, row) }
}

use Published::{Hundredth, Number, OutOfMemory};
use Table::{Five, Slides, Suite, Three, Two, TwoBaselines, TwoCompressed};

const B6: &str = "opt-6.7b";
const B30: &str = "opt-30b";
const B175: &str = "opt-175b";
const DEVICE: [u8; 6] = [100, 0, 100, 0, 100, 0];
const HOST: [u8; 6] = [0, 100, 0, 100, 0, 100];
const TWENTY: [u8; 6] = [20, 80, 0, 100, 0, 100];
const DISK: [u8; 6] = [0, 50, 0, 0, 0, 100];
const WEIGHTS_ON_HOST: [u8; 6] = [0, 100, 100, 0, 100, 0];
const WEIGHTS_ON_DISK: [u8; 6] = [0, 0, 100, 0, 100, 0];
const ALL: &str = "All optimizations";

/// Every figure.
pub const CELLS: [Cell; 73] = [
    cell(Two, ("FlexGen", B6, 512, (2, 1), DEVICE, Number(25.26))),
    cell(Two, ("FlexGen", B30, 512, (48, 3), TWENTY, Number(7.32))),
    cell(Two, ("FlexGen", B175, 512, (32, 8), DISK, Number(0.69))),
    cell(Two, ("FlexGen", B6, 1024, (1, 1), DEVICE, Number(13.72))),
    cell(Two, ("FlexGen", B30, 1024, (20, 4), [4, 96, 0, 100, 0, 100], Number(3.50))),
    cell(Two, ("FlexGen", B175, 1024, (12, 12), DISK, Number(0.35))),
    all4(cell(TwoCompressed, ("FlexGen (c)", B6, 512, (72, 1), DEVICE, Number(29.12)))),
    kv4(cell(TwoCompressed, ("FlexGen (c)", B30, 512, (64, 8), HOST, Number(8.38)))),
    all4(cell(TwoCompressed, ("FlexGen (c)", B175, 512, (48, 3), HOST, Number(1.12)))),
    all4(cell(TwoCompressed, ("FlexGen (c)", B6, 1024, (28, 1), DEVICE, Number(13.18)))),
    kv4(cell(TwoCompressed, ("FlexGen (c)", B30, 1024, (20, 12), HOST, Number(3.98)))),
    all4(cell(TwoCompressed, ("FlexGen (c)", B175, 1024, (12, 4), HOST, Number(0.42)))),
    accelerate(cell(TwoBaselines, ("Accelerate", B6, 512, (2, 1), DEVICE, Number(25.12)))),
    accelerate(cell(TwoBaselines, ("Accelerate", B30, 512, (8, 1), WEIGHTS_ON_HOST, Number(0.62)))),
    accelerate(cell(TwoBaselines, ("Accelerate", B175, 512, (2, 1), WEIGHTS_ON_DISK, Hundredth))),
    accelerate(cell(TwoBaselines, ("Accelerate", B6, 1024, (1, 1), DEVICE, Number(13.01)))),
    accelerate(cell(TwoBaselines, ("Accelerate", B30, 1024, (4, 1), WEIGHTS_ON_HOST, Number(0.31)))),
    accelerate(cell(TwoBaselines, ("Accelerate", B175, 1024, (1, 1), WEIGHTS_ON_DISK, Hundredth))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B6, 512, (16, 1), WEIGHTS_ON_HOST, Number(9.28)))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B30, 512, (4, 1), WEIGHTS_ON_HOST, Number(0.60)))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B175, 512, (1, 1), WEIGHTS_ON_DISK, Hundredth))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B6, 1024, (8, 1), WEIGHTS_ON_HOST, Number(4.59)))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B30, 1024, (2, 1), WEIGHTS_ON_HOST, Number(0.29)))),
    deepspeed(cell(TwoBaselines, ("DeepSpeed", B175, 1024, (1, 1), WEIGHTS_ON_DISK, OutOfMemory))),
    cell(Suite, ("FlexGen", B6, 256, (4, 1), DEVICE, Number(53.29))),
    cell(Suite, ("FlexGen", B30, 256, (160, 2), [10, 90, 0, 100, 0, 100], Number(16.01))),
    cell(Suite, ("FlexGen", B175, 256, (64, 8), DISK, Number(1.36))),
    all4(cell(Suite, ("FlexGen (c)", B6, 256, (128, 1), DEVICE, Number(56.72)))),
    kv4(cell(Suite, ("FlexGen (c)", B30, 256, (128, 8), HOST, Number(16.86)))),
    all4(cell(Suite, ("FlexGen (c)", B175, 256, (96, 3), HOST, Number(2.26)))),
    decoding(cell(Three, ("FlexGen 1, decoding", B6, 512, (2, 1), DEVICE, Number(38.28)))),
    decoding(cell(Three, ("FlexGen 1, decoding", B30, 512, (48, 3), TWENTY, Number(11.52)))),
    decoding(cell(Three, ("FlexGen 1, decoding", B175, 512, (32, 8), DISK, Number(0.83)))),
    four(cell(Three, ("FlexGen 4", B6, 512, (24, 1), DEVICE, Number(201.12)))),
    four(cell(Three, ("FlexGen 4", B30, 512, (64, 3), TWENTY, Number(23.61)))),
    four(cell(Three, ("FlexGen 4", B175, 512, (40, 1), HOST, Number(2.33)))),
    four(decoding(cell(Three, ("FlexGen 4, decoding", B6, 512, (24, 1), DEVICE, Number(764.65))))),
    four(decoding(cell(Three, ("FlexGen 4, decoding", B30, 512, (64, 3), TWENTY, Number(48.94))))),
    four(decoding(cell(Three, ("FlexGen 4, decoding", B175, 512, (40, 1), HOST, Number(3.86))))),
    part(Metric::PrefillTotal, Number(2711.0)),
    part(Metric::PrefillCompute, Number(2220.0)),
    part(Metric::PrefillWeights, Number(768.0)),
    part(Metric::PrefillCacheIn, Number(0.0)),
    part(Metric::PrefillCacheOut, Number(261.0)),
    part(Metric::DecodeTotal, Number(11315.0)),
    part(Metric::DecodeCompute, Number(1498.0)),
    part(Metric::DecodeWeights, Number(3047.0)),
    part(Metric::DecodeCacheIn, Number(7046.0)),
    part(Metric::DecodeCacheOut, Number(124.0)),
    cell(Five, (ALL, B30, 512, (64, 2), TWENTY, Number(7.32))),
    cell(Five, ("No policy search", B30, 512, (64, 2), HOST, Number(6.93))),
    cell(Five, (ALL, B175, 512, (32, 8), DISK, Number(0.69))),
    cell(Five, ("No policy search", B175, 512, (32, 1), DISK, Number(0.27))),
    serial(cell(Five, ("No overlapping", B30, 512, (64, 2), TWENTY, Number(5.86)))),
    serial(cell(Five, ("No overlapping", B175, 512, (32, 8), DISK, Number(0.59)))),
    streamed(cell(Five, ("No CPU compute", B30, 512, (64, 2), TWENTY, Number(4.03)))),
    streamed(cell(Five, ("No CPU compute", B175, 512, (32, 8), DISK, Number(0.62)))),
    cell(Five, ("No disk", B30, 512, (64, 2), TWENTY, Number(7.32))),
    cell(Five, ("No disk", B175, 512, (32, 8), HOST, OutOfMemory)),
    cell(Five, ("w/ DeepSpeed policy", B30, 512, (8, 1), WEIGHTS_ON_HOST, Number(1.57))),
    cell(Five, ("w/ DeepSpeed policy", B175, 512, (2, 1), WEIGHTS_ON_DISK, Hundredth)),
    cell(Slides, (ALL, B30, 512, (48, 3), TWENTY, Number(7.32))),
    cell(Slides, ("No policy search", B30, 512, (48, 3), HOST, Number(7.26))),
    serial(cell(Slides, ("No overlapping", B30, 512, (48, 3), TWENTY, Number(5.86)))),
    streamed(cell(Slides, ("No CPU compute", B30, 512, (48, 3), TWENTY, Number(4.03)))),
    cell(Slides, ("No disk", B30, 512, (48, 3), TWENTY, Number(7.32))),
    cell(Slides, ("w/ DeepSpeed policy", B30, 512, (8, 1), WEIGHTS_ON_HOST, Number(1.57))),
    cell(Slides, (ALL, B175, 512, (32, 8), DISK, Number(0.69))),
    cell(Slides, ("No policy search", B175, 512, (32, 1), DISK, Number(0.27))),
    serial(cell(Slides, ("No overlapping", B175, 512, (32, 8), DISK, Number(0.59)))),
    streamed(cell(Slides, ("No CPU compute", B175, 512, (32, 8), DISK, Number(0.62)))),
    cell(Slides, ("No disk", B175, 512, (32, 8), HOST, OutOfMemory)),
    cell(Slides, ("w/ DeepSpeed policy", B175, 512, (2, 1), WEIGHTS_ON_DISK, Hundredth)),
];

/// A row of the paper that is not simulated: it says how another system did, and not by which policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quoted {
    /// Where it stands.
    pub table: Table,
    /// Its row.
    pub row: &'static str,
    /// The model, by its name.
    pub model: &'static str,
    /// Tokens of a prompt.
    pub prompt: u32,
    /// As it is printed; a dash where the paper has one.
    pub published: &'static str,
}

const fn quoted(
    table: Table,
    row: &'static str,
    model: &'static str,
    prompt: u32,
    published: &'static str,
) -> Quoted {
    Quoted { table, row, model, prompt, published }
}

/// Rows with nothing beside them.
pub const QUOTED: [Quoted; 12] = [
    quoted(TwoBaselines, "Petals, a device of 14", B6, 512, "-"),
    quoted(TwoBaselines, "Petals, a device of 14", B30, 512, "-"),
    quoted(TwoBaselines, "Petals, a device of 14", B175, 512, "0.05"),
    quoted(TwoBaselines, "Petals, a device of 14", B6, 1024, "-"),
    quoted(TwoBaselines, "Petals, a device of 14", B30, 1024, "-"),
    quoted(TwoBaselines, "Petals, a device of 14", B175, 1024, "0.05"),
    quoted(Three, "DeepSpeed 4", B6, 512, "50.00"),
    quoted(Three, "DeepSpeed 4", B30, 512, "6.40"),
    quoted(Three, "DeepSpeed 4", B175, 512, "0.05"),
    quoted(Three, "DeepSpeed 4, decoding", B6, 512, "50.20"),
    quoted(Three, "DeepSpeed 4, decoding", B30, 512, "6.40"),
    quoted(Three, "DeepSpeed 4, decoding", B175, 512, "0.05"),
];

impl super::Prediction {
    /// The figure that stands beside the paper's.
    pub fn metric(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Generation => self.generated_tokens_per_s,
            Metric::Decoding => self.decode_tokens_per_s,
            Metric::PrefillTotal => self.prefill.total,
            Metric::PrefillCompute => self.prefill.compute,
            Metric::PrefillWeights => self.prefill.weights,
            Metric::PrefillCacheIn => self.prefill.cache_in,
            Metric::PrefillCacheOut => self.prefill.cache_out,
            Metric::DecodeTotal => self.decode.total,
            Metric::DecodeCompute => self.decode.compute,
            Metric::DecodeWeights => self.decode.weights,
            Metric::DecodeCacheIn => self.decode.cache_in,
            Metric::DecodeCacheOut => self.decode.cache_out,
        }
    }
}
