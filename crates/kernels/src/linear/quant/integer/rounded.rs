//! Rows of x, rounded to whole numbers group by group.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use half::bf16;

use super::super::plan::GROUP;
use crate::mat::Mat;

/// What a number of the upper bytes is worth, in ones of the lower.
pub(super) const UPPER: i32 = 128;

/// Of one group of 32 k in one row: numbers of 8 bits, or of 15 in two bytes.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Group<const BYTES: usize> {
    /// The numbers, in the order that was asked for: -127 to 127; of two bytes [`UPPER`] times these and -64 to 63.
    pub(super) numbers: [[i8; GROUP]; BYTES],
    /// What one of them stands for.
    pub(super) size: f32,
    /// `size` times the sum of the numbers, for each part; the first part is all 32 k where there is but one.
    pub(super) sums: [f32; 2],
    /// The sum of all numbers.
    pub(super) sum: i32,
}

/// How much of a number is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    /// -127 to 127: one byte.
    Eight,
    /// -16,256 to 16,256: two bytes, each of which is multiplied.
    Fifteen,
}

/// A float that has no bits for fractions, nor have those near it.
const SHIFT: f32 = 12_582_912.0;

/// In which order of k a group's numbers lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// 0 to 31.
    Natural,
    /// Of every eight the four even ones first.
    EvensFirst,
}

/// Group number `group` of 32 k of every row of `x`. k beyond the end is zero. NaN and infinite values make NaN of
/// every sum that they are in.
#[inline(always)]
pub(super) fn round<const BYTES: usize>(
    x: Mat<'_, bf16>,
    group: usize,
    order: Order,
    parts: usize,
    out: &mut [Group<BYTES>],
) {
    let k = group * GROUP..x.cols().min((group + 1) * GROUP);
    for (row, out) in out.iter_mut().enumerate().take(x.rows()) {
        *out = round_group(&x.row(row)[k.clone()], order, parts);
    }
}

#[inline(always)]
fn round_group<const BYTES: usize>(values: &[bf16], order: Order, parts: usize) -> Group<BYTES> {
    let mut x = [0.0; GROUP];
    for (x, value) in x.iter_mut().zip(values) {
        *x = f32::from_bits(u32::from(value.to_bits()) << 16);
    }
    // As bits, among which NaN is the largest.
    let largest = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
    let (size, inverse) = scale::<BYTES>(largest);
    let numbers = x.map(|x| nearest(x * inverse));
    let sum = |numbers: &[i32]| numbers.iter().sum::<i32>();
    let halves = [sum(&numbers[..16]), sum(&numbers[16..])];
    let (sum, sums) = sums_of(size, halves, parts);
    let mut left: [i32; GROUP] = std::array::from_fn(|i| numbers[order.k(i)]);
    let mut bytes = [[0; GROUP]; BYTES];
    for (byte, one) in bytes.iter_mut().zip((0..BYTES as u32).rev().map(|power| UPPER.pow(power))) {
        let upper = left.map(|n| (n + one / 2).div_euclid(one));
        left = std::array::from_fn(|i| left[i] - one * upper[i]);
        *byte = upper.map(|n| n as i8);
    }
    Group { numbers: bytes, size, sums, sum }
}

/// What a number stands for where this is the largest value, and its inverse.
#[inline(always)]
fn scale<const BYTES: usize>(largest: f32) -> (f32, f32) {
    let most = (127 * UPPER.pow(BYTES as u32 - 1)) as f32;
    // The inverse of less would be infinite: such numbers are zero.
    (largest / most, if largest < 1e-34 { 0.0 } else { most / largest })
}

/// The sum of all numbers, and those of the parts in the unit of x.
#[inline(always)]
fn sums_of(size: f32, halves: [i32; 2], parts: usize) -> (i32, [f32; 2]) {
    let sum = halves[0] + halves[1];
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

impl<const BYTES: usize> Group<BYTES> {
    /// All zero.
    pub(super) const ZERO: Group<BYTES> =
        Group { numbers: [[0; GROUP]; BYTES], size: 0.0, sums: [0.0; 2], sum: 0 };

    /// The numbers, whole.
    pub(super) fn whole(&self) -> [i32; GROUP] {
        std::array::from_fn(|i| self.numbers.iter().fold(0, |n, byte| UPPER * n + i32::from(byte[i])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_half_a_size() {
        for order in [Order::Natural, Order::EvensFirst] {
            within_half_a_size::<1>(order);
            within_half_a_size::<2>(order);
        }
    }

    fn within_half_a_size<const BYTES: usize>(order: Order) {
        let values: Vec<bf16> = (0..40).map(|i| bf16::from_f32((i * i % 23) as f32 - 9.5)).collect();
        for i in 0..2 {
            let mut group = [Group::<BYTES>::ZERO];
            round(Mat::new(&values, 1, 40), i, order, 1, &mut group);
            let [group] = group;
            for (place, number) in group.whole().into_iter().enumerate() {
                let k = i * GROUP + order.k(place);
                let x = values.get(k).map_or(0.0, |x| x.to_f32());
                let got = number as f32 * group.size;
                assert!((got - x).abs() <= 0.5001 * group.size, "{k}: {number} of {}, {x}", group.size);
            }
            let sum: i32 = group.whole().iter().sum();
            assert_eq!((group.sum, group.sums), (sum, [group.size * sum as f32, 0.0]));
        }
    }

    #[test]
    fn the_largest_is_the_last_number_and_halves_go_to_the_even_one() {
        let mut values = [bf16::ZERO; GROUP];
        for (value, x) in values.iter_mut().zip([127.0, -127.0, 0.5, 1.5, -2.5]) {
            *value = bf16::from_f32(x);
        }
        let group = round_group::<1>(&values, Order::Natural, 2);
        assert_eq!((group.size, &group.numbers[0][..5]), (1.0, &[127, -127, 0, 2, -2][..]));
        let group = round_group::<2>(&values, Order::Natural, 2);
        assert_eq!(group.whole()[..5], [16_256, -16_256, 64, 192, -320]);
    }

    #[test]
    fn nothing_that_is_no_number_is_lost() {
        nothing_is_lost::<1>();
        nothing_is_lost::<2>();
    }

    fn nothing_is_lost<const BYTES: usize>() {
        for bad in [f32::NAN, f32::INFINITY] {
            let group = round_group::<BYTES>(&[bf16::from_f32(bad), bf16::ONE], Order::Natural, 1);
            assert!(!group.size.is_finite(), "{bad}");
        }
        let group = round_group::<BYTES>(&[bf16::from_f32(1e-37); 3], Order::Natural, 1);
        assert_eq!((group.whole(), group.sums), ([0; GROUP], [0.0; 2]));
    }
}
