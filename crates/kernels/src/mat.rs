//! Row-major views of matrices that somebody else owns.

/// A row-major matrix of `rows` by `cols`, its rows `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// The same, to write to.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// A view of `data` whose rows follow each other without a gap.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Mat<'a, T> {
        Mat::with_stride(data, rows, cols, cols)
    }

    /// A view of `data` whose rows begin `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols`, or `data` ends before the last row does.
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Mat<'a, T> {
        check(data.len(), rows, cols, stride);
        Mat { data, rows, cols, stride }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`, `cols` long.
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        &self.data[i * self.stride..][..self.cols]
    }

    /// Rows `range` as a view of their own.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Mat<'a, T> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let data = &self.data[(range.start * self.stride).min(self.data.len())..];
        Mat { data, rows: range.len(), ..*self }
    }

    /// Columns `range` as a view of their own.
    pub fn slice_cols(&self, range: std::ops::Range<usize>) -> Mat<'a, T> {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        let data = &self.data[range.start.min(self.data.len())..];
        Mat { data, cols: range.len(), ..*self }
    }
}

impl<'a, T> MatMut<'a, T> {
    /// A view of `data` whose rows follow each other without a gap.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> MatMut<'a, T> {
        MatMut::with_stride(data, rows, cols, cols)
    }

    /// A view of `data` whose rows begin `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols`, or `data` ends before the last row does.
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> MatMut<'a, T> {
        check(data.len(), rows, cols, stride);
        MatMut { data, rows, cols, stride }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`, `cols` long, to read.
    pub fn row(&self, i: usize) -> &[T] {
        Mat { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }.row(i)
    }

    /// The rows as something that the workers of a team can write at once.
    pub(crate) fn shared(&mut self) -> SharedRows<'_, T> {
        SharedRows {
            data: self.data.as_mut_ptr(),
            rows: self.rows,
            cols: self.cols,
            stride: self.stride,
            of: std::marker::PhantomData,
        }
    }
}

/// A matrix that several workers write, each its own elements.
#[derive(Debug)]
pub(crate) struct SharedRows<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    of: std::marker::PhantomData<&'a mut T>,
}

// SAFETY: the only access is `span`, whose callers promise that no two workers hold the same elements.
unsafe impl<T: Send> Sync for SharedRows<'_, T> {}

impl<T> SharedRows<'_, T> {
    /// How many columns a row has.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Columns `cols` of row `row`.
    ///
    /// # Safety
    /// While the slice lives nobody else may hold any of these elements.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn span(&self, row: usize, cols: std::ops::Range<usize>) -> &mut [T] {
        debug_assert!(row < self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // SAFETY: in bounds by the check of the view's constructor; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride + cols.start), cols.len()) }
    }
}

impl<T> SharedRows<'_, T> {
    /// Where an element is, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn at(&self, row: usize, col: usize) -> *const T {
        self.data.wrapping_add(row * self.stride + col)
    }

    /// Columns `cols` of row `row`, to read.
    ///
    /// # Safety
    /// While the slice lives nobody may write any of these elements.
    pub(crate) unsafe fn read(&self, row: usize, cols: std::ops::Range<usize>) -> &[T] {
        assert!(row < self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // SAFETY: in bounds by the check of the view's constructor; unwritten by this function's contract.
        unsafe { std::slice::from_raw_parts(self.data.add(row * self.stride + cols.start), cols.len()) }
    }
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "rows of {cols} elements cannot begin {stride} apart");
    let need = if rows == 0 { 0 } else { (rows - 1) * stride + cols };
    assert!(len >= need, "{rows} rows of {cols} with stride {stride} need {need} elements, found {len}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_find_their_rows() {
        let data: Vec<u32> = (0..12).collect();
        let m = Mat::with_stride(&data, 3, 2, 4);
        assert_eq!(m.row(2), [8, 9]);
        assert_eq!(m.slice_rows(1..3).row(0), [4, 5]);
        assert_eq!(m.slice_cols(1..2).row(1), [5]);
    }

    #[test]
    fn the_last_row_may_end_the_data() {
        let mut data = [0, 1, 2, 3, 4, 5];
        assert_eq!(MatMut::with_stride(&mut data, 2, 2, 4).row(1), [4, 5]);
    }

    #[test]
    #[should_panic(expected = "need 7 elements, found 6")]
    fn too_short_is_refused() {
        Mat::with_stride(&[0u32; 6], 2, 3, 4);
    }
}
