//! Files to weights and text: checkpoints, tokenizers, chat templates and the one decoder.

pub mod api;
pub mod checkpoint;
pub mod config;
pub mod decoder;
mod dummy;
pub mod error;
pub mod file;
pub mod fuzz;
pub mod gguf;
pub mod grammar;
pub mod guard;
mod json;
pub mod output;
mod quantized;
pub mod safetensors;
pub mod sampling;
pub mod source;
pub mod store;
pub mod stored;
pub mod template;
pub mod tensor;
#[cfg(test)]
mod testing;
pub mod thoughts;
pub mod tokenizer;
pub mod tools;

pub use checkpoint::Checkpoint;
pub use error::{Error, Result};
pub use stored::Stored;
pub use template::{ChatTemplate, Conversation, TemplateError};
pub use tensor::{LayerTensor, Tensor};
pub use tokenizer::{Special, Tokenizer, TokenizerError};
