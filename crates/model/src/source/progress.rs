//! What a download tells whoever draws it.

/// Told how a download goes.
pub trait Progress {
    /// A new piece of work began.
    fn stage(&mut self, what: &str);
    /// So many of its bytes are there.
    fn bytes(&mut self, done: u64, total: Option<u64>);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn stage(&mut self, _: &str) {}
    fn bytes(&mut self, _: u64, _: Option<u64>) {}
}
