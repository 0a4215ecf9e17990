//! The kernels' text, and the variants in which it is compiled.

use std::fmt;

use kernels::attention::{KvDtype, KvLayout};
use kernels::device::Needs;
use kernels::linear::Format;
use kernels::linear::quant::Narrow;

use crate::Architecture;

const PRELUDE: &str = include_str!("../kernels/prelude.cu");
const WGMMA: &str = include_str!("../kernels/wgmma.cu");
const ROWS: &str = include_str!("../kernels/rows.cu");
const WEIGHTS: &str = include_str!("../kernels/weights.cu");
const LINEAR: &str = include_str!("../kernels/linear.cu");
const SAMPLE: &str = include_str!("../kernels/sample.cu");
const ATTENTION_ARGS: &str = include_str!("../kernels/attention_args.cu");
const ATTENTION_ROWS: &str = include_str!("../kernels/attention_rows.cu");
const ATTENTION_BF16: &str = include_str!("../kernels/attention_bf16.cu");
const ATTENTION_OF_BF16: &str = include_str!("../kernels/attention_of_bf16.cu");
const ATTENTION_F16: &str = include_str!("../kernels/attention_f16.cu");
const ATTENTION_FP8: &str = include_str!("../kernels/attention_fp8.cu");
const ATTENTION_PLAIN: &str = include_str!("../kernels/attention_plain.cu");
const ATTENTION_INT4: &str = include_str!("../kernels/attention_int4.cu");
const ATTENTION_PAGES: &str = include_str!("../kernels/attention_pages.cu");
const ATTENTION: &str = include_str!("../kernels/attention.cu");
const ATTENTION_FEW: &str = include_str!("../kernels/attention_few.cu");
const ATTENTION_STEPS: &str = include_str!("../kernels/attention_steps.cu");
const ATTENTION_TURNS: &str = include_str!("../kernels/attention_turns.cu");
const ATTENTION_WARPGROUPS: &str = include_str!("../kernels/attention_warpgroups.cu");
const ATTENTION_FLOATS_ROW: &str = include_str!("../kernels/attention_floats_row.cu");
const ATTENTION_FLOATS: &str = include_str!("../kernels/attention_floats.cu");
const SPARSE_CHOOSE: &str = include_str!("../kernels/sparse_choose.cu");
const SPARSE_ROWS: &str = include_str!("../kernels/sparse_rows.cu");
const SPARSE_FLOATS: &str = include_str!("../kernels/sparse_floats.cu");
const SPARSE: &str = include_str!("../kernels/sparse.cu");

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Norms, gathers, conversions, the way into KV pages.
    Rows,
    /// Tokens from logits.
    Sample,
    /// Linears and embeddings of one format of weights.
    Linear(Format),
    /// Attention over pages of one kind, or of f32 alone.
    Attention(Heads),
    /// Attention of many rows over pages of 16 bits, by products of warpgroups: [`Prefill::Warpgroups`].
    Warpgroups {
        /// What pages hold.
        pages: KvDtype,
        /// Elements of a head.
        head_dim: usize,
        /// [`Prefill::Turns`].
        turns: bool,
    },
    /// Attention to a share of the keys.
    Sparse(Heads),
}

/// What an attention's kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// What pages hold.
    pub pages: KvDtype,
    /// Elements of a head.
    pub head_dim: usize,
    /// Whether scores are capped. Those of products of warpgroups are not.
    pub capped: bool,
}

impl Heads {
    /// Those of most models.
    pub fn plain(pages: KvDtype, head_dim: usize) -> Heads {
        Heads { pages, head_dim, capped: false }
    }
}

/// Which kernel attends of many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// One by products of warps.
    #[default]
    Warps,
    /// Where there is one, that by products of warpgroups: of [`Architecture::WARPGROUPS`] alone.
    Warpgroups,
    /// Of all these the fastest that finds, in a trial, what that by products of warps finds.
    Tried,
    /// By products of warpgroups that take turns.
    Turns,
}

impl fmt::Display for Prefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prefill::Warps => "mma",
            Prefill::Warpgroups => "wgmma",
            Prefill::Tried => "the fastest that agrees with mma",
            Prefill::Turns => "wgmma by turns",
        })
    }
}

impl Prefill {
    /// The modules that may have it, instead of that of all attention over such pages: the first that passes has.
    pub(crate) fn modules(self, Heads { pages, head_dim, capped }: Heads) -> impl Iterator<Item = Module> {
        let has = matches!(pages, KvDtype::Bf16 | KvDtype::F16) && matches!(head_dim, 64 | 128) && !capped;
        let turns: &[bool] = match self {
            Prefill::Warps => &[],
            Prefill::Warpgroups => &[false],
            Prefill::Turns => &[true],
            Prefill::Tried => &[true, false],
        };
        let turns = turns.iter().filter(move |_| has);
        turns.map(move |turns| Module::Warpgroups { pages, head_dim, turns: *turns })
    }
}

impl Module {
    /// Every module that the conformance table asks for, and the head sizes of common models, on a device with this kernel.
    pub fn all(prefill: Prefill) -> Vec<Module> {
        let formats = [Format::F32, Format::Bf16].into_iter().chain(Narrow::ALL.map(Format::Narrow));
        let dims = [16, 64, 80, 96, 128, 256];
        let mut all = vec![Module::Rows, Module::Sample];
        all.extend(formats.map(Module::Linear));
        for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int4, KvDtype::F32] {
            let plain = dims.map(|head_dim| Heads::plain(dtype, head_dim)).into_iter();
            let capped = Heads { capped: true, ..Heads::plain(dtype, CAPPED) };
            for heads in plain.chain([capped]) {
                all.extend([Module::Attention(heads), Module::Sparse(heads)]);
                all.extend(prefill.modules(heads));
            }
        }
        all
    }

    /// Those that a model needs, on a device with this kernel.
    pub fn needed(needs: &Needs, prefill: Prefill) -> Vec<Module> {
        let KvLayout { dtype: pages, head_dim, .. } = needs.kv;
        let heads = Heads { pages, head_dim, capped: needs.capped };
        let attention = match needs.sparse {
            Some(_) => Module::Sparse(heads),
            None => Module::Attention(heads),
        };
        let mut needed = vec![Module::Rows, Module::Sample, attention];
        needed.extend(prefill.modules(heads).filter(|_| needs.sparse.is_none()));
        needed.extend(needs.formats.iter().copied().map(Module::Linear));
        needed
    }

    /// The names of its kernels.
    pub fn kernels(self) -> &'static [&'static str] {
        match self {
            Module::Rows => &[
                "norm_rows",
                "pick_rows",
                "cap_rows",
                "convert_rows",
                "store_kv",
                "copy_quads",
                "carry_pieces",
            ],
            Module::Sample => &["pick_tokens"],
            Module::Linear(Format::F32) => &["linear_floats", "embed_rows"],
            Module::Linear(_) => &[
                "linear_few_8",
                "linear_few_32",
                "linear_few_64",
                "linear_many",
                "unpack_panels",
                "finish_sums",
                "embed_rows",
            ],
            Module::Attention(Heads { pages: KvDtype::F32, .. }) => &["attend_floats"],
            Module::Attention(_) => &["attend_many", "attend_few", "merge_splits"],
            Module::Warpgroups { .. } => &["attend_many"],
            Module::Sparse(_) => &["attend_chosen", "choose_keys"],
        }
    }

    /// Bytes of shared memory that each block of a kernel is given at its launch, on a device of this architecture; kernels that
    /// are given none have what they need.
    pub fn block_bytes(self, kernel: &str, architecture: Architecture) -> usize {
        let (pages, head_dim) = match self {
            Module::Attention(Heads { pages, head_dim, .. }) if pages != KvDtype::F32 => (pages, head_dim),
            Module::Warpgroups { head_dim, turns, .. } => return warpgroup_bytes(head_dim, turns),
            _ => return 0,
        };
        match kernel {
            "attend_many" => many_bytes(pages, head_dim, architecture),
            "attend_few" => few_bytes(pages, head_dim, architecture),
            _ => 0,
        }
    }

    /// Its text, prelude included.
    pub fn source(self) -> String {
        let text: Vec<&str> = match self {
            Module::Rows => vec![ROWS],
            Module::Sample => vec![SAMPLE],
            Module::Linear(_) => vec![WEIGHTS, LINEAR],
            Module::Attention(Heads { pages: KvDtype::F32, .. }) => {
                [pages_of(KvDtype::F32), &[ATTENTION_FLOATS]].concat()
            }
            Module::Attention(heads) => [pages_of(heads.pages), &[ATTENTION, ATTENTION_FEW]].concat(),
            Module::Warpgroups { pages, turns, .. } => {
                let kernel = if turns { ATTENTION_TURNS } else { ATTENTION_WARPGROUPS };
                [&[WGMMA], pages_of(pages), &[ATTENTION_STEPS, kernel]].concat()
            }
            Module::Sparse(Heads { pages, .. }) => {
                let tiles = if pages == KvDtype::F32 { SPARSE_FLOATS } else { SPARSE_ROWS };
                [pages_of(pages), &[SPARSE_CHOOSE, tiles, SPARSE]].concat()
            }
        };
        format!("{PRELUDE}{}", text.concat())
    }

    /// What the preprocessor is told: `-DNAME=VALUE`.
    pub fn defines(self) -> Vec<String> {
        let heads = match self {
            Module::Rows | Module::Sample => return vec![],
            Module::Linear(format) => return vec![format!("-DFORMAT={}", number(format))],
            Module::Attention(heads) | Module::Sparse(heads) => heads,
            Module::Warpgroups { pages, head_dim, .. } => Heads::plain(pages, head_dim),
        };
        let pages = match heads.pages {
            KvDtype::Int4 => Some("-DKV_INT4"),
            KvDtype::F16 => Some("-DKV_F16"),
            KvDtype::Bf16 | KvDtype::Fp8 | KvDtype::F32 => None,
        };
        let capped = heads.capped.then_some("-DCAPPED");
        let mut defines = vec![format!("-DHEAD_DIM={}", heads.head_dim)];
        defines.extend(pages.into_iter().chain(capped).map(String::from));
        defines
    }
}

/// The text of all attention over pages of this kind.
fn pages_of(pages: KvDtype) -> &'static [&'static str] {
    match pages {
        KvDtype::Bf16 => &[
            ATTENTION_ARGS,
            ATTENTION_ROWS,
            ATTENTION_BF16,
            ATTENTION_OF_BF16,
            ATTENTION_PLAIN,
            ATTENTION_PAGES,
        ],
        KvDtype::F16 => &[ATTENTION_ARGS, ATTENTION_ROWS, ATTENTION_F16, ATTENTION_PLAIN, ATTENTION_PAGES],
        KvDtype::Fp8 => &[
            ATTENTION_ARGS,
            ATTENTION_ROWS,
            ATTENTION_FP8,
            ATTENTION_OF_BF16,
            ATTENTION_PLAIN,
            ATTENTION_PAGES,
        ],
        KvDtype::Int4 => &[ATTENTION_ARGS, ATTENTION_ROWS, ATTENTION_INT4, ATTENTION_PAGES],
        KvDtype::F32 => &[ATTENTION_ARGS, ATTENTION_FLOATS_ROW],
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Module::Rows => write!(f, "rows"),
            Module::Sample => write!(f, "sample"),
            Module::Linear(Format::Narrow(narrow)) => write!(f, "linear-{narrow:?}"),
            Module::Linear(format) => write!(f, "linear-{format:?}"),
            Module::Attention(heads) => write!(f, "attention-{heads}"),
            Module::Warpgroups { pages, head_dim, turns } => {
                write!(f, "{}-{pages:?}-{head_dim}", if *turns { "turns" } else { "warpgroups" })
            }
            Module::Sparse(heads) => write!(f, "sparse-{heads}"),
        }
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Heads { pages, head_dim, capped } = self;
        write!(f, "{pages:?}-{head_dim}{}", if *capped { "-capped" } else { "" })
    }
}

/// Elements of heads whose scores are capped in the conformance table.
const CAPPED: usize = 256;

/// Heads of more dims are attended by fewer rows at a time.
const SHORT_HEAD: usize = 128;

/// (query, head) pairs of a block of `attend_many`.
pub(crate) fn many_rows(head_dim: usize) -> usize {
    if head_dim > SHORT_HEAD { 64 } else { 128 }
}

/// The size of `Many` in `attention.cu`: queries of a block's rows, sums of theirs, and pages.
fn many_bytes(pages: KvDtype, head_dim: usize, architecture: Architecture) -> usize {
    let stages = match architecture {
        Architecture(..80) => 1,
        _ if head_dim > SHORT_HEAD => 2,
        _ => 3,
    };
    let [keys, values] = plane_bytes(pages, head_dim);
    let sums = if pages == KvDtype::Int4 { 16 * many_rows(head_dim) * head_dim.div_ceil(64) } else { 0 };
    2 * many_rows(head_dim) * head_dim.next_multiple_of(32) + sums + stages * (keys + values)
}

/// A page's keys and values in one head, as they lie in shared memory: rows of keys begin with a chunk of 32 numbers.
fn plane_bytes(pages: KvDtype, head_dim: usize) -> [usize; 2] {
    let plain = [head_dim.next_multiple_of(32), head_dim];
    match pages {
        KvDtype::F32 => [0; 2],
        KvDtype::Bf16 | KvDtype::F16 => plain.map(|row| 2 * 32 * row),
        KvDtype::Fp8 => plain.map(|row| 32 * row),
        KvDtype::Int4 => [2 * (8 * head_dim + 64 * head_dim.div_ceil(64)); 2],
    }
}

/// The size of `Few` in `attention_few.cu`: planes of four warps, and what these found.
fn few_bytes(pages: KvDtype, head_dim: usize, architecture: Architecture) -> usize {
    let [plane, _] = plane_bytes(pages, head_dim);
    let planes = match (architecture, plane) {
        (Architecture(..80), _) | (_, 8193..) => 16,
        (_, 4097..) => 2 * plane,
        _ => 4 * plane,
    };
    let merging = 4 * (16 * (head_dim + 8) + 4 * 16 + 16);
    4 * planes + merging
}

/// The size of `Prefill` in `attention_warpgroups.cu`: queries of 128 rows, and three steps of 128 keys and values; and of `Turns` in
/// `attention_turns.cu`, which has sixteen gates of 8 bytes besides.
fn warpgroup_bytes(head_dim: usize, turns: bool) -> usize {
    2 * head_dim * (128 + 3 * 2 * 128) + if turns { 16 * 8 } else { 0 }
}

/// The number of a format in `linear.cu`.
fn number(format: Format) -> u8 {
    match format {
        Format::Narrow(narrow) => narrow as u8,
        Format::Bf16 => 13,
        Format::F32 => 14,
        Format::Bf12 => unreachable!("no device is prepared for weights of 12 bits"),
    }
}

/// The kind of pages in `rows.cu`.
pub(crate) fn kind_of(pages: KvDtype) -> u32 {
    match pages {
        KvDtype::F32 => 0,
        KvDtype::Bf16 => 1,
        KvDtype::Int4 => 2,
        KvDtype::Fp8 => 3,
        KvDtype::F16 => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the least of each generation of devices gives a block at the most.
    #[test]
    fn every_device_has_as_much_memory_for_a_block() {
        for head_dim in [16, 64, 80, 96, 128, 160, 192, 256] {
            for pages in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int4] {
                let module = Module::Attention(Heads::plain(pages, head_dim));
                for kernel in ["attend_many", "attend_few"] {
                    let bytes = |architecture| module.block_bytes(kernel, Architecture(architecture));
                    let (old, common) = (bytes(75), bytes(86));
                    assert!(old <= 64 << 10 && common <= 99 << 10, "{module}, {kernel}: {old}, {common}");
                }
            }
        }
        for turns in [false, true] {
            let most = Module::Warpgroups { pages: KvDtype::Bf16, head_dim: 128, turns };
            assert!(most.block_bytes("attend_many", Architecture::WARPGROUPS) <= 227 << 10);
        }
        // Two on a multiprocessor of sm_80, which has 164 KiB and keeps one for itself beside each.
        for (kernel, expected) in [("attend_many", 80 << 10), ("attend_few", 74_560)] {
            let module = Module::Attention(Heads::plain(KvDtype::Bf16, 128));
            let bytes = module.block_bytes(kernel, Architecture(80));
            assert_eq!((bytes, 2 * (bytes + (1 << 10)) <= 164 << 10), (expected, true));
        }
    }
}
