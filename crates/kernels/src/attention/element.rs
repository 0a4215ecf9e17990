//! The two types that queries, keys, values and results are stored as.

use super::layout::KvDtype;
use super::{Scratch, Task, scalar};
#[cfg(target_arch = "x86_64")]
use super::{amx, plan, vector};
pub(super) use crate::elementwise::Element;
use crate::isa::Isa;
use crate::mat::{Mat, MatMut};
use crate::team::Team;
use half::bf16;

/// An element that pages can hold.
pub(super) trait Stored: Element {
    /// The tag of this type.
    const DTYPE: KvDtype;

    /// Attention with the kernel for this type and instruction set.
    fn attend<O: Element>(team: &Team, isa: Isa, task: &Task<'_, Self, O>, scratch: &mut Scratch);
}

impl Stored for f32 {
    const DTYPE: KvDtype = KvDtype::F32;

    fn attend<O: Element>(team: &Team, isa: Isa, task: &Task<'_, f32, O>, scratch: &mut Scratch) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => attend_in_vectors(team, Isa::Avx512, task, scratch),
            _ => attend_in_vectors(team, isa, task, scratch),
        }
    }
}

impl Stored for bf16 {
    const DTYPE: KvDtype = KvDtype::Bf16;

    fn attend<O: Element>(team: &Team, isa: Isa, task: &Task<'_, bf16, O>, scratch: &mut Scratch) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => {
                // SAFETY: the caller of `attend` names an instruction set that this machine has.
                let kernel = unsafe { amx::Amx::new(task) };
                plan::run(team, task, &kernel, amx::BLOCK_LANES, scratch);
            }
            _ => attend_in_vectors(team, isa, task, scratch),
        }
    }
}

fn attend_in_vectors<E: Stored, O: Element>(
    team: &Team,
    isa: Isa,
    task: &Task<'_, E, O>,
    scratch: &mut Scratch,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            // SAFETY: the caller of `attend` names an instruction set that this machine has.
            let kernel = unsafe { vector::Vectors::<vector::Avx512, E, O, 16>::new(task) };
            plan::run(team, task, &kernel, vector::BLOCK_LANES, scratch);
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            // SAFETY: as above.
            let kernel = unsafe { vector::Vectors::<vector::Avx2, E, O, 8>::new(task) };
            plan::run(team, task, &kernel, vector::BLOCK_LANES, scratch);
        }
        _ => scalar::attend(team, task),
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
