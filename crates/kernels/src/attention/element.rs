//! The types that queries, keys, values and results are stored as.

use super::f16::F16;
use super::fp8::E4m3;
use super::int4::{self, Int4};
use super::layout::{BLOCK_TOKENS, KvDtype};
use super::{Page, Scratch, Task, scalar};
#[cfg(target_arch = "x86_64")]
use super::{plan, tiled, vector};
pub(super) use crate::elementwise::Element;
use crate::isa::Isa;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::team::Team;
use half::bf16;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What pages can hold.
pub(super) trait Stored: Sized + Send + Sync {
    /// The tag of this type.
    const DTYPE: KvDtype;
    /// What queries are, that meet it.
    type Query: Element;
    /// What pages are an array of.
    type Cell: bytemuck::Pod + Send + Sync;

    /// One number of a key.
    fn key_at(page: &Page<'_, Self::Cell>, head_dim: usize, token: usize, dim: usize) -> f32;

    /// One number of a value.
    fn value_at(page: &Page<'_, Self::Cell>, head_dim: usize, token: usize, dim: usize) -> f32;

    /// Attention with the kernel for this type and instruction set.
    fn attend(team: &Team, isa: Isa, task: &Task<'_, Self>, scratch: &mut Scratch);
}

/// Where planes hold numbers one by one: keys by token, values by dim.
macro_rules! numbers_one_by_one {
    () => {
        fn key_at(page: &Page<'_, Self>, head_dim: usize, token: usize, dim: usize) -> f32 {
            Element::to_f32(page.k[token * head_dim + dim])
        }

        fn value_at(page: &Page<'_, Self>, _: usize, token: usize, dim: usize) -> f32 {
            Element::to_f32(page.v[dim * BLOCK_TOKENS + token])
        }
    };
}

impl Stored for f32 {
    const DTYPE: KvDtype = KvDtype::F32;
    type Query = f32;
    type Cell = f32;

    numbers_one_by_one!();

    fn attend(team: &Team, isa: Isa, task: &Task<'_, f32>, scratch: &mut Scratch) {
        attend_in_vectors(team, isa, task, scratch);
    }
}

impl Stored for bf16 {
    const DTYPE: KvDtype = KvDtype::Bf16;
    type Query = bf16;
    type Cell = bf16;

    numbers_one_by_one!();

    fn attend(team: &Team, isa: Isa, task: &Task<'_, bf16>, scratch: &mut Scratch) {
        attend_in_tiles(team, isa, task, scratch);
    }
}

impl Stored for F16 {
    const DTYPE: KvDtype = KvDtype::F16;
    type Query = bf16;
    type Cell = F16;

    numbers_one_by_one!();

    /// Tiles and pairs multiply bf16 alone.
    fn attend(team: &Team, isa: Isa, task: &Task<'_, F16>, scratch: &mut Scratch) {
        attend_in_vectors(team, isa, task, scratch);
    }
}

impl Stored for E4m3 {
    const DTYPE: KvDtype = KvDtype::Fp8;
    type Query = bf16;
    type Cell = E4m3;

    numbers_one_by_one!();

    fn attend(team: &Team, isa: Isa, task: &Task<'_, E4m3>, scratch: &mut Scratch) {
        attend_in_tiles(team, isa, task, scratch);
    }
}

impl Stored for Int4 {
    const DTYPE: KvDtype = KvDtype::Int4;
    type Query = bf16;
    type Cell = u16;

    fn key_at(page: &Page<'_, u16>, head_dim: usize, token: usize, dim: usize) -> f32 {
        int4::key(page, head_dim, token, dim)
    }

    fn value_at(page: &Page<'_, u16>, head_dim: usize, token: usize, dim: usize) -> f32 {
        int4::value(page, head_dim, token, dim)
    }

    fn attend(team: &Team, isa: Isa, task: &Task<'_, Int4>, scratch: &mut Scratch) {
        attend_in_tiles(team, isa, task, scratch);
    }
}

/// All numbers of a head of a page: its tokens' keys, then their values.
pub(super) fn head_numbers<E: Stored>(head_dim: usize, head: &[u8]) -> Vec<f32> {
    let cells: Vec<E::Cell> =
        head.chunks_exact(size_of::<E::Cell>()).map(bytemuck::pod_read_unaligned).collect();
    let (k, v) = cells.split_at(cells.len() / 2);
    let page = Page { k, v };
    let places = || (0..BLOCK_TOKENS).flat_map(|token| (0..head_dim).map(move |dim| (token, dim)));
    let keys = places().map(|(token, dim)| E::key_at(&page, head_dim, token, dim));
    keys.chain(places().map(|(token, dim)| E::value_at(&page, head_dim, token, dim))).collect()
}

/// Marks what tiles can be made of.
#[cfg(target_arch = "x86_64")]
use super::tiled::Tiled;
#[cfg(target_arch = "x86_64")]
use super::vector::Widened;
/// Elsewhere there is only the reference.
#[cfg(not(target_arch = "x86_64"))]
use Stored as Tiled;
#[cfg(not(target_arch = "x86_64"))]
use Stored as Widened;

fn attend_in_tiles<E: Tiled + Widened>(team: &Team, isa: Isa, task: &Task<'_, E>, scratch: &mut Scratch) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if task.softmax.share.is_none() => {
            // SAFETY: the caller of `attend` names an instruction set that this machine has.
            let kernel = unsafe { tiled::Blocks::<tiled::Amx, E>::new(task) };
            plan::run(team, task, &kernel, tiled::BLOCK_LANES, scratch);
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if task.softmax.share.is_none() && tiled::pairs_suit(task.layout) => {
            // SAFETY: as above.
            let kernel = unsafe { tiled::Blocks::<tiled::Pairs, E>::new(task) };
            plan::run(team, task, &kernel, tiled::BLOCK_LANES, scratch);
        }
        _ => attend_in_vectors(team, isa, task, scratch),
    }
}

fn attend_in_vectors<E: Widened>(team: &Team, isa: Isa, task: &Task<'_, E>, scratch: &mut Scratch) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller of `attend` names an instruction set that this machine has.
        Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe {
            attend_in::<vector::Avx512, E, 16>(team, task, scratch)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { attend_in::<vector::Avx2, E, 8>(team, task, scratch) },
        _ => scalar::attend(team, task),
    }
}

/// # Safety
/// The machine has the instruction set `S`.
#[cfg(target_arch = "x86_64")]
unsafe fn attend_in<S: vector::Simd<W>, E: Widened, const W: usize>(
    team: &Team,
    task: &Task<'_, E>,
    scratch: &mut Scratch,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match task.softmax.share {
            None => {
                let kernel = vector::Vectors::<S, E, W>::new(task);
                plan::run(team, task, &kernel, vector::BLOCK_LANES, scratch);
            }
            Some(share) => {
                let kernel = vector::Sparse::<S, E, W>::new(task, share);
                plan::run(team, task, &kernel, 1, scratch);
            }
        }
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

impl RowsMut<'_> {
    /// Rows and columns.
    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            RowsMut::Bf16(out) => (out.rows(), out.cols()),
            RowsMut::F32(out) => (out.rows(), out.cols()),
        }
    }

    /// The rows as something that the workers of a team can write at once.
    pub(super) fn shared(&mut self) -> Results<'_> {
        let rows = match self {
            RowsMut::Bf16(out) => Shared::Bf16(out.shared()),
            RowsMut::F32(out) => Shared::F32(out.shared()),
        };
        Results { rows, all_finite: AtomicBool::new(true) }
    }
}

/// Where results go.
pub(super) struct Results<'a> {
    rows: Shared<'a>,
    /// Whether all that was written is finite: to look for what is not would be to read all of it once more.
    all_finite: AtomicBool,
}

enum Shared<'a> {
    Bf16(SharedRows<'a, bf16>),
    F32(SharedRows<'a, f32>),
}

impl Results<'_> {
    /// Writes what becomes of `numbers` to a row, from a column on.
    ///
    /// # Safety
    /// Nobody else holds what is written.
    #[inline(always)]
    pub(super) unsafe fn write(&self, row: usize, column: usize, numbers: &[f32], f: impl Fn(f32) -> f32) {
        let columns = column..column + numbers.len();
        // SAFETY: the caller's.
        let finite = unsafe {
            match &self.rows {
                Shared::Bf16(out) => put(out.span(row, columns), numbers, f),
                Shared::F32(out) => put(out.span(row, columns), numbers, f),
            }
        };
        if !finite {
            self.all_finite.store(false, Ordering::Relaxed);
        }
    }

    /// Whether all that was written is finite: for when all workers are done.
    pub(super) fn all_finite(&self) -> bool {
        self.all_finite.load(Ordering::Relaxed)
    }

    /// Whether all results of a row in these columns are finite.
    ///
    /// # Safety
    /// Nobody writes there meanwhile.
    pub(super) unsafe fn is_finite(&self, row: usize, columns: Range<usize>) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match &self.rows {
                Shared::Bf16(out) => out.span(row, columns).iter().all(|x| x.is_finite()),
                Shared::F32(out) => out.span(row, columns).iter().all(|x| x.is_finite()),
            }
        }
    }
}

/// Whether all that was written is finite.
#[inline(always)]
fn put<T: Element>(to: &mut [T], numbers: &[f32], f: impl Fn(f32) -> f32) -> bool {
    let mut finite = true;
    for (to, x) in to.iter_mut().zip(numbers) {
        *to = T::from_f32(f(*x));
        finite &= to.to_f32().is_finite();
    }
    finite
}
