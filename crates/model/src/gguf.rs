//! GGUF files.

pub mod vocab;

pub use vocab::GgufVocab;
