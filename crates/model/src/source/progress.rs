//! What a download tells whoever draws it.

use std::time::Duration;

/// Told how a download goes.
pub trait Progress {
    /// A new piece of work began.
    fn stage(&mut self, what: &str);
    /// So many of its bytes are there.
    fn bytes(&mut self, done: u64, total: Option<u64>);
    /// Nothing comes, for this reason: it is tried again after this time.
    fn waits(&mut self, why: &str, time: Duration);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _: &str) {}
    fn bytes(&mut self, _: u64, _: Option<u64>) {}
    fn waits(&mut self, _: &str, _: Duration) {}
}
