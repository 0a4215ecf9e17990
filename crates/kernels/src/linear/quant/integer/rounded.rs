//! Rows of x, rounded to whole numbers group by group.

use half::bf16;

use super::super::plan::GROUP;
use crate::mat::Mat;

/// What a number of the upper bytes is worth, in ones of the lower.
pub(super) const UPPER: i32 = 128;

/// Of one group of 32 k in one row.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub(super) struct Group {
    /// The numbers, in the order that was asked for; of 15 bits [`UPPER`] times these and the lower ones.
    pub(super) upper: [i8; GROUP],
    /// -64 to 63, zero where the upper ones are all.
    pub(super) lower: [i8; GROUP],
    /// What one of them stands for.
    pub(super) size: f32,
    /// `size` times the sum of the numbers, for each part; the first part is all 32 k where there is but one.
    pub(super) sums: [f32; 2],
}

/// How much of a number is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    /// -127 to 127.
    Eight,
    /// -16,256 to 16,256: two bytes, each of which is multiplied.
    Fifteen,
}

impl Bits {
    /// The largest number.
    const fn most(self) -> i32 {
        match self {
            Bits::Eight => 127,
            Bits::Fifteen => 127 * UPPER,
        }
    }
}

/// In which order of k a group's numbers lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// 0 to 31.
    Natural,
    /// Of every eight the four even ones first.
    EvensFirst,
}

/// Groups of 32 k of all rows of `x`: those of the first group for each row, then those of the next. k beyond the end is zero.
/// NaN and infinite values make NaN of every sum that they are in.
#[inline(always)]
pub(super) fn round(x: Mat<'_, bf16>, bits: Bits, order: Order, parts: usize, out: &mut [Group]) {
    for row in 0..x.rows() {
        for (group, values) in x.row(row).chunks(GROUP).enumerate() {
            out[group * x.rows() + row] = round_group(values, bits, order, parts);
        }
    }
}

#[inline(always)]
fn round_group(values: &[bf16], bits: Bits, order: Order, parts: usize) -> Group {
    let mut x = [0.0; GROUP];
    for (x, value) in x.iter_mut().zip(values) {
        *x = f32::from_bits(u32::from(value.to_bits()) << 16);
    }
    // As bits, among which NaN is the largest.
    let largest = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)));
    let most = bits.most() as f32;
    let size = largest / most;
    // The inverse of less would be infinite: such numbers are zero.
    let inverse = if largest < 1e-34 { 0.0 } else { most / largest };
    let numbers = x.map(|x| nearest(x * inverse));
    let sum = |numbers: &[i32]| size * numbers.iter().sum::<i32>() as f32;
    let sums = match parts {
        1 => [sum(&numbers), 0.0],
        _ => [sum(&numbers[..16]), sum(&numbers[16..])],
    };
    let numbers: [i32; GROUP] = std::array::from_fn(|i| numbers[order.k(i)]);
    let upper = match bits {
        Bits::Eight => numbers,
        Bits::Fifteen => numbers.map(|n| (n + UPPER / 2).div_euclid(UPPER)),
    };
    let lower = match bits {
        Bits::Eight => [0; GROUP],
        Bits::Fifteen => std::array::from_fn(|i| (numbers[i] - UPPER * upper[i]) as i8),
    };
    Group { upper: upper.map(|n| n as i8), lower, size, sums }
}

/// The nearest whole number of one that is small, ties to even, by adding what leaves no bits for fractions.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
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

impl Group {
    /// The numbers, whole.
    pub(super) fn numbers(&self, bits: Bits) -> [i32; GROUP] {
        std::array::from_fn(|i| match bits {
            Bits::Eight => i32::from(self.upper[i]),
            Bits::Fifteen => UPPER * i32::from(self.upper[i]) + i32::from(self.lower[i]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: [Bits; 2] = [Bits::Eight, Bits::Fifteen];

    #[test]
    fn numbers_are_within_half_a_size() {
        let values: Vec<bf16> = (0..40).map(|i| bf16::from_f32((i * i % 23) as f32 - 9.5)).collect();
        for (order, bits) in
            [Order::Natural, Order::EvensFirst].into_iter().flat_map(|o| BITS.map(|b| (o, b)))
        {
            let mut groups = [Group::default(); 2];
            round(Mat::new(&values, 1, 40), bits, order, 1, &mut groups);
            for (i, (number, size)) in
                groups.iter().flat_map(|g| g.numbers(bits).map(|n| (n, g.size))).enumerate()
            {
                let k = i / GROUP * GROUP + order.k(i % GROUP);
                let x = values.get(k).map_or(0.0, |x| x.to_f32());
                assert!((number as f32 * size - x).abs() <= 0.5001 * size, "{k}: {number} of {size}, {x}");
            }
            let sum: i32 = groups[0].numbers(bits).iter().sum();
            assert_eq!(groups[0].sums, [groups[0].size * sum as f32, 0.0]);
        }
    }

    #[test]
    fn the_largest_is_the_last_number_and_halves_go_to_the_even_one() {
        let mut values = [bf16::ZERO; GROUP];
        for (value, x) in values.iter_mut().zip([127.0, -127.0, 0.5, 1.5, -2.5]) {
            *value = bf16::from_f32(x);
        }
        let group = round_group(&values, Bits::Eight, Order::Natural, 2);
        assert_eq!((group.size, &group.upper[..5]), (1.0, &[127, -127, 0, 2, -2][..]));
        let group = round_group(&values, Bits::Fifteen, Order::Natural, 2);
        assert_eq!(group.numbers(Bits::Fifteen)[..5], [16_256, -16_256, 64, 192, -320]);
    }

    #[test]
    fn nothing_that_is_no_number_is_lost() {
        for bits in BITS {
            for bad in [f32::NAN, f32::INFINITY] {
                let group = round_group(&[bf16::from_f32(bad), bf16::ONE], bits, Order::Natural, 1);
                assert!(!group.size.is_finite(), "{bad}");
            }
            let group = round_group(&[bf16::from_f32(1e-37); 3], bits, Order::Natural, 1);
            assert_eq!((group.numbers(bits), group.sums), ([0; GROUP], [0.0; 2]));
        }
    }
}
