//! `y = x * W^T` for weights packed once into panels, with what follows fused into the last step.
//!
//! The products of a bf16 dot product are added to a total that began at zero, in one of two orders (see
//! [`Order`]): that of the tile instructions, which all families but one reproduce bit for bit, or that of the
//! instructions on pairs ([`Isa::Avx512Bf16`]). Narrow weights have a third, in which they are f32. Bias, activation and residual follow after the last. A row of the
//! result depends on nothing but its row of x and the order, whatever the batch around it. [`reference()`] is the plain
//! loop in each order.

mod activation;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod bf12;
mod epilogue;
pub mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod progress;
pub mod quant;
#[cfg(target_arch = "x86_64")]
mod rows;
mod scalar;
mod source;
pub mod types;
#[cfg(target_arch = "x86_64")]
mod vector;

use half::bf16;

pub use bf12::{TooVaried, pack_bf12};
pub use pack::{PANEL_ROWS, pack_bf16, pack_f32, packed_bytes, panel_bytes, panel_rows, panels, unpack_row};
pub use types::{Activated, Activation, Activations, Format, Input, Output, Part, RowOrder, Weight};
#[cfg(target_arch = "x86_64")]
pub(crate) use {
    amx::multiply_registers, pairs::multiply_registers as multiply_pairs, vector::SUMS as FLOAT_SUMS,
    vector::multiply_registers as multiply_floats,
};

use crate::isa::{Isa, Order};
use crate::mat::Mat;
use crate::team::Team;
use epilogue::Epilogue;
use quant::NarrowPanels;
use source::{Bf16Panels, PanelSource};
#[cfg(target_arch = "x86_64")]
use vector::Width;

/// `y = x * W^T + bias`, finished as `out` says. `x: [m, k]`, `bias: [n]` (gate rows before up rows).
/// Outputs of panels that `w` does not hold are left as they are.
///
/// # Panics
/// If shapes do not fit, the input's type is not the one that the format multiplies, the output is
/// [`Output::Gated`] and the weight's order is not (or the other way round), or the machine lacks `isa`.
pub fn linear(team: &Team, isa: Isa, x: Input<'_>, w: &Weight<'_>, bias: Option<&[f32]>, out: Output<'_>) {
    linear_in(team, (isa, isa.order()), x, w, bias, out);
}

/// What a thread may keep of x and of weights, in the order in which they are multiplied: whole huge pages. Memory is
/// planned with it.
const THREAD_BYTES: usize = 2 << 20;

/// Bytes that a team keeps at most for each of its threads after products of up to `rows` rows of x by weights of up to `k`
/// inputs; packed blocks of x that several share lie with the thread that calls ([`shared_bytes_at_most`]).
pub fn kept_bytes_at_most(isa: Isa, rows: usize, k: usize) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => vector::kept_bytes_at_most(rows, k).min(THREAD_BYTES),
        // Beside sums of two rows of tiles, all k of a panel, or of as many rows of x.
        _ => THREAD_BYTES.max(k.div_ceil(pack::GROUP) * source::PAIR_BYTES + (8 << 10)),
    }
}

/// Rows of x that several threads share, as they are packed, where the family does not say.
const SHARED_ROWS: usize = 832;

/// Bytes that the thread that calls keeps at most besides, of x as several threads share it.
pub fn shared_bytes_at_most(isa: Isa, rows: usize, k: usize, threads: usize) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => amx::shared_bytes_at_most(rows, k, threads),
        _ => rows.min(SHARED_ROWS) * k.next_multiple_of(pack::GROUP) * size_of::<bf16>(),
    }
}

/// [`linear`] by plain loops, in the order of additions that is asked for: what every family is held against.
///
/// # Panics
/// As [`linear`].
pub fn reference(
    team: &Team,
    order: Order,
    x: Input<'_>,
    w: &Weight<'_>,
    bias: Option<&[f32]>,
    out: Output<'_>,
) {
    linear_in(team, (Isa::Scalar, order), x, w, bias, out);
}

/// [`linear`] by a family in an order: its own, that of groups where it has vectors, any where it has none.
///
/// # Panics
/// As [`linear`].
pub fn linear_in(
    team: &Team,
    (isa, order): (Isa, Order),
    x: Input<'_>,
    w: &Weight<'_>,
    bias: Option<&[f32]>,
    mut out: Output<'_>,
) {
    assert!(isa.available(), "this machine lacks {isa}");
    check(&x, w, bias, &out);
    if x.rows() == 0 {
        return;
    }
    let epilogue = Epilogue::new(w, bias, &mut out);
    let isa = if x.rows() == 1 { for_one_row(isa, w.format()) } else { isa };
    match (w.format(), x) {
        (Format::F32, Input::F32(x)) => run_f32(team, isa, x, w, &epilogue),
        #[cfg(target_arch = "x86_64")]
        (Format::Bf16, Input::Bf16(x)) if isa == Isa::Avx512Bf16 => pairs::run(team, x, w, &epilogue),
        (Format::Bf16, Input::Bf16(x)) => run_tiles(team, (isa, order), x, w, &Bf16Panels, &epilogue),
        #[cfg(target_arch = "x86_64")]
        (Format::Bf12, Input::Bf16(x)) if isa == Isa::Avx512Bf16 => {
            pairs::run_panels::<bf12::Unfolded>(team, x, w, &epilogue);
        }
        #[cfg(target_arch = "x86_64")]
        (Format::Bf12, Input::Bf16(x)) if isa == Isa::Avx2 && x.rows() == 1 => {
            bf12::one_row::run(team, x, w, &epilogue);
        }
        (Format::Bf12, Input::Bf16(x)) => {
            run_tiles(team, (isa, order), x, w, &bf12::Bf12Panels(isa), &epilogue);
        }
        (Format::Narrow(narrow), Input::Bf16(x)) => match w.activations() {
            Activations::Exact => run_narrow(team, (isa, order), narrow, x, w, &epilogue),
            Activations::Int8 => {
                quant::multiply_integers(team, isa, (narrow, quant::Bits::Eight), x, w, &epilogue);
            }
            Activations::Int16 => {
                quant::multiply_integers(team, isa, (narrow, quant::Bits::Fifteen), x, w, &epilogue);
            }
        },
        (format, Input::F32(_)) => panic!("{format:?} weights multiply bf16, the input is f32"),
        (format, Input::Bf16(_)) => panic!("{format:?} weights multiply f32, the input is bf16"),
    }
}

/// Beside tiles: vectors add one row in the same order, read as fast, and share no tile unit (a tenth faster, and more).
fn for_one_row(isa: Isa, format: Format) -> Isa {
    match (isa, format) {
        (Isa::Amx, Format::Bf16 | Format::Bf12) => Isa::Avx512,
        _ => isa,
    }
}

/// In the order of groups by a path of the format's own, or expanded for that of bf16; in the others as they say.
fn run_narrow(
    team: &Team,
    (isa, order): (Isa, Order),
    format: quant::Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    match order {
        Order::Groups if quant::multiply(team, isa, format, x, w, epilogue) => {}
        Order::Groups => run_tiles(team, (isa, order), x, w, &NarrowPanels::new(format, isa), epilogue),
        Order::Pairs => quant::multiply_codes(team, isa, format, x, w, epilogue),
        Order::Vectors => quant::multiply_values(team, isa, format, x, w, epilogue),
    }
}

fn check(x: &Input<'_>, w: &Weight<'_>, bias: Option<&[f32]>, out: &Output<'_>) {
    assert_eq!(x.cols(), w.k(), "columns of the input against those of the weight");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), w.n(), "length of the bias");
    }
    let gated = matches!(out, Output::Gated { .. });
    assert_eq!(gated, w.order() == RowOrder::Gated, "gated output and gated row order go together");
    let cols = if gated { w.n() / 2 } else { w.n() };
    assert_eq!(out.shape(), (x.rows(), cols), "rows and columns of the output");
}

fn run_tiles(
    team: &Team,
    (isa, order): (Isa, Order),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &impl PanelSource,
    epilogue: &Epilogue<'_>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => amx::run(team, x, w, source, epilogue),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => vector::run_tiles(Width::Sixteen, team, x, w, source, epilogue),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => vector::run_tiles(Width::Eight, team, x, w, source, epilogue),
        Isa::Scalar => scalar::run_tiles(team, order, x, w, source, epilogue),
        other => unreachable!("{other} has products of its own"),
    }
}

fn run_f32(team: &Team, isa: Isa, x: Mat<'_, f32>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => vector::run_f32(Width::Sixteen, team, x, w, epilogue),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => vector::run_f32(Width::Eight, team, x, w, epilogue),
        _ => scalar::run_f32(team, x, w, epilogue),
    }
}
