//! Rows to columns, 16 by 16 numbers of 32 bits.

#[cfg(target_arch = "x86_64")]
pub(super) use wide::{transpose_512, transpose_registers};

/// `a[i][j]` becomes `a[j][i]`.
pub(super) fn transpose(a: &mut [[u32; 16]; 16]) {
    let from = *a;
    for (i, to) in a.iter_mut().enumerate() {
        *to = from.map(|row| row[i]);
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    /// The same.
    ///
    /// # Safety
    /// A caller without AVX-512 in its own features knows that the machine has it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in crate::attention) fn transpose_512(a: &mut [[u32; 16]; 16]) {
        let mut r = [_mm512_setzero_si512(); 16];
        for (r, a) in r.iter_mut().zip(a.iter()) {
            // SAFETY: a row of 16 u32.
            *r = unsafe { _mm512_loadu_si512(a.as_ptr().cast()) };
        }
        let r = transpose_registers(r);
        for (r, a) in r.iter().zip(a.iter_mut()) {
            // SAFETY: a row of 16 u32.
            unsafe { _mm512_storeu_si512(a.as_mut_ptr().cast(), *r) };
        }
    }

    /// The same in registers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in crate::attention) fn transpose_registers(r: [__m512i; 16]) -> [__m512i; 16] {
        exchange_lanes(exchange_inside_lanes(r))
    }

    /// Turns each 4 by 4 round: afterwards lane `l` of row `4 i + j` holds column `4 l + j` of rows `4 i ..`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn exchange_inside_lanes(r: [__m512i; 16]) -> [__m512i; 16] {
        let mut t = r;
        for i in (0..16).step_by(4) {
            let (a, b) = (_mm512_unpacklo_epi32(r[i], r[i + 1]), _mm512_unpackhi_epi32(r[i], r[i + 1]));
            let (c, d) =
                (_mm512_unpacklo_epi32(r[i + 2], r[i + 3]), _mm512_unpackhi_epi32(r[i + 2], r[i + 3]));
            t[i] = _mm512_unpacklo_epi64(a, c);
            t[i + 1] = _mm512_unpackhi_epi64(a, c);
            t[i + 2] = _mm512_unpacklo_epi64(b, d);
            t[i + 3] = _mm512_unpackhi_epi64(b, d);
        }
        t
    }

    /// Turns the 4 by 4 lanes of rows `j, 4 + j, 8 + j, 12 + j` round.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn exchange_lanes(r: [__m512i; 16]) -> [__m512i; 16] {
        let mut t = r;
        for j in 0..4 {
            let low = _mm512_shuffle_i32x4::<0x44>(r[j], r[4 + j]);
            let high = _mm512_shuffle_i32x4::<0xee>(r[j], r[4 + j]);
            let low2 = _mm512_shuffle_i32x4::<0x44>(r[8 + j], r[12 + j]);
            let high2 = _mm512_shuffle_i32x4::<0xee>(r[8 + j], r[12 + j]);
            t[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
            t[4 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
            t[8 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
            t[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_element_finds_its_place() {
        finds_its_place(transpose);
        #[cfg(target_arch = "x86_64")]
        if Isa::Avx512.available() {
            // SAFETY: the machine has AVX-512.
            finds_its_place(|a| unsafe { transpose_512(a) });
        }
    }

    fn finds_its_place(transpose: impl Fn(&mut [[u32; 16]; 16])) {
        let mut a = [[0; 16]; 16];
        for (i, row) in a.iter_mut().enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x = (16 * i + j) as u32;
            }
        }
        transpose(&mut a);
        for (i, row) in a.iter().enumerate() {
            for (j, x) in row.iter().enumerate() {
                assert_eq!(*x as usize, 16 * j + i);
            }
        }
    }
}
