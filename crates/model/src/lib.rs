//! Files to weights and text: checkpoints, tokenizers, chat templates and the one decoder.

pub mod error;
pub mod gguf;
pub mod tokenizer;

pub use error::{Error, Result};
pub use tokenizer::{Special, Tokenizer, TokenizerError};
