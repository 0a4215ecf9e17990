//! Pages of 8 bits as operands: widened to bf16 where products read them.

use super::adds::Adds;
use super::few::{scores_by_query, weigh_dims};
use super::lean::Few;
use super::local::VALUE_PAGE;
use super::pages::{Asked, Group, Laid, Tiled, fetch};
use super::shape::{PAGES, Shape};
use crate::attention::fp8::{E4m3, wide::widen_line};
use crate::attention::layout::{BLOCK_TOKENS, KV_GROUP};
use std::ops::Range;

/// Bytes of a widened line of values.
const LINE: usize = 2 * BLOCK_TOKENS;

impl Tiled for E4m3 {
    const CODED: bool = false;

    fn suits_few(_: &Shape) -> bool {
        true
    }

    #[inline]
    unsafe fn keys(group: &Group<'_, E4m3>, i: usize, asked: Asked) -> *const u8 {
        let to = group.local.k_pages.wrapping_add(group.place(i) * group.shape.key_page());
        if asked == Asked::First {
            let stride = group.shape.key_stride();
            // SAFETY: the machine has AVX-512 BW; a page of keys has room for its rows.
            unsafe { lay_keys(group.pages[i].k, group.next[i], group.shape.head_dim, stride, to) };
        }
        to
    }

    #[inline]
    unsafe fn values(group: &Group<'_, E4m3>, dims: Range<usize>, asked: Asked) -> [*const u8; PAGES] {
        let first = match group.laid {
            // The keys are done with, and the values of other dims too: what is in the nearest cache stays there.
            Laid::Briefly => group.local.k_pages,
            Laid::ForAll => group.local.v_pages.wrapping_add(dims.start / KV_GROUP * PAGES * VALUE_PAGE),
        };
        let to = [0, 1, 2, 3].map(|i| first.wrapping_add(i * VALUE_PAGE));
        if asked == Asked::First {
            let numbers = dims.start * BLOCK_TOKENS..dims.end * BLOCK_TOKENS;
            for (i, page) in group.pages.iter().enumerate() {
                let kept = if i + 1 == group.pages.len() { group.kept } else { BLOCK_TOKENS };
                let next = group.next[i].wrapping_add(size_of_val(page.k) + numbers.start);
                // SAFETY: as for the keys.
                unsafe { lay_values(&page.v[numbers.clone()], next, kept, to[i]) };
            }
        }
        to.map(|to| to.cast_const())
    }
}

/// A page's keys in rows of whole tiles, `stride` bytes each. As much is asked for at `next`.
///
/// # Safety
/// The machine has AVX-512 BW; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn lay_keys(keys: &[E4m3], next: *const u8, d: usize, stride: usize, to: *mut u8) {
    for (token, key) in keys.chunks_exact(d).enumerate() {
        fetch_lines(next, token * d..(token + 1) * d);
        // SAFETY: by this function's contract.
        unsafe {
            let to = to.add(token * stride);
            widen_line(key.as_ptr(), to, d);
            to.add(2 * d).write_bytes(0, stride - 2 * d);
        }
    }
}

/// Lines of values up to token `kept`, and zeros. As much is asked for at `next`.
///
/// # Safety
/// The machine has AVX-512 BW; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn lay_values(values: &[E4m3], next: *const u8, kept: usize, to: *mut u8) {
    for (dim, line) in values.chunks_exact(BLOCK_TOKENS).enumerate() {
        fetch_lines(next, dim * BLOCK_TOKENS..(dim + 1) * BLOCK_TOKENS);
        // SAFETY: by this function's contract.
        unsafe {
            let to = to.add(dim * LINE);
            widen_line(line.as_ptr(), to, BLOCK_TOKENS);
            to.add(2 * kept).write_bytes(0, LINE - 2 * kept);
        }
    }
}

impl Few for E4m3 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn scores<A: Adds, const L: usize>(
        group: &Group<'_, E4m3>,
        q: *const u8,
        _: *const f32,
        s: *mut f32,
    ) {
        let (steps, stride) = (group.shape.steps(), group.shape.key_stride());
        for i in 0..group.pages.len() {
            // SAFETY: by the trait's contract.
            unsafe {
                let k = <E4m3 as Tiled>::keys(group, i, Asked::First);
                scores_by_query::<A, L>(k, stride, steps, q, s.add(i * BLOCK_TOKENS), k);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn means<A: Adds, const L: usize>(group: &Group<'_, E4m3>, p: *const u8, means: *mut f32) {
        let n = group.pages.len();
        for first in (0..group.shape.head_dim).step_by(KV_GROUP) {
            let dims = group.shape.dims(first);
            // SAFETY: by the trait's contract; a dim's values in a page take 64 bytes.
            unsafe {
                let v = <E4m3 as Tiled>::values(group, dims.clone(), Asked::First);
                weigh_dims::<A, L>(&v[..n], &v[..n], group.shape, dims, p, means);
            }
        }
    }
}

/// Asks for lines of memory that begin in `bytes` from `at` on, if they are there.
fn fetch_lines(at: *const u8, bytes: Range<usize>) {
    let first = bytes.start.next_multiple_of(64);
    (first..bytes.end).step_by(64).for_each(|line| fetch(at.wrapping_add(line)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::Element;
    use half::bf16;

    #[test]
    fn operands_have_whole_rows_and_nothing_that_was_not_written() {
        if !crate::Isa::Avx512.available() {
            return;
        }
        const D: usize = 48;
        // No key or value of this test is zero or NaN.
        let page: Vec<E4m3> = (0..D * BLOCK_TOKENS).map(|i| E4m3(1 + (i % 100) as u8)).collect();
        let (stride, kept) = (2 * 64, 19);
        let mut keys = vec![bf16::NAN; BLOCK_TOKENS * stride / 2];
        let mut values = vec![bf16::NAN; D * BLOCK_TOKENS];
        // SAFETY: the machine has AVX-512, and there is room.
        unsafe {
            lay_keys(&page, page.as_ptr().cast(), D, stride, keys.as_mut_ptr().cast());
            lay_values(&page, page.as_ptr().cast(), kept, values.as_mut_ptr().cast());
        }
        let is = |wide: bf16, place: Option<usize>| wide.to_f32() == place.map_or(0.0, |i| page[i].to_f32());
        for (i, key) in keys.iter().enumerate() {
            let (token, dim) = (i / (stride / 2), i % (stride / 2));
            assert!(is(*key, (dim < D).then_some(token * D + dim)), "token {token}, dim {dim}: {key}");
        }
        for (i, value) in values.iter().enumerate() {
            assert!(is(*value, (i % BLOCK_TOKENS < kept).then_some(i)), "number {i}: {value}");
        }
    }
}
