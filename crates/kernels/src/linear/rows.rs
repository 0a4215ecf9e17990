//! Rows of x as they are multiplied: as tiles, a few rows of 32 k together, so that what is multiplied at once is one stretch of
//! memory; as f32.

use std::ops::Range;

use half::bf16;

use crate::linear::pack::GROUP;
use crate::mat::Mat;

/// Copies groups `groups` of rows `first..first + rows` to `out`: a tile of `rows` rows of 64 bytes for
/// each group in turn. Rows beyond the end of x and k beyond its end become zero.
///
/// # Panics
/// If `out` is too short.
#[inline(always)]
pub(crate) fn copy_tiles(
    x: Mat<'_, bf16>,
    first: usize,
    rows: usize,
    groups: Range<usize>,
    out: &mut [[bf16; GROUP]],
) {
    let out = &mut out[..rows * groups.len()];
    if out.is_empty() {
        return;
    }
    for r in 0..rows {
        let lines = &mut out[r..];
        if first + r < x.rows() {
            copy_row(x.row(first + r), groups.clone(), lines, rows);
        } else {
            (0..groups.len()).for_each(|i| lines[i * rows] = [bf16::ZERO; GROUP]);
        }
    }
}

/// Group by group to every `step`th line.
#[inline(always)]
fn copy_row(row: &[bf16], groups: Range<usize>, lines: &mut [[bf16; GROUP]], step: usize) {
    let (whole, rest) = row.as_chunks::<GROUP>();
    let full = &whole[groups.start.min(whole.len())..groups.end.min(whole.len())];
    for (i, values) in full.iter().enumerate() {
        lines[i * step] = *values;
    }
    for i in full.len()..groups.len() {
        let line = &mut lines[i * step];
        *line = [bf16::ZERO; GROUP];
        if i == full.len() && groups.start + i == whole.len() {
            line[..rest.len()].copy_from_slice(rest);
        }
    }
}

/// Rows as f32, `k` apart, zero behind their ends.
pub(crate) fn widen_rows(x: Mat<'_, bf16>, k: usize, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(k.max(1)).enumerate() {
        let (values, rest) = out.split_at_mut(x.cols());
        values.iter_mut().zip(x.row(row)).for_each(|(out, x)| *out = x.to_f32());
        rest.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rows_and_columns_are_zero() {
        let data = vec![bf16::ONE; 3 * 40];
        let mut out = vec![[bf16::NAN; GROUP]; 4];
        copy_tiles(Mat::new(&data, 3, 40), 2, 2, 0..2, &mut out);
        let ones: Vec<usize> = out.iter().map(|l| l.iter().filter(|v| **v == bf16::ONE).count()).collect();
        let zeros: Vec<usize> = out.iter().map(|l| l.iter().filter(|v| **v == bf16::ZERO).count()).collect();
        assert_eq!((ones, zeros), (vec![32, 0, 8, 0], vec![0, 32, 24, 32]));
    }
}
