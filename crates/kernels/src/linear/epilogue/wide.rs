//! The same steps written for AVX-512, a row of a panel in two registers: what a loop over lanes leaves
//! to the compiler, and costs a third of a gated layer when it declines.

use std::arch::x86_64::*;

use half::bf16;

use super::{Epilogue, HALF, Sums, Target};
use crate::exp::exp_512;
use crate::linear::pack::PANEL_ROWS;
use crate::linear::types::Activation;
use crate::mat::SharedRows;

impl Epilogue<'_> {
    /// [`finish`](Epilogue::finish), bit for bit.
    ///
    /// # Safety
    /// No other worker finishes the same rows of the same panel at the same time.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(crate) unsafe fn finish_512(&self, panel: usize, first_row: usize, sums: &mut [Sums]) {
        if let Some(bias) = self.bias {
            self.add_bias(bias, panel, sums);
        }
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.target {
                Target::StoreF32(out) => whole(out, panel, first_row, sums, |y| y),
                Target::StoreBf16(out) => whole(out, panel, first_row, sums, |y| y),
                Target::AddF32(out) => add(out, panel, first_row, sums),
                Target::ActF32(kind, out) => activated(*kind, out, panel, first_row, sums),
                Target::ActBf16(kind, out) => activated(*kind, out, panel, first_row, sums),
                Target::GatedF32(kind, out) => gated(*kind, out, panel, first_row, sums),
                Target::GatedBf16(kind, out) => gated(*kind, out, panel, first_row, sums),
            }
        }
    }
}

impl Epilogue<'_> {
    /// Where what is added to row `row` of `panel` lies, and the bytes from there to the next row; of what is stored alone, nothing
    /// is read.
    pub(crate) fn added_to(&self, panel: usize, row: usize) -> Option<(*const u8, usize)> {
        match &self.target {
            Target::AddF32(out) => {
                let at = |row| out.at(row, panel * PANEL_ROWS).cast::<u8>();
                Some((at(row), at(row + 1).addr() - at(row).addr()))
            }
            _ => None,
        }
    }
}

/// Something that 16 results can be stored as.
trait Store: Copy {
    /// # Safety
    /// The elements of `mask` from `to` on may be written; the machine has AVX-512.
    unsafe fn store(to: *mut Self, mask: __mmask16, y: __m512);
}

impl Store for f32 {
    #[inline(always)]
    unsafe fn store(to: *mut f32, mask: __mmask16, y: __m512) {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_mask_storeu_ps(to, mask, y) }
    }
}

impl Store for bf16 {
    /// Rounded as [`to_bf16`](crate::round::to_bf16) does.
    #[inline(always)]
    unsafe fn store(to: *mut bf16, mask: __mmask16, y: __m512) {
        // SAFETY: passed on from the caller.
        unsafe {
            let bits = _mm512_castps_si512(y);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(y, y);
            let rounded = _mm512_srli_epi32::<16>(up);
            let rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
            _mm256_mask_storeu_epi16(to.cast(), mask, _mm512_cvtepi32_epi16(rounded));
        }
    }
}

/// The first `count` of 16 lanes.
fn lanes(count: usize) -> __mmask16 {
    ((1u32 << count.min(16)) - 1) as __mmask16
}

/// Where row `row` has its `count` columns from `first` on.
///
/// # Safety
/// As [`SharedRows::span`].
#[inline(always)]
unsafe fn place<T>(out: &SharedRows<'_, T>, row: usize, first: usize, count: usize) -> *mut T {
    // SAFETY: passed on from the caller.
    unsafe { out.span(row, first..first + count).as_mut_ptr() }
}

/// `out[row][32 * panel + i] = f(sums[i])`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn whole<T: Store>(
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &[Sums],
    f: impl Fn(__m512) -> __m512,
) {
    let first = panel * PANEL_ROWS;
    let count = PANEL_ROWS.min(out.cols() - first);
    let masks = [lanes(count), lanes(count.saturating_sub(16))];
    for (i, row) in sums.iter().enumerate() {
        // SAFETY: the caller finishes these rows of this panel alone; the masks end where the row does.
        unsafe {
            let to = place(out, first_row + i, first, count);
            T::store(to, masks[0], f(_mm512_loadu_ps(row.as_ptr())));
            T::store(to.wrapping_add(16), masks[1], f(_mm512_loadu_ps(row.as_ptr().add(16))));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn add(out: &SharedRows<'_, f32>, panel: usize, first_row: usize, sums: &[Sums]) {
    let first = panel * PANEL_ROWS;
    let count = PANEL_ROWS.min(out.cols() - first);
    let masks = [lanes(count), lanes(count.saturating_sub(16))];
    for (i, row) in sums.iter().enumerate() {
        // SAFETY: as in `whole`.
        unsafe {
            let to = place(out, first_row + i, first, count);
            for (half, mask) in masks.into_iter().enumerate() {
                let to = to.wrapping_add(16 * half);
                let old = _mm512_maskz_loadu_ps(mask, to);
                let y = _mm512_loadu_ps(row.as_ptr().add(16 * half));
                _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(old, y));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn activated<T: Store>(
    kind: Activation,
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &[Sums],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match kind {
            Activation::Silu => whole(out, panel, first_row, sums, |y| silu(y)),
            Activation::Relu => whole(out, panel, first_row, sums, |y| relu(y)),
            Activation::Relu2 => whole(out, panel, first_row, sums, |y| relu2(y)),
            Activation::Gelu => whole(out, panel, first_row, sums, |y| gelu(y)),
            Activation::GeluTanh => whole(out, panel, first_row, sums, |y| gelu_tanh(y)),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn gated<T: Store>(
    kind: Activation,
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &[Sums],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match kind {
            Activation::Silu => gate(out, panel, first_row, sums, |y| silu(y)),
            Activation::Relu => gate(out, panel, first_row, sums, |y| relu(y)),
            Activation::Relu2 => gate(out, panel, first_row, sums, |y| relu2(y)),
            Activation::Gelu => gate(out, panel, first_row, sums, |y| gelu(y)),
            Activation::GeluTanh => gate(out, panel, first_row, sums, |y| gelu_tanh(y)),
        }
    }
}

/// `out[row][16 * panel + i] = act(sums[i]) * sums[16 + i]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn gate<T: Store>(
    out: &SharedRows<'_, T>,
    panel: usize,
    first_row: usize,
    sums: &[Sums],
    act: impl Fn(__m512) -> __m512,
) {
    let first = panel * HALF;
    let count = HALF.min(out.cols() - first);
    for (i, row) in sums.iter().enumerate() {
        // SAFETY: as in `whole`.
        unsafe {
            let (gate, up) = (_mm512_loadu_ps(row.as_ptr()), _mm512_loadu_ps(row.as_ptr().add(HALF)));
            let to = place(out, first_row + i, first, count);
            T::store(to, lanes(count), _mm512_mul_ps(act(gate), up));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn negative(x: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MIN)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn silu(x: __m512) -> __m512 {
    _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0), exp_512(negative(x))))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn relu(x: __m512) -> __m512 {
    let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps());
    _mm512_mask_mov_ps(x, below, _mm512_setzero_ps())
}

#[inline]
#[target_feature(enable = "avx512f")]
fn relu2(x: __m512) -> __m512 {
    _mm512_mul_ps(relu(x), relu(x))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn gelu_tanh(x: __m512) -> __m512 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    let cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    let u = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044_715), x);
    let u = _mm512_mul_ps(_mm512_set1_ps(TWICE_SQRT_2_OVER_PI), u);
    _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0), exp_512(negative(u))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn gelu(x: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
    let z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(std::f32::consts::FRAC_1_SQRT_2));
    let t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.327_591_1), one));
    let mut p = _mm512_set1_ps(1.061_405_4);
    for c in [-1.453_152, 1.421_413_8, -0.284_496_74, 0.254_829_6] {
        p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(c));
    }
    let e = exp_512(_mm512_mul_ps(negative(z), z));
    let half_erfc = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(0.5), t), p), e);
    let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps());
    _mm512_mul_ps(x, _mm512_mask_mov_ps(_mm512_sub_ps(one, half_erfc), below, half_erfc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::activation::activate;

    #[target_feature(enable = "avx512f,avx512dq")]
    fn sixteen(kind: Activation, x: &[f32]) -> [f32; 16] {
        let mut y = [0.0; 16];
        // SAFETY: `x` and `y` hold 16 values.
        unsafe {
            let x = _mm512_loadu_ps(x[..16].as_ptr());
            let result = match kind {
                Activation::Silu => silu(x),
                Activation::Relu => relu(x),
                Activation::Relu2 => relu2(x),
                Activation::Gelu => gelu(x),
                Activation::GeluTanh => gelu_tanh(x),
            };
            _mm512_storeu_ps(y.as_mut_ptr(), result);
        }
        y
    }

    #[test]
    fn activations_have_the_bits_of_the_plain_ones() {
        if !crate::Isa::Avx512.available() {
            return;
        }
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-30];
        let line = (0..40_000).map(|i| (i - 20_000) as f32 * 0.005);
        let all: Vec<f32> = special.into_iter().chain([0.5; 8]).chain(line).collect();
        for kind in
            [Activation::Silu, Activation::Relu, Activation::Relu2, Activation::Gelu, Activation::GeluTanh]
        {
            for x in all.chunks_exact(16) {
                // SAFETY: just checked that the machine has AVX-512.
                let got = unsafe { sixteen(kind, x) };
                for (got, x) in got.into_iter().zip(x) {
                    let right = activate(kind, *x);
                    let same = got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan();
                    assert!(same, "{kind:?}({x}) = {got}, not {right}");
                }
            }
        }
    }
}
