//! What a linear layer is made of: its packed weights, its input, and what becomes of its output.

use std::fmt;

use half::bf16;
pub use spec::model::Activation;

use super::pack::{PANEL_ROWS, panel_bytes, panels};
use super::quant::Narrow;
use crate::mat::{Mat, MatMut};

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats, one row of 32 outputs for each k.
    F32,
    /// bf16 in tiles of 16 outputs by 32 k, pairs of k beside each other (VNNI).
    Bf16,
    /// The same values in 12 bits each, bit for bit, unfolded to bf16 tiles just before use.
    Bf12,
    /// Fewer than 16 bits a weight, expanded to bf16 tiles just before use.
    Narrow(Narrow),
}

/// For people: `bf16`, `bf16 in 12 bits`, `int4`.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Format::Narrow(narrow) => format!("{narrow:?}"),
            Format::Bf12 => "bf16 in 12 bits".into(),
            wide => format!("{wide:?}"),
        };
        f.write_str(&name.to_lowercase())
    }
}

/// How the input of a [`Format::Narrow`] weight is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// As it is, by weights expanded to bf16.
    #[default]
    Exact,
    /// Rounded to 8 bits in groups of 32 k, by the codes of the weights: fastest, least exact.
    Int8,
    /// Rounded to 15 bits, as whole numbers of 16: nearly as fast and nearly exact.
    Int16,
}

/// Which output rows share a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOrder {
    /// Panel p holds rows `32p..32p+32`.
    Plain,
    /// The matrix holds gate rows and then as many up rows. Panel p holds gate rows `16p..16p+16` and
    /// then up rows `16p..16p+16`, so that one tile pair yields `act(gate) * up` in registers.
    Gated,
}

/// A run of neighbouring panels of a weight, where a tier holds them.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The number of the first panel.
    pub first_panel: usize,
    /// The panels one after the other, each [`panel_bytes`] long. Aligned to 64 bytes they are fastest.
    pub bytes: &'a [u8],
}

/// A packed matrix of `n` output rows by `k`, or those of its panels that `parts` lists.
#[derive(Clone, Debug)]
pub struct Weight<'a> {
    format: Format,
    n: usize,
    k: usize,
    order: RowOrder,
    activations: Activations,
    parts: Vec<Part<'a>>,
}

impl<'a> Weight<'a> {
    /// A weight of `n` output rows (gate and up rows together for [`RowOrder::Gated`]) by `k`. Panels
    /// that no part holds are absent: [`linear`](super::linear) leaves their outputs as they are.
    ///
    /// # Panics
    /// If a part is not a whole number of panels, the parts are not in ascending order without overlap,
    /// reach beyond the last panel, or the rows of a gated weight are odd in number.
    pub fn new(format: Format, n: usize, k: usize, order: RowOrder, parts: Vec<Part<'a>>) -> Weight<'a> {
        assert!(order == RowOrder::Plain || n.is_multiple_of(2), "{n} gate and up rows cannot be halved");
        let bytes = panel_bytes(format, k);
        let mut next = 0;
        for part in &parts {
            assert!(part.first_panel >= next, "parts overlap or are out of order at panel {next}");
            assert!(
                part.bytes.len().is_multiple_of(bytes.max(1)),
                "a part of {} bytes is not a whole number of panels of {bytes}",
                part.bytes.len()
            );
            next = part.first_panel + part.bytes.len() / bytes.max(1);
        }
        let all = panels(order, n);
        assert!(next <= all, "parts reach panel {next} of a weight with {all}");
        Weight { format, n, k, order, activations: Activations::Exact, parts }
    }

    /// The same, multiplied in this way, if its format has whole numbers; others know but one.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> Weight<'a> {
        match self.format {
            Format::Narrow(narrow) if narrow.is_whole() => Weight { activations, ..self },
            _ => self,
        }
    }

    /// How its input is multiplied.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// How its numbers are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output rows, gate and up rows together.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Which output rows share a panel.
    pub fn order(&self) -> RowOrder {
        self.order
    }

    /// The parts, in order of panel.
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// How many panels the parts hold together.
    pub fn held_panels(&self) -> usize {
        let bytes = panel_bytes(self.format, self.k).max(1);
        self.parts.iter().map(|part| part.bytes.len() / bytes).sum()
    }

    /// The `i`th of the held panels: its number and its bytes.
    pub fn held_panel(&self, i: usize) -> (usize, &'a [u8]) {
        let bytes = panel_bytes(self.format, self.k).max(1);
        let mut left = i;
        for part in &self.parts {
            let count = part.bytes.len() / bytes;
            if left < count {
                return (part.first_panel + left, &part.bytes[left * bytes..][..bytes]);
            }
            left -= count;
        }
        panic!("held panel {i} of {}", self.held_panels())
    }

    /// Where row `row` is packed: its panel, and its place among the panel's 32.
    pub fn place(&self, row: usize) -> (usize, usize) {
        assert!(row < self.n, "row {row} of {}", self.n);
        const HALF: usize = PANEL_ROWS / 2;
        match self.order {
            RowOrder::Plain => (row / PANEL_ROWS, row % PANEL_ROWS),
            RowOrder::Gated if row < self.n / 2 => (row / HALF, row % HALF),
            RowOrder::Gated => {
                let up = row - self.n / 2;
                (up / HALF, HALF + up % HALF)
            }
        }
    }
}

/// What a linear layer reads: `[rows, k]`.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// For every format but [`Format::F32`].
    Bf16(Mat<'a, bf16>),
    /// For [`Format::F32`].
    F32(Mat<'a, f32>),
}

impl Input<'_> {
    /// How many rows (tokens).
    pub fn rows(&self) -> usize {
        match self {
            Input::Bf16(x) => x.rows(),
            Input::F32(x) => x.rows(),
        }
    }

    /// How many columns.
    pub fn cols(&self) -> usize {
        match self {
            Input::Bf16(x) => x.cols(),
            Input::F32(x) => x.cols(),
        }
    }
}

/// Where activated values go: what the next linear layer reads.
#[derive(Debug)]
pub enum Activated<'a> {
    /// Rounded to bf16.
    Bf16(MatMut<'a, bf16>),
    /// As they are.
    F32(MatMut<'a, f32>),
}

/// What becomes of `y = x * W^T + bias`.
#[derive(Debug)]
pub enum Output<'a> {
    /// `out = y`, `[rows, n]`.
    StoreF32(MatMut<'a, f32>),
    /// `out = y` rounded to bf16, `[rows, n]`.
    StoreBf16(MatMut<'a, bf16>),
    /// `out = out + y`, `[rows, n]`: the residual stream.
    AddF32(MatMut<'a, f32>),
    /// `out = act(y)`, `[rows, n]`.
    Act {
        /// The function.
        kind: Activation,
        /// Where to.
        out: Activated<'a>,
    },
    /// `out = act(gate) * up`, `[rows, n / 2]`, with a weight in [`RowOrder::Gated`] (and only there).
    Gated {
        /// The function.
        kind: Activation,
        /// Where to.
        out: Activated<'a>,
    },
}

impl Output<'_> {
    /// Rows and columns of the destination.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Output::StoreF32(out) | Output::AddF32(out) => (out.rows(), out.cols()),
            Output::StoreBf16(out) => (out.rows(), out.cols()),
            Output::Act { out, .. } | Output::Gated { out, .. } => match out {
                Activated::Bf16(out) => (out.rows(), out.cols()),
                Activated::F32(out) => (out.rows(), out.cols()),
            },
        }
    }
}
