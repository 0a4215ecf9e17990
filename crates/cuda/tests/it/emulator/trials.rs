//! Kernels that are tried before they are used: what came of it, and a clock that says what it is told to.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda::args::AttendArgs;
use cuda::module::Module;
use cuda::{Launch, Outcome};

/// As many as have several tiles each in a trial.
const FEW_BLOCKS: usize = 5;

/// What such a device has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    /// Kernels that are tried do nothing.
    pub(crate) are_broken: bool,
    /// The kernel by turns stands still so many times, and does nothing then.
    pub(crate) stalls: usize,
    /// The kernel by turns does nothing in trials of blocks that have several tiles.
    pub(crate) is_broken_from_tile_to_tile: bool,
    /// What of two kernels takes less time, as far as this device's clock says.
    pub(crate) turns_are_faster: bool,
    /// Of both kernels the one that its compiler makes nothing of: whether it is that by turns.
    pub(crate) lacks: Option<bool>,
}

pub(crate) struct Trials {
    tried: Tried,
    outcomes: Mutex<HashMap<Module, Outcome>>,
    /// How often a kernel is still to stand still.
    stalls: AtomicUsize,
    /// What attended of many rows last.
    attended_by: Mutex<Option<Module>>,
    /// While somebody asks for the time nothing runs.
    is_timing: AtomicBool,
}

impl Trials {
    pub(super) fn of(tried: Tried) -> Trials {
        let (outcomes, attended_by, is_timing) = Default::default();
        Trials { tried, outcomes, stalls: AtomicUsize::new(tried.stalls), attended_by, is_timing }
    }

    pub(super) fn lacks(&self, modules: &[Module]) -> bool {
        let of = |module: &Module| match module {
            Module::Warpgroups { turns, .. } => Some(*turns),
            _ => None,
        };
        self.tried.lacks.is_some() && modules.iter().any(|module| of(module) == self.tried.lacks)
    }

    /// What attended of many rows last.
    pub(crate) fn attended_by(&self) -> Option<Module> {
        *self.attended_by.lock().unwrap()
    }

    /// Takes note of a kernel; whether it is not to run.
    pub(super) fn leave_out(&self, launch: &Launch<'_>) -> bool {
        if launch.kernel != "attend_many" {
            return false;
        }
        *self.attended_by.lock().unwrap() = Some(launch.module);
        let is_broken = match launch.module {
            Module::Warpgroups { turns: true, .. } => {
                self.tried.are_broken
                    || self.stands_still(launch)
                    || self.tried.is_broken_from_tile_to_tile && launch.grid[0] == FEW_BLOCKS
            }
            Module::Warpgroups { .. } => self.tried.are_broken,
            _ => false,
        };
        is_broken || self.is_timing.load(Ordering::Relaxed)
    }

    /// Whether the kernel stands still, which it has noted then, if it is tried.
    fn stands_still(&self, launch: &Launch<'_>) -> bool {
        let AttendArgs { stalled, .. } = bytemuck::pod_read_unaligned(launch.args);
        let less = |left: usize| left.checked_sub(1);
        let stands_still = self.stalls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if stands_still {
            assert_ne!(stalled, 0, "who waits in vain in a trial has no place to note it");
            // SAFETY: a word of the emulated device's memory, as the device says, and nothing runs meanwhile.
            unsafe { *(stalled as *mut u32) = 1 };
        }
        stands_still
    }

    pub(super) fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.is_timing.store(true, Ordering::Relaxed);
        work();
        self.is_timing.store(false, Ordering::Relaxed);
        let is_by_turns = matches!(self.attended_by()?, Module::Warpgroups { turns: true, .. });
        Some(if is_by_turns == self.tried.turns_are_faster { 1.0 } else { 2.0 })
    }

    pub(super) fn verdict(&self, module: Module) -> Option<bool> {
        self.outcome(module).map(|outcome| outcome == Outcome::Passed)
    }

    /// What came of a module's trial.
    pub(crate) fn outcome(&self, module: Module) -> Option<Outcome> {
        self.outcomes.lock().unwrap().get(&module).copied()
    }

    pub(super) fn run(&self, module: Module, trial: &mut dyn FnMut() -> Outcome) {
        let before = self.outcomes.lock().unwrap().insert(module, Outcome::Open);
        assert_eq!(before, None, "{module} is tried once");
        let outcome = trial();
        self.outcomes.lock().unwrap().insert(module, outcome);
    }
}
