//! Ctrl-C (and SIGTERM) while something is measured: what there is by then is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

/// Whether somebody wants the end. A second signal ends the process, as it always does.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on signals are heard.
    ///
    /// # Errors
    /// If the system refuses that.
    pub(crate) fn heard() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first finds that nobody asked before.
            register_conditional_default(signal, Arc::clone(&stop.0))
                .and_then(|_| register(signal, Arc::clone(&stop.0)))
                .context("the system refuses signals")?;
        }
        Ok(stop)
    }

    /// One that somebody wants already.
    #[cfg(test)]
    pub(crate) fn asked() -> Stop {
        Stop(Arc::new(AtomicBool::new(true)))
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
