//! Ctrl-C (and SIGTERM) while a run is measured: what was answered by then is told. A stream that has a thread of its own ends with
//! what its server says next; all others at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

/// Whether somebody wants the end. A second signal ends the process, as it always does.
#[derive(Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on signals are heard.
    ///
    /// # Errors
    /// If the system refuses that.
    pub(super) fn heard() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first finds that nobody asked before.
            register_conditional_default(signal, Arc::clone(&stop.0))
                .and_then(|_| register(signal, Arc::clone(&stop.0)))
                .context("the system refuses signals")?;
        }
        Ok(stop)
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
