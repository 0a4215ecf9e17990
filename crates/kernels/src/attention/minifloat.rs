//! Rounding to floats of fewer bits that saturate, which is how f16 and fp8 pages are written.

/// A format: a sign, bits of exponent and bits of mantissa.
pub(super) struct Minifloat {
    /// All bits of a code.
    pub(super) bits: u32,
    /// Those of its mantissa.
    pub(super) mantissa: u32,
    /// The code of the largest number.
    pub(super) largest: u32,
    /// That of what is no number.
    pub(super) nan: u32,
}

impl Minifloat {
    /// Exponents of f32 are larger by so much.
    #[inline(always)]
    pub(super) const fn bias(&self) -> u32 {
        128 - (1 << (self.bits - self.mantissa - 2))
    }

    /// Bits of an f32's mantissa that are dropped.
    #[inline(always)]
    pub(super) const fn dropped(&self) -> u32 {
        23 - self.mantissa
    }

    /// The code of the nearest number, ties to even: of the largest where that is too small, infinities too; a NaN stays one.
    /// Without a branch, so that a loop of it becomes vector code.
    #[inline(always)]
    pub(super) fn nearest(&self, value: f32) -> u32 {
        let (bias, dropped) = (self.bias(), self.dropped());
        // As an f32: below it steps are equal, and the last place of `steps` is one of them.
        let least_normal = (bias + 1) << 23;
        let steps = f32::from_bits((bias + dropped + 1) << 23);
        let bits = value.to_bits();
        let (sign, magnitude) = (bits >> 31 << (self.bits - 1), bits & 0x7fff_ffff);
        let half = (1 << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
        let normal = ((magnitude + half) >> dropped).wrapping_sub(bias << self.mantissa).min(self.largest);
        let small = (f32::from_bits(magnitude) + steps).to_bits().wrapping_sub(steps.to_bits());
        let code = if magnitude < least_normal { small } else { normal };
        sign | if value.is_nan() { self.nan } else { code }
    }
}
