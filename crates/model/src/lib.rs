//! Files to weights and text: checkpoints, tokenizers, chat templates and the one decoder.

pub mod error;
pub mod gguf;

pub use error::{Error, Result};
