//! The two types that queries, keys, values and results are stored as.

use super::layout::KvDtype;
use crate::mat::{Mat, MatMut};
use half::bf16;

/// A stored element: arithmetic is f32, a store rounds once to nearest even.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {
    /// The tag of this type.
    const DTYPE: KvDtype;
    /// The value.
    fn widen(self) -> f32;
    /// The nearest element.
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: KvDtype = KvDtype::F32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
}

impl Element for bf16 {
    const DTYPE: KvDtype = KvDtype::Bf16;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    /// Without branches, so that loops over it become vector code. A NaN stays one.
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        let bits = x.to_bits();
        let nearest_even = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        bf16::from_bits(if x.is_nan() { 0x7fc0 } else { (nearest_even >> 16) as u16 })
    }
}

/// Rows to read, of either type.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// bf16 rows.
    Bf16(Mat<'a, bf16>),
    /// f32 rows.
    F32(Mat<'a, f32>),
}

/// Rows to write, of either type.
#[derive(Debug)]
pub enum RowsMut<'a> {
    /// bf16 rows.
    Bf16(MatMut<'a, bf16>),
    /// f32 rows.
    F32(MatMut<'a, f32>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_is_the_nearest_bf16() {
        for bits in (0..=u32::MAX).step_by(9973) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Element>::narrow(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x:e}");
        }
    }
}
