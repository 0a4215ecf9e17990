//! Numbers of the matrices of a library of products, by the address of the first.

use cuda::product::{Layout, Numbers};

/// The place of a number of a used matrix, in numbers.
fn place(layout: &Layout, row: usize, col: usize) -> usize {
    let (row, col) = if layout.transposed { (col, row) } else { (row, col) };
    assert!(
        row < layout.rows && col < layout.cols && layout.rows <= layout.stride,
        "{row}, {col} of {layout:?}"
    );
    col * layout.stride + row
}

pub(super) fn read(at: u64, layout: &Layout, row: usize, col: usize) -> f32 {
    let place = place(layout, row, col);
    // SAFETY: the device says that the matrix is there.
    unsafe {
        match layout.numbers {
            Numbers::F32 => *(at as *const f32).add(place),
            Numbers::Bf16 => f32::from_bits(u32::from(*(at as *const u16).add(place)) << 16),
        }
    }
}

pub(super) fn write(at: u64, layout: &Layout, (row, col): (usize, usize), value: f32) {
    let place = place(layout, row, col);
    let bits = value.to_bits();
    // SAFETY: as above.
    unsafe {
        match layout.numbers {
            Numbers::F32 => *(at as *mut f32).add(place) = value,
            Numbers::Bf16 => {
                *(at as *mut u16).add(place) = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
            }
        }
    }
}
