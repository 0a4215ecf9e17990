//! How the planes of a page are written. What is `next` is where the same will be written in the page after this one: it is
//! asked for number by number, so that what it takes to come is spent on what is at hand.

use super::head::{Head, PART, narrow, part};
use crate::attention::element::Element;
use crate::attention::int4::{self, Int4};
use crate::attention::layout::BLOCK_TOKENS;
use crate::attention::transpose::transpose;
#[cfg(target_arch = "x86_64")]
use crate::attention::transpose::transpose_512;
use crate::isa::Isa;
use crate::mat::Mat;
use std::ops::Range;

/// Values are turned round in squares of so many tokens and dims.
const SIDE: usize = PART;
type Square = [[u32; SIDE]; SIDE];

/// Values of consecutive tokens in one head, as the projection gave them.
pub(super) struct Values<'a> {
    pub qkv: Mat<'a, f32>,
    pub rows: Range<usize>,
    pub column: usize,
    /// Which instructions turn squares round.
    pub isa: Isa,
}

impl<'a> Values<'a> {
    #[inline(always)]
    fn of(&self, token: usize, dims: Range<usize>) -> &'a [f32] {
        &self.qkv.row(self.rows.start + token)[self.column + dims.start..self.column + dims.end]
    }

    #[inline(always)]
    fn turn_round(&self, square: &mut Square) {
        match self.isa {
            // SAFETY: an `Isa` with AVX-512 is only made where the machine has it.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe { transpose_512(square) },
            _ => transpose(square),
        }
    }
}

/// A plane, and that of the page after it.
pub(super) struct Plane<'a, C> {
    pub cells: &'a mut [C],
    pub next: *const C,
}

impl<C> Plane<'_, C> {
    /// Asks for what lies `cells` behind the start of the next plane.
    #[inline(always)]
    fn fetch(&self, cells: usize) {
        // SAFETY: a prefetch may name any address.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(cells).cast());
        }
    }
}

/// How the planes of a page are written.
pub(super) trait Planes: Send + Sync {
    /// What a plane is an array of.
    type Cell: bytemuck::Pod + Send + Sync;

    /// One token's key. `next`: the token that it stands for in the next plane.
    fn key(plane: Plane<'_, Self::Cell>, token: usize, next: usize, key: &Head<'_>);

    /// Values of consecutive tokens, the first of which is `token`.
    fn values(plane: Plane<'_, Self::Cell>, head_dim: usize, token: usize, values: &Values<'_>);
}

impl<E: Element> Planes for E {
    type Cell = E;

    #[inline(always)]
    fn key(plane: Plane<'_, E>, token: usize, next: usize, key: &Head<'_>) {
        let d = key.len();
        for dim in (0..d).step_by(64 / size_of::<E>()) {
            plane.fetch(next * d + dim);
        }
        key.store(&mut plane.cells[token * d..][..d]);
    }

    #[inline(always)]
    fn values(mut plane: Plane<'_, E>, d: usize, token: usize, values: &Values<'_>) {
        let mut done = 0;
        while done < values.rows.len() {
            let token = token + done;
            if token.is_multiple_of(SIDE) && values.rows.len() - done >= SIDE {
                many_values(&mut plane, d, token, done, values);
                done += SIDE;
            } else {
                one_value(&mut plane, token, values.of(done, 0..d));
                done += 1;
            }
        }
    }
}

impl Planes for Int4 {
    type Cell = u16;

    #[inline(always)]
    fn key(plane: Plane<'_, u16>, token: usize, _: usize, key: &Head<'_>) {
        let mut numbers = [0.0f32; 256];
        key.store(&mut numbers[..key.len()]);
        int4::write_key(plane.cells, token, &numbers[..key.len()]);
    }

    #[inline(always)]
    fn values(plane: Plane<'_, u16>, d: usize, token: usize, values: &Values<'_>) {
        for i in 0..values.rows.len() {
            int4::write_value(plane.cells, token + i, values.of(i, 0..d));
        }
    }
}

/// One token's values, each to its dim's line.
#[inline(always)]
fn one_value<E: Element>(plane: &mut Plane<'_, E>, token: usize, values: &[f32]) {
    for dims in (0..values.len()).step_by(PART) {
        for (i, value) in narrow(part(values, dims)).into_iter().enumerate() {
            let at = (dims + i) * BLOCK_TOKENS + token;
            plane.fetch(at);
            plane.cells[at] = value;
        }
    }
}

/// The values of 16 tokens, turned round in squares. `from`: which of `values` is the first.
#[inline(always)]
fn many_values<E: Element>(
    plane: &mut Plane<'_, E>,
    d: usize,
    token: usize,
    from: usize,
    values: &Values<'_>,
) {
    for dims in (0..d).step_by(SIDE) {
        let mut square: Square = [[0; SIDE]; SIDE];
        for (i, line) in square.iter_mut().enumerate() {
            *line = bytemuck::cast(*part(values.of(from + i, dims..dims + SIDE), 0));
        }
        values.turn_round(&mut square);
        for (i, line) in square.iter().enumerate() {
            let at = (dims + i) * BLOCK_TOKENS + token;
            plane.fetch(at);
            let to = plane.cells[at..].first_chunk_mut().expect("tokens in whole squares");
            *to = narrow(bytemuck::cast_ref(line));
        }
    }
}
