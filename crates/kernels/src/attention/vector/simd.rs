//! The few vector operations that attention is written in.

use crate::attention::fp8::E4m3;
use half::bf16;

/// A vector of `W` f32.
///
/// # Safety
/// Every method needs the machine to have the instruction set; pointers read or take `W` elements unless said
/// otherwise, at any alignment.
pub(in crate::attention) unsafe trait Simd<const W: usize>:
    Copy + Send + Sync
{
    type V: Copy;

    /// Whether bf16 pages are met as they lie (see `direct.rs`).
    const MEETS_BF16: bool;

    /// Runs `job` compiled for this instruction set.
    unsafe fn run(job: impl Job);

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `y * 2^n`, where the low bits of `shifted` hold `n`; 0 where `s < lowest`.
    unsafe fn scale(y: Self::V, shifted: Self::V, s: Self::V, lowest: Self::V) -> Self::V;
    /// `2 W` numbers: those at even places, those at odd ones.
    unsafe fn load_pairs(from: *const bf16) -> (Self::V, Self::V);
    /// `W` numbers in order.
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    /// `2 W` numbers: those at even places, those at odd ones.
    unsafe fn load_fp8_pairs(from: *const E4m3) -> (Self::V, Self::V);
    /// `W` numbers in order.
    unsafe fn load_fp8(from: *const E4m3) -> Self::V;
    /// Widens a unit of `n` codes of a key (32, or 16 at its end; see `int4.rs`) to `minimum + scale * code`, in the order
    /// in which bf16 numbers are widened. `grid`: scale and minimum.
    unsafe fn unpack_key(words: *const u16, n: usize, grid: (f32, f32), to: *mut f32);
    /// Widens 32 words to their codes, in that order: 4 rows of 32 numbers, `stride` apart.
    unsafe fn unpack_values(words: *const u16, to: *mut f32, stride: usize);
    /// `2 W` numbers in order: those at even places, those at odd ones.
    unsafe fn split_pairs(a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// In lane `i` the sum over row `i`, added in an order that is the same for every row.
    unsafe fn sum_rows(rows: [Self::V; W]) -> Self::V;
    /// Adds products of `n` numbers of `W / 2` rows of bf16 with those of two queries: the sums of the rows with the first, then
    /// those with the second. Rows and queries come with how far apart they are; of queries those at even places come first, of
    /// every `2 W`. Only where [`MEETS_BF16`](Simd::MEETS_BF16); `n` is a multiple of `2 W`, and not zero.
    unsafe fn add_to_two(
        rows: (*const bf16, usize),
        queries: (*const f32, usize),
        n: usize,
        sums: &mut [Self::V; W],
    );
    /// The largest lane.
    unsafe fn largest(v: Self::V) -> f32;
    /// Brings 64 bytes nearer, if they exist.
    unsafe fn prefetch(at: *const u8);
}

/// Something to run inside [`Simd::run`]. Implementations are `inline(always)`.
pub(in crate::attention) trait Job {
    fn run(self);
}
