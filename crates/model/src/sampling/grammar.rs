//! What the text of a sequence must match, seen from the sampler: a mask over its logits, made by whoever
//! knows the language. Neither the engine nor the sampler knows one.

use std::fmt::Debug;
use std::sync::Arc;

use super::SampleError;

/// A language, shared by all sequences that are held to it.
pub trait Language: Debug + Send + Sync {
    /// A place at the beginning of a text.
    fn begin(&self) -> Box<dyn Guide>;

    /// About how many bytes it takes, and each place in it once more.
    fn bytes(&self) -> usize;

    /// The one that it is made of, if its memory is that one's.
    fn made_of(&self) -> Option<&Grammar> {
        None
    }
}

/// One sequence's place in a text of a language.
pub trait Guide: Debug + Send {
    /// Sets the logits of all tokens that cannot come next to -infinity; those that end a text stay where it may end: `ends`, the
    /// model's, which are no text elsewhere whatever they are called, and `asked`, the request's.
    ///
    /// # Errors
    /// [`SampleError::TooComplex`], if that takes more work than is allowed.
    fn mask(&mut self, row: &mut [f32], ends: &[u32], asked: &[u32]) -> Result<(), SampleError>;

    /// Goes on with a token that was taken.
    fn accept(&mut self, token: u32);

    /// The text has ended: nothing but ends can follow.
    fn end(&mut self);
}

/// What a text must match; equal only to itself.
#[derive(Clone, Debug)]
pub struct Grammar(Arc<dyn Language>);

impl Grammar {
    /// A grammar of any kind.
    pub fn new(language: Arc<dyn Language>) -> Self {
        Grammar(language)
    }

    /// A place at the beginning of a text.
    pub fn begin(&self) -> Box<dyn Guide> {
        self.0.begin()
    }

    /// About how many bytes it takes, and each place in it once more.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Whether both are in the same memory.
    pub fn shares_memory(&self, other: &Grammar) -> bool {
        Arc::ptr_eq(&self.root().0, &other.root().0)
    }

    fn root(&self) -> &Grammar {
        self.0.made_of().map_or(self, Grammar::root)
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
