//! The few vector operations that attention is written in.

use crate::attention::f16::F16;
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
    /// Whole numbers: `2 W` words of 16 bits, or `W` of 32.
    type Words: Copy;

    /// Runs `job` compiled for this instruction set.
    unsafe fn run(job: impl Job);

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `y * 2^n`, where the low bits of `shifted` hold `n`; 0 where `s < lowest`, and NaN where `s` is.
    unsafe fn scale(y: Self::V, shifted: Self::V, s: Self::V, lowest: Self::V) -> Self::V;
    /// `2 W` numbers: those at even places, those at odd ones.
    unsafe fn load_pairs(from: *const bf16) -> (Self::V, Self::V);
    /// `W` numbers in order.
    unsafe fn load_bf16(from: *const bf16) -> Self::V;
    /// `2 W` numbers: those at even places, those at odd ones.
    unsafe fn load_fp8_pairs(from: *const E4m3) -> (Self::V, Self::V);
    /// `W` numbers in order.
    unsafe fn load_f16(from: *const F16) -> Self::V;
    /// `W` numbers in order.
    unsafe fn load_fp8(from: *const E4m3) -> Self::V;
    /// `2 W` words.
    unsafe fn load_words(from: *const u16) -> Self::Words;
    /// Two words, over and over.
    unsafe fn splat_words(from: *const u32) -> Self::Words;
    unsafe fn zero_words() -> Self::Words;
    /// Two vectors of numbers as `2 W` words in order, rounded to whole ones.
    unsafe fn store_words(to: *mut i16, low: Self::V, high: Self::V);
    /// The code at `place` of each word.
    unsafe fn codes(words: Self::Words, place: usize) -> Self::Words;
    /// Adds products of words that have a sign, two side by side, to `W` whole numbers.
    unsafe fn add_products(sums: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `W` whole numbers as they are, in f32.
    unsafe fn floats(whole: Self::Words) -> Self::V;
    /// Turns `W` rows of 8 words round, which are `apart` words apart: line `i` has words `2 i` and `2 i + 1` of each row in a lane.
    unsafe fn turn_words(rows: *const u16, apart: usize) -> [Self::V; 4];
    /// `2 W` numbers in order: those at even places, those at odd ones.
    unsafe fn split_pairs(a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// In lane `i` the sum over row `i`, added in an order that is the same for every row.
    unsafe fn sum_rows(rows: [Self::V; W]) -> Self::V;
    /// In lane `i` the sum over row `i` of `W` whole numbers.
    unsafe fn sum_whole(rows: [Self::Words; W]) -> Self::Words;
    /// Adds products of `n` numbers of `W / 2` rows of bf16 with those of two queries: the sums of the rows with the first, then
    /// those with the second. Rows and queries come with how far apart they are; of queries those at even places come first, of
    /// every `2 W`. `n` is a multiple of `2 W`, and not zero.
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
