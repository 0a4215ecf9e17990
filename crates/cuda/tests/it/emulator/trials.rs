//! Kernels that are tried before they are used: what came of it, and a clock that says what it is told to.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda::module::Module;
use cuda::{Launch, Outcome};

/// As many as have several tiles each in a trial.
const FEW_BLOCKS: usize = 5;

/// What such a device has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tried {
    /// Kernels that are tried do nothing.
    pub(crate) are_broken: bool,
    /// The kernel by turns does nothing in trials of blocks that have several tiles.
    pub(crate) is_broken_from_tile_to_tile: bool,
    /// What of two kernels takes less time, as far as this device's clock says.
    pub(crate) turns_are_faster: bool,
    /// Of both kernels the one that its compiler makes nothing of: whether it is that by turns.
    pub(crate) lacks: Option<bool>,
}

pub(crate) struct Trials {
    tried: Tried,
    verdicts: Mutex<HashMap<Module, bool>>,
    /// What attended of many rows last.
    attended_by: Mutex<Option<Module>>,
    /// While somebody asks for the time nothing runs.
    is_timing: AtomicBool,
}

impl Trials {
    pub(super) fn of(tried: Tried) -> Trials {
        let (verdicts, attended_by, is_timing) = Default::default();
        Trials { tried, verdicts, attended_by, is_timing }
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
                    || self.tried.is_broken_from_tile_to_tile && launch.grid[0] == FEW_BLOCKS
            }
            Module::Warpgroups { .. } => self.tried.are_broken,
            _ => false,
        };
        is_broken || self.is_timing.load(Ordering::Relaxed)
    }

    pub(super) fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.is_timing.store(true, Ordering::Relaxed);
        work();
        self.is_timing.store(false, Ordering::Relaxed);
        let is_by_turns = matches!(self.attended_by()?, Module::Warpgroups { turns: true, .. });
        Some(if is_by_turns == self.tried.turns_are_faster { 1.0 } else { 2.0 })
    }

    pub(super) fn verdict(&self, module: Module) -> Option<bool> {
        self.verdicts.lock().unwrap().get(&module).copied()
    }

    pub(super) fn run(&self, module: Module, trial: &mut dyn FnMut() -> Outcome) {
        let before = self.verdicts.lock().unwrap().insert(module, false);
        assert_eq!(before, None, "{module} is tried once");
        let outcome = trial();
        self.verdicts.lock().unwrap().insert(module, outcome == Outcome::Passed);
    }
}
