//! What happens to a row of a panel once its sums are complete: bias, activation, residual, rounding.
//!
//! Written once as plain loops over 32 lanes, which with each family's features become its vector code with the same bits. They are
//! as long as many a driver, and are not inlined into them.

#[cfg(target_arch = "x86_64")]
mod claim;
#[cfg(target_arch = "x86_64")]
mod wide;

use half::bf16;

use super::activation::{gelu, gelu_tanh, relu, relu2, silu};
use super::pack::{PANEL_ROWS, panel_rows};
use super::types::{Activated, Activation, Output, RowOrder, Weight};
use crate::mat::SharedRows;
use crate::round::to_bf16;

const HALF: usize = PANEL_ROWS / 2;

/// The sums of one row of x with the 32 output rows of a panel.
pub(crate) type Sums = [f32; PANEL_ROWS];

/// Where the results of one linear layer go.
pub(crate) struct Epilogue<'a> {
    bias: Option<&'a [f32]>,
    n: usize,
    order: RowOrder,
    target: Target<'a>,
}

enum Target<'a> {
    StoreF32(SharedRows<'a, f32>),
    StoreBf16(SharedRows<'a, bf16>),
    AddF32(SharedRows<'a, f32>),
    ActF32(Activation, SharedRows<'a, f32>),
    ActBf16(Activation, SharedRows<'a, bf16>),
    GatedF32(Activation, SharedRows<'a, f32>),
    GatedBf16(Activation, SharedRows<'a, bf16>),
}

impl<'a> Epilogue<'a> {
    pub(crate) fn new(w: &Weight<'_>, bias: Option<&'a [f32]>, out: &'a mut Output<'_>) -> Epilogue<'a> {
        let target = match out {
            Output::StoreF32(out) => Target::StoreF32(out.shared()),
            Output::StoreBf16(out) => Target::StoreBf16(out.shared()),
            Output::AddF32(out) => Target::AddF32(out.shared()),
            Output::Act { kind, out: Activated::F32(out) } => Target::ActF32(*kind, out.shared()),
            Output::Act { kind, out: Activated::Bf16(out) } => Target::ActBf16(*kind, out.shared()),
            Output::Gated { kind, out: Activated::F32(out) } => Target::GatedF32(*kind, out.shared()),
            Output::Gated { kind, out: Activated::Bf16(out) } => Target::GatedBf16(*kind, out.shared()),
        };
        Epilogue { bias, n: w.n(), order: w.order(), target }
    }

    /// Finishes rows `first_row..` of `panel`, one for each of `sums` (which are used up).
    ///
    /// # Safety
    /// No other worker finishes the same rows of the same panel at the same time.
    #[inline(never)]
    pub(crate) unsafe fn finish(&self, panel: usize, first_row: usize, sums: &mut [Sums]) {
        // SAFETY: the caller's.
        unsafe { self.finish_in_lanes(panel, first_row, sums) };
    }

    /// The same by vectors of eight.
    ///
    /// # Safety
    /// As [`finish`](Epilogue::finish).
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2,fma")]
    pub(crate) unsafe fn finish_256(&self, panel: usize, first_row: usize, sums: &mut [Sums]) {
        // SAFETY: the caller's.
        unsafe { self.finish_in_lanes(panel, first_row, sums) };
    }

    /// # Safety
    /// As [`finish`](Epilogue::finish).
    #[inline(always)]
    unsafe fn finish_in_lanes(&self, panel: usize, first_row: usize, sums: &mut [Sums]) {
        if let Some(bias) = self.bias {
            self.add_bias(bias, panel, sums);
        }
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.target {
                Target::StoreF32(out) => write(out, panel, first_row, sums, |y, _| y),
                Target::StoreBf16(out) => write(out, panel, first_row, sums, |y, _| to_bf16(y)),
                Target::AddF32(out) => write(out, panel, first_row, sums, |y, old| old + y),
                Target::ActF32(kind, out) => {
                    activate_all(*kind, sums);
                    write(out, panel, first_row, sums, |y, _| y);
                }
                Target::ActBf16(kind, out) => {
                    activate_all(*kind, sums);
                    write(out, panel, first_row, sums, |y, _| to_bf16(y));
                }
                Target::GatedF32(kind, out) => write_gated(*kind, out, panel, first_row, sums, |y| y),
                Target::GatedBf16(kind, out) => write_gated(*kind, out, panel, first_row, sums, to_bf16),
            }
        }
    }

    #[inline(always)]
    fn add_bias(&self, bias: &[f32], panel: usize, sums: &mut [Sums]) {
        let rows = panel_rows(self.order, self.n, panel);
        let bias: Sums = rows.map(|row| row.map_or(0.0, |row| bias[row]));
        for row in sums {
            for i in 0..PANEL_ROWS {
                row[i] += bias[i];
            }
        }
    }
}

#[inline(always)]
fn activate_all(kind: Activation, sums: &mut [Sums]) {
    match kind {
        Activation::Silu => map(sums, silu),
        Activation::Relu => map(sums, relu),
        Activation::Relu2 => map(sums, relu2),
        Activation::Gelu => map(sums, gelu),
        Activation::GeluTanh => map(sums, gelu_tanh),
    }
}

#[inline(always)]
fn map(sums: &mut [Sums], f: impl Fn(f32) -> f32) {
    for y in sums.as_flattened_mut() {
        *y = f(*y);
    }
}

/// `out[row][32 * panel + i] = f(sums[i], what is there)`.
#[inline(always)]
unsafe fn write<T: Copy>(
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &[Sums],
    f: impl Fn(f32, T) -> T,
) {
    let first = panel * PANEL_ROWS;
    let count = PANEL_ROWS.min(out.cols() - first);
    for (i, row) in sums.iter().enumerate() {
        // SAFETY: the caller finishes these rows of this panel alone.
        let out = unsafe { out.span(first_row + i, first..first + count) };
        match <&mut [T; PANEL_ROWS]>::try_from(&mut *out) {
            Ok(whole) => (0..PANEL_ROWS).for_each(|i| whole[i] = f(row[i], whole[i])),
            Err(_) => out.iter_mut().zip(row).for_each(|(out, y)| *out = f(*y, *out)),
        }
    }
}

#[inline(always)]
unsafe fn write_gated<T: Copy>(
    kind: Activation,
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &mut [Sums],
    f: impl Fn(f32) -> T,
) {
    match kind {
        Activation::Silu => gate(sums, silu),
        Activation::Relu => gate(sums, relu),
        Activation::Relu2 => gate(sums, relu2),
        Activation::Gelu => gate(sums, gelu),
        Activation::GeluTanh => gate(sums, gelu_tanh),
    }
    let first = panel * HALF;
    let count = HALF.min(out.cols() - first);
    for (i, row) in sums.iter().enumerate() {
        // SAFETY: the caller finishes these rows of this panel alone.
        let out = unsafe { out.span(first_row + i, first..first + count) };
        match <&mut [T; HALF]>::try_from(&mut *out) {
            Ok(whole) => (0..HALF).for_each(|i| whole[i] = f(row[i])),
            Err(_) => out.iter_mut().zip(row).for_each(|(out, y)| *out = f(*y)),
        }
    }
}

/// The first 16 become `act(first) * second`.
#[inline(always)]
fn gate(sums: &mut [Sums], act: impl Fn(f32) -> f32) {
    for row in sums {
        for i in 0..HALF {
            row[i] = act(row[i]) * row[HALF + i];
        }
    }
}
