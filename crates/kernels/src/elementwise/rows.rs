//! Moving whole rows.

use super::Element;
use crate::Team;
use crate::team::Stretches;

/// Calls `f(row, row of out)` for every row, which workers take as they come: one may be slower than another.
pub(crate) fn for_rows<T: Element>(
    team: &Team,
    out: &mut [T],
    cols: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let rows = out.len() / cols;
    let base = SendPtr(out.as_mut_ptr());
    let stretches = Stretches::several(rows, 1, team.threads());
    team.run(|w| {
        for row in stretches.of(w.index).flatten() {
            // SAFETY: each row lies inside `out` and is visited by one worker only.
            let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(row * cols), cols) };
            f(row, out);
        }
    });
}

/// A pointer that workers may share because they write disjoint rows behind it.
struct SendPtr<T>(*mut T);
// SAFETY: only disjoint rows are written through it (see `for_rows`).
unsafe impl<T> Sync for SendPtr<T> {}
impl<T> SendPtr<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// `out[i] = x[rows[i]]`, both of `cols` columns.
pub fn copy_rows<T: Element>(team: &Team, x: &[T], cols: usize, rows: &[u32], out: &mut [T]) {
    assert_eq!(out.len(), rows.len() * cols);
    for_rows(team, out, cols, |i, out| out.copy_from_slice(&x[rows[i] as usize * cols..][..cols]));
}

/// `out[i] += table[rows[i]]`, both of `cols` columns: learned positions.
pub fn add_rows(team: &Team, table: &[f32], cols: usize, rows: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), rows.len() * cols);
    for_rows(team, out, cols, |i, out| {
        let row = &table[rows[i] as usize * cols..][..cols];
        out.iter_mut().zip(row).for_each(|(out, v)| *out += v);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_and_added() {
        let team = Team::new(2);
        let table: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut out = vec![0f32; 9];
        copy_rows(&team, &table, 3, &[3, 0, 1], &mut out);
        assert_eq!(out, [9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        add_rows(&team, &table, 3, &[1, 1, 0], &mut out);
        assert_eq!(out, [12.0, 14.0, 16.0, 3.0, 5.0, 7.0, 3.0, 5.0, 7.0]);
    }
}
