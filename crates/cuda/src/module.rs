//! The kernels' text, and the variants in which it is compiled.

use std::fmt;

use kernels::attention::KvDtype;
use kernels::device::Needs;
use kernels::linear::Format;
use kernels::linear::quant::Narrow;

const PRELUDE: &str = include_str!("../kernels/prelude.cu");
const ROWS: &str = include_str!("../kernels/rows.cu");
const WEIGHTS: &str = include_str!("../kernels/weights.cu");
const LINEAR: &str = include_str!("../kernels/linear.cu");
const SAMPLE: &str = include_str!("../kernels/sample.cu");
const ATTENTION_ARGS: &str = include_str!("../kernels/attention_args.cu");
const ATTENTION_ROWS: &str = include_str!("../kernels/attention_rows.cu");
const ATTENTION_BF16: &str = include_str!("../kernels/attention_bf16.cu");
const ATTENTION_FP8: &str = include_str!("../kernels/attention_fp8.cu");
const ATTENTION_PLAIN: &str = include_str!("../kernels/attention_plain.cu");
const ATTENTION_INT4: &str = include_str!("../kernels/attention_int4.cu");
const ATTENTION: &str = include_str!("../kernels/attention.cu");
const ATTENTION_FLOATS: &str = include_str!("../kernels/attention_floats.cu");

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Norms, gathers, conversions, the way into KV pages.
    Rows,
    /// Tokens from logits.
    Sample,
    /// Linears and embeddings of one format of weights.
    Linear(Format),
    /// Attention over bf16 pages with heads of one size.
    Attention {
        /// Elements of a head.
        head_dim: usize,
    },
    /// Attention over pages of 8 bits.
    AttentionFp8 {
        /// Elements of a head.
        head_dim: usize,
    },
    /// Attention over pages of 4 bits.
    AttentionInt4 {
        /// Elements of a head.
        head_dim: usize,
    },
    /// Attention over f32 pages.
    AttentionFloats {
        /// Elements of a head.
        head_dim: usize,
    },
}

impl Module {
    /// Every module that the conformance table asks for, and the head sizes of common models.
    pub fn all() -> Vec<Module> {
        let formats = [Format::F32, Format::Bf16].into_iter().chain(Narrow::ALL.map(Format::Narrow));
        let dims = [16, 64, 80, 96, 128, 256];
        let mut all = vec![Module::Rows, Module::Sample];
        all.extend(formats.map(Module::Linear));
        for dtype in [KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int4, KvDtype::F32] {
            all.extend(dims.map(|head_dim| Module::attention(dtype, head_dim)));
        }
        all
    }

    /// Attention over pages of this kind.
    pub fn attention(dtype: KvDtype, head_dim: usize) -> Module {
        match dtype {
            KvDtype::Bf16 => Module::Attention { head_dim },
            KvDtype::Fp8 => Module::AttentionFp8 { head_dim },
            KvDtype::Int4 => Module::AttentionInt4 { head_dim },
            KvDtype::F32 => Module::AttentionFloats { head_dim },
        }
    }

    /// Those that a model needs.
    pub fn needed(needs: &Needs) -> Vec<Module> {
        let attention = Module::attention(needs.kv.dtype, needs.kv.head_dim);
        let mut needed = vec![Module::Rows, Module::Sample, attention];
        needed.extend(needs.formats.iter().copied().map(Module::Linear));
        needed
    }

    /// The names of its kernels.
    pub fn kernels(self) -> &'static [&'static str] {
        match self {
            Module::Rows => &["norm_rows", "pick_rows", "convert_rows", "store_kv", "carry_pieces"],
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
            Module::Attention { .. } | Module::AttentionFp8 { .. } | Module::AttentionInt4 { .. } => {
                &["attend_many", "attend_few", "merge_splits"]
            }
            Module::AttentionFloats { .. } => &["attend_floats"],
        }
    }

    /// Its text, prelude included.
    pub fn source(self) -> String {
        let text: &[&str] = match self {
            Module::Rows => &[ROWS],
            Module::Sample => &[SAMPLE],
            Module::Linear(_) => &[WEIGHTS, LINEAR],
            Module::Attention { .. } => {
                &[ATTENTION_ARGS, ATTENTION_ROWS, ATTENTION_BF16, ATTENTION_PLAIN, ATTENTION]
            }
            Module::AttentionFp8 { .. } => {
                &[ATTENTION_ARGS, ATTENTION_ROWS, ATTENTION_FP8, ATTENTION_PLAIN, ATTENTION]
            }
            Module::AttentionInt4 { .. } => &[ATTENTION_ARGS, ATTENTION_ROWS, ATTENTION_INT4, ATTENTION],
            Module::AttentionFloats { .. } => &[ATTENTION_ARGS, ATTENTION_FLOATS],
        };
        format!("{PRELUDE}{}", text.concat())
    }

    /// What the preprocessor is told: `-DNAME=VALUE`.
    pub fn defines(self) -> Vec<String> {
        match self {
            Module::Rows | Module::Sample => vec![],
            Module::Linear(format) => vec![format!("-DFORMAT={}", number(format))],
            Module::AttentionInt4 { head_dim } => {
                vec![format!("-DHEAD_DIM={head_dim}"), "-DKV_INT4".to_string()]
            }
            Module::Attention { head_dim }
            | Module::AttentionFp8 { head_dim }
            | Module::AttentionFloats { head_dim } => {
                vec![format!("-DHEAD_DIM={head_dim}")]
            }
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Module::Rows => write!(f, "rows"),
            Module::Sample => write!(f, "sample"),
            Module::Linear(Format::Narrow(narrow)) => write!(f, "linear-{narrow:?}"),
            Module::Linear(format) => write!(f, "linear-{format:?}"),
            Module::Attention { head_dim } => write!(f, "attention-{head_dim}"),
            Module::AttentionFp8 { head_dim } => write!(f, "attention-fp8-{head_dim}"),
            Module::AttentionInt4 { head_dim } => write!(f, "attention-int4-{head_dim}"),
            Module::AttentionFloats { head_dim } => write!(f, "attention-floats-{head_dim}"),
        }
    }
}

/// The number of a format in `linear.cu`.
fn number(format: Format) -> u8 {
    match format {
        Format::Narrow(narrow) => narrow as u8,
        Format::Bf16 => 12,
        Format::F32 => 13,
    }
}
