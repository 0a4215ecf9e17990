//! Kernels that are tried before they are used: what came of it, and a clock that says what it is told to.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda::Launch;
use cuda::module::Module;

#[derive(Default)]
pub(crate) struct Trials {
    verdicts: Mutex<HashMap<Module, bool>>,
    /// Kernels that are tried do nothing.
    are_broken: bool,
    /// What of two kernels takes less time, as far as this device's clock says.
    turns_are_faster: bool,
    /// What attended of many rows last.
    attended_by: Mutex<Option<Module>>,
    /// While somebody asks for the time nothing runs.
    is_timing: AtomicBool,
}

impl Trials {
    pub(super) fn new(are_broken: bool, turns_are_faster: bool) -> Trials {
        Trials { are_broken, turns_are_faster, ..Trials::default() }
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
        let is_broken = self.are_broken && matches!(launch.module, Module::Warpgroups { .. });
        is_broken || self.is_timing.load(Ordering::Relaxed)
    }

    pub(super) fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.is_timing.store(true, Ordering::Relaxed);
        work();
        self.is_timing.store(false, Ordering::Relaxed);
        let is_by_turns = matches!(self.attended_by()?, Module::Warpgroups { turns: true, .. });
        Some(if is_by_turns == self.turns_are_faster { 1.0 } else { 2.0 })
    }

    pub(super) fn verdict(&self, module: Module) -> Option<bool> {
        self.verdicts.lock().unwrap().get(&module).copied()
    }

    pub(super) fn run(&self, module: Module, trial: &mut dyn FnMut() -> bool) {
        let before = self.verdicts.lock().unwrap().insert(module, false);
        assert_eq!(before, None, "{module} is tried once");
        let passed = trial();
        self.verdicts.lock().unwrap().insert(module, passed);
    }
}
