//! `ballast eval`: what narrower weights and caches cost in accuracy.
//!
//! The text is the first thirteen chapters of Herman Melville's *Moby-Dick* (1851), in the public domain.

mod next_word;
mod passages;
mod perplexity;
mod scored;

use std::path::Path;

use anyhow::{Context, Result};

pub(crate) use next_word::next_word;
pub(crate) use perplexity::perplexity;

use crate::console::{text_of, unmarked};

/// What is read where `--text` names nothing else.
const TEXT: &str = include_str!("moby-dick.txt");

fn text(file: Option<&Path>) -> Result<String> {
    match file {
        None => Ok(TEXT.to_string()),
        Some(file) if file.as_os_str() == "-" => {
            let text = std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?;
            Ok(unmarked(text))
        }
        Some(file) => text_of(file),
    }
}
