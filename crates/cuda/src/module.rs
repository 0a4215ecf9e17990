//! The kernels' text, and the variants in which it is compiled.

use std::fmt;

use kernels::linear::Format;
use kernels::linear::quant::Narrow;

const PRELUDE: &str = include_str!("../kernels/prelude.cu");
const ROWS: &str = include_str!("../kernels/rows.cu");
const LINEAR: &str = include_str!("../kernels/linear.cu");
const ATTENTION: &str = include_str!("../kernels/attention.cu");

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Norms, gathers, conversions, the way into KV pages.
    Rows,
    /// Linears and embeddings of one format of weights.
    Linear(Format),
    /// Attention over bf16 pages with heads of one size.
    Attention {
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
        let mut all = vec![Module::Rows];
        all.extend(formats.map(Module::Linear));
        all.extend(dims.map(|head_dim| Module::Attention { head_dim }));
        all.extend(dims.map(|head_dim| Module::AttentionFloats { head_dim }));
        all
    }

    /// Its text, prelude included.
    pub fn source(self) -> String {
        let text = match self {
            Module::Rows => ROWS,
            Module::Linear(_) => LINEAR,
            Module::Attention { .. } | Module::AttentionFloats { .. } => ATTENTION,
        };
        format!("{PRELUDE}{text}")
    }

    /// What the preprocessor is told: `-DNAME=VALUE`.
    pub fn defines(self) -> Vec<String> {
        match self {
            Module::Rows => vec![],
            Module::Linear(format) => vec![format!("-DFORMAT={}", number(format))],
            Module::Attention { head_dim } => vec![format!("-DHEAD_DIM={head_dim}")],
            Module::AttentionFloats { head_dim } => {
                vec![format!("-DHEAD_DIM={head_dim}"), "-DHEAD_FLOATS".to_string()]
            }
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Module::Rows => write!(f, "rows"),
            Module::Linear(Format::Narrow(narrow)) => write!(f, "linear-{narrow:?}"),
            Module::Linear(format) => write!(f, "linear-{format:?}"),
            Module::Attention { head_dim } => write!(f, "attention-{head_dim}"),
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
