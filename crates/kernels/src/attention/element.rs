//! The two types that queries, keys, values and results are stored as.

use super::layout::KvDtype;
pub(super) use crate::elementwise::Element;
use crate::mat::{Mat, MatMut};
use half::bf16;

/// An element that pages can hold.
pub(super) trait Stored: Element {
    /// The tag of this type.
    const DTYPE: KvDtype;
}

impl Stored for f32 {
    const DTYPE: KvDtype = KvDtype::F32;
}

impl Stored for bf16 {
    const DTYPE: KvDtype = KvDtype::Bf16;
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
