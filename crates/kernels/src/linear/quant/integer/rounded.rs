//! Rows of x, rounded to whole numbers group by group.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use half::bf16;

use super::super::plan::GROUP;
use crate::mat::Mat;

/// What a number of the upper bytes is worth, in ones of the lower.
pub(super) const UPPER: i32 = 128;

/// Of one group of 32 k in one row: numbers of 8 bits, or of 15.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Group<N> {
    /// The numbers, in the order that was asked for.
    pub(super) numbers: N,
    /// What one of them stands for.
    pub(super) size: f32,
    /// `size` times the sum of the numbers, for each part; the first part is all 32 k where there is but one.
    pub(super) sums: [f32; 2],
    /// The sum of all numbers.
    pub(super) sum: i32,
}

/// Numbers in a byte, -127 to 127; in two bytes [`UPPER`] times these, and -64 to 63.
pub(super) type Bytes<const BYTES: usize> = [[i8; GROUP]; BYTES];
/// Numbers in words.
pub(super) type Words = [i16; GROUP];

/// How the numbers of a group lie.
pub(super) trait Numbers: Copy + Send + Sync {
    /// All zero.
    const ZERO: Self;

    /// In this order.
    fn of(numbers: [i32; GROUP]) -> Self;

    /// [`of`](Numbers::of) vectors of eight in order of k, in this one.
    ///
    /// # Safety
    /// The machine has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn of_vectors(numbers: [std::arch::x86_64::__m256i; 4], order: Order) -> Self;
}

/// How much of a number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    /// -127 to 127.
    Eight,
    /// -16,256 to 16,256.
    Fifteen,
}

/// A float that has no bits for fractions, nor have those near it.
const SHIFT: f32 = 12_582_912.0;

/// In which order of k a group's numbers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// 0 to 31.
    Natural,
    /// Of every eight the four even ones first.
    EvensFirst,
}

/// What becomes of a group of x.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    pub(super) bits: Bits,
    pub(super) order: Order,
    /// Into how many parts, with sums of their own, a group falls.
    pub(super) parts: usize,
}

/// Group number `group` of 32 k of every row of `x`. k beyond the end is zero. NaN and infinite values make NaN of
/// every sum that they are in.
#[inline(always)]
pub(super) fn round<N: Numbers>(x: Mat<'_, bf16>, group: usize, how: Rounding, out: &mut [Group<N>]) {
    let k = group * GROUP..x.cols().min((group + 1) * GROUP);
    for (row, out) in out.iter_mut().enumerate().take(x.rows()) {
        *out = round_group(&x.row(row)[k.clone()], how);
    }
}

#[inline(always)]
fn round_group<N: Numbers>(values: &[bf16], Rounding { bits, order, parts }: Rounding) -> Group<N> {
    let mut x = [0.0; GROUP];
    for (x, value) in x.iter_mut().zip(values) {
        *x = f32::from_bits(u32::from(value.to_bits()) << 16);
    }
    // As bits, among which NaN is the largest.
    let largest = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
    let (size, inverse) = scale(bits, largest);
    let numbers = x.map(|x| nearest(x * inverse));
    // What is no number may be anything, as it is in vectors.
    let sum = |numbers: &[i32]| numbers.iter().copied().fold(0, i32::wrapping_add);
    let halves = [sum(&numbers[..16]), sum(&numbers[16..])];
    let (sum, sums) = sums_of(size, halves, parts);
    Group { numbers: N::of(std::array::from_fn(|i| numbers[order.k(i)])), size, sums, sum }
}

impl<const BYTES: usize> Numbers for Bytes<BYTES> {
    const ZERO: Bytes<BYTES> = [[0; GROUP]; BYTES];

    #[inline(always)]
    fn of(mut left: [i32; GROUP]) -> Bytes<BYTES> {
        let mut bytes = Self::ZERO;
        for (byte, one) in bytes.iter_mut().zip((0..BYTES as u32).rev().map(|power| UPPER.pow(power))) {
            let upper = left.map(|n| (n + one / 2).div_euclid(one));
            left = std::array::from_fn(|i| left[i] - one * upper[i]);
            *byte = upper.map(|n| n as i8);
        }
        bytes
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn of_vectors(numbers: [std::arch::x86_64::__m256i; 4], order: Order) -> Bytes<BYTES> {
        // SAFETY: the caller's.
        unsafe { avx2::bytes(numbers, order) }
    }
}

impl Numbers for Words {
    const ZERO: Words = [0; GROUP];

    #[inline(always)]
    fn of(numbers: [i32; GROUP]) -> Words {
        // What comes of NaN and infinities is anything, and the same as of vectors.
        numbers.map(|n| n.clamp(i16::MIN.into(), i16::MAX.into()) as i16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn of_vectors(numbers: [std::arch::x86_64::__m256i; 4], order: Order) -> Words {
        assert!(order == Order::Natural, "words lie in order of k");
        // SAFETY: the caller's.
        unsafe { avx2::words(numbers) }
    }
}

/// What a number stands for where this is the largest value, NaN if that is none; and its inverse.
#[inline(always)]
fn scale(bits: Bits, largest: f32) -> (f32, f32) {
    let most = match bits {
        Bits::Eight => 127.0,
        Bits::Fifteen => (127 * UPPER) as f32,
    };
    match largest {
        // The inverse would be infinite: such numbers are zero.
        ..1e-34 => (largest / most, 0.0),
        _ if largest.is_finite() => (largest / most, most / largest),
        _ => (f32::NAN, 0.0),
    }
}

/// The sum of all numbers, and those of the parts in the unit of x.
#[inline(always)]
fn sums_of(size: f32, halves: [i32; 2], parts: usize) -> (i32, [f32; 2]) {
    let sum = halves[0].wrapping_add(halves[1]);
    (sum, if parts == 1 { [size * sum as f32, 0.0] } else { halves.map(|sum| size * sum as f32) })
}

/// The nearest whole number of one that is small, ties to even, by adding what leaves no bits for fractions.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

impl Order {
    #[inline(always)]
    const fn k(self, i: usize) -> usize {
        match self {
            Order::Natural => i,
            Order::EvensFirst => i / 8 * 8 + i % 4 * 2 + i % 8 / 4,
        }
    }
}

impl<N: Numbers> Group<N> {
    /// All zero.
    pub(super) const ZERO: Group<N> = Group { numbers: N::ZERO, size: 0.0, sums: [0.0; 2], sum: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_half_a_size() {
        for order in [Order::Natural, Order::EvensFirst] {
            within_half_a_size(Bits::Eight, order);
            within_half_a_size(Bits::Fifteen, order);
        }
    }

    fn whole(group: &Group<Words>) -> [i32; GROUP] {
        group.numbers.map(i32::from)
    }

    fn within_half_a_size(bits: Bits, order: Order) {
        let values: Vec<bf16> = (0..40).map(|i| bf16::from_f32((i * i % 23) as f32 - 9.5)).collect();
        for i in 0..2 {
            let mut group = [Group::ZERO];
            round(Mat::new(&values, 1, 40), i, Rounding { bits, order, parts: 1 }, &mut group);
            let [group] = group;
            for (place, number) in whole(&group).into_iter().enumerate() {
                let k = i * GROUP + order.k(place);
                let x = values.get(k).map_or(0.0, |x| x.to_f32());
                let got = number as f32 * group.size;
                assert!((got - x).abs() <= 0.5001 * group.size, "{k}: {number} of {}, {x}", group.size);
            }
            let sum: i32 = whole(&group).iter().sum();
            assert_eq!((group.sum, group.sums), (sum, [group.size * sum as f32, 0.0]));
        }
    }

    #[test]
    fn the_largest_is_the_last_number_and_halves_go_to_the_even_one() {
        let mut values = [bf16::ZERO; GROUP];
        for (value, x) in values.iter_mut().zip([127.0, -127.0, 0.5, 1.5, -2.5]) {
            *value = bf16::from_f32(x);
        }
        let group = rounded(&values, Bits::Eight);
        assert_eq!((group.size, &group.numbers[..5]), (1.0, &[127, -127, 0, 2, -2][..]));
        let group = rounded(&values, Bits::Fifteen);
        assert_eq!(group.numbers[..5], [16_256, -16_256, 64, 192, -320]);
    }

    fn rounded(values: &[bf16], bits: Bits) -> Group<Words> {
        round_group(values, Rounding { bits, order: Order::Natural, parts: 2 })
    }

    #[test]
    fn bytes_are_the_same_numbers_as_words() {
        let numbers = std::array::from_fn(|i| 16_256 - 1049 * i as i32);
        let [upper, lower] = Bytes::<2>::of(numbers);
        let whole = std::array::from_fn(|i| UPPER * i32::from(upper[i]) + i32::from(lower[i]));
        assert_eq!((whole, Words::of(numbers).map(i32::from)), (numbers, numbers));
    }

    #[test]
    fn nothing_that_is_no_number_is_lost() {
        for bits in [Bits::Eight, Bits::Fifteen] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let group = rounded(&[bf16::from_f32(bad), bf16::ONE], bits);
                assert!(group.size.is_nan(), "{bad}");
            }
            let group = rounded(&[bf16::from_f32(1e-37); 3], bits);
            assert_eq!((group.numbers, group.sums), ([0; GROUP], [0.0; 2]));
        }
    }
}
