//! Kernels over single rows: norms, embedding look-up, the choice of rows to sample.
//!
//! They are written once, in plain loops over 16 fixed lanes, and compiled once for each instruction
//! set: the lanes fix the order of every sum, so all of them give the same bits.

mod cap;
mod norm;
mod round;
mod rows;

pub use cap::cap;
pub(crate) use cap::tanh;
pub use norm::{Norm, NormKind, add_norm, norm, norm_columns};
pub use round::{round_to_bf16, widen_to_f32};
pub(crate) use rows::for_rows;
pub use rows::{add_rows, copy_rows};

/// Lanes of every sum, on every machine: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// Compiles `$body` (an `#[inline(always)]` function) once per instruction set and calls the one for `$isa`; for given types, or
/// for each that has a trait.
macro_rules! per_isa {
    ($isa:expr, $body:ident :: <$t:ident : $bound:ident> ( $($arg:ident : $ty:ty),* )) => {
        $crate::elementwise::per_isa!(@ $isa, $body, [<$t: $bound>], [::<$t>], [$t], [$($arg: $ty),*])
    };
    ($isa:expr, $body:ident :: <$($t:ty),*> ( $($arg:ident : $ty:ty),* )) => {
        $crate::elementwise::per_isa!(@ $isa, $body, [], [], [$($t),*], [$($arg: $ty),*])
    };
    (@ $isa:expr, $body:ident, [$($generic:tt)*], [$($of:tt)*], [$($t:ty),*], [$($arg:ident : $ty:ty),*]) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
        fn avx512 $($generic)* ($($arg: $ty),*) { $body::<$($t),*>($($arg),*) }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2 $($generic)* ($($arg: $ty),*) { $body::<$($t),*>($($arg),*) }
        match $isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` other than scalar is only made where the machine has the instructions.
            $crate::Isa::Amx | $crate::Isa::Avx512Bf16 | $crate::Isa::Avx512 => unsafe { avx512 $($of)* ($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            $crate::Isa::Avx2 => unsafe { avx2 $($of)* ($($arg),*) },
            _ => $body::<$($t),*>($($arg),*),
        }
    }};
}
pub(crate) use per_isa;

/// A number that a row of activations is stored as.
pub trait Element: Copy + Send + Sync + bytemuck::Pod {
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// Exact.
    fn to_f32(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for half::bf16 {
    /// Branch-free, so that loops over it vectorise; a NaN keeps its sign and stays one.
    #[inline(always)]
    fn from_f32(value: f32) -> half::bf16 {
        crate::round::to_bf16(value)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}
