//! Constrained output: JSON schemas, regular expressions, choices and grammars, made into masks over a
//! tokenizer's vocabulary by llguidance.
//!
//! What comes from a request is compiled on a thread of its own, within limits of size, work and time, and kept in
//! a cache of bounded bytes. Schemas cannot name files or addresses.

mod ascii;
mod cache;
mod close;
mod compile;
mod dialect;
mod ebnf;
mod guide;
mod refs;
mod size;
#[cfg(test)]
pub(crate) mod tests;
mod vocabulary;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use crate::sampling::Grammar;
use crate::tokenizer::Tokenizer;
pub(crate) use ascii::ecma;
use cache::Cache;
use compile::Workers;
pub(crate) use dialect::settled;
pub(crate) use refs::decoded;

/// White space between the parts of a JSON text: enough to indent, too little to go on for ever.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";

/// What a text must be.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputFormat {
    /// JSON that a schema describes.
    Schema(Value),
    /// The same, with no white space between its parts.
    Compact(Value),
    /// Any JSON object.
    Object,
    /// A match of a regular expression, from beginning to end.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
    /// A text of a grammar in Lark's syntax, or in that of llama.cpp and of vLLM's clients (`root ::= ...`).
    Lark(String),
}

/// Compilations at once; whoever waits for one keeps a thread.
pub const WORKERS: usize = 4;

/// What compiling may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of a schema, expression or grammar.
    pub source_bytes: usize,
    /// Until the caller is told that it takes too long.
    pub time: Duration,
    /// Compilations at once; those that nobody waits for any more are among them.
    pub workers: usize,
    /// Bytes of what is kept for the next request.
    pub cache_bytes: usize,
}

/// Bytes of a grammar at most.
pub(crate) const SOURCE_BYTES: usize = 256 << 10;

impl Default for Budget {
    fn default() -> Self {
        Budget {
            source_bytes: SOURCE_BYTES,
            time: Duration::from_secs(5),
            workers: WORKERS,
            cache_bytes: 64 << 20,
        }
    }
}

/// Why there is no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is longer than allowed.
    #[error("{found} bytes; at most {limit}")]
    TooLong {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// It takes too long to compile.
    #[error("it takes longer than {0:?} to compile; make it simpler")]
    TooSlow(Duration),
    /// Others take all the workers.
    #[error("too many grammars are being compiled; try again later")]
    Busy,
    /// It is wrong, or needs more than is allowed.
    #[error("{0}")]
    Invalid(String),
}

impl GrammarError {
    /// Without the places in a text that was made of the request's, and that text.
    fn of(self, kind: Kind) -> GrammarError {
        match self {
            GrammarError::Invalid(words) if kind != Kind::Lark => {
                let first = words.lines().next().unwrap_or_default();
                let behind = first.strip_prefix("at ").and_then(|rest| rest.split_once("): "));
                GrammarError::Invalid(behind.map_or(first, |(_, words)| words).to_owned())
            }
            other => other,
        }
    }
}

/// Makes grammars for one vocabulary.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    cache: Mutex<Cache>,
    workers: Workers,
    budget: Budget,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grammars({:?})", self.budget)
    }
}

impl Grammars {
    /// For a tokenizer's vocabulary.
    ///
    /// # Errors
    /// A vocabulary that llguidance cannot work with.
    pub fn new(tokenizer: &Tokenizer, budget: Budget) -> Result<Self, GrammarError> {
        Ok(Grammars {
            factory: Arc::new(compile::factory(&vocabulary::of(tokenizer))?),
            cache: Mutex::new(Cache::new(budget.cache_bytes)),
            workers: Workers::new(budget.workers),
            budget,
        })
    }

    /// Compiles a format, or finds it in the cache.
    ///
    /// # Errors
    /// [`GrammarError`]. Whatever it is, the next format is not touched by it.
    pub fn compile(&self, format: &OutputFormat) -> Result<Grammar, GrammarError> {
        let source = Source::of(format);
        let found = source.text.len();
        if found > self.budget.source_bytes {
            return Err(GrammarError::TooLong { found, limit: self.budget.source_bytes });
        }
        let key = source.key();
        if let Some(grammar) = self.cached().get(&key) {
            return Ok(grammar);
        }
        let place = self.workers.enter().ok_or(GrammarError::Busy)?;
        let grammar = compile::within(self.budget.time, Arc::clone(&self.factory), source, place)?;
        self.cached().put(key, grammar.clone());
        Ok(grammar)
    }

    /// Bytes of those that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.cached().bytes()
    }

    /// Whether another may be compiled now; a moment later it may be otherwise.
    pub fn has_place(&self) -> bool {
        self.workers.has_place()
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A format as llguidance reads it.
struct Source {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Schema,
    Compact,
    Regex,
    Lark,
}

impl Source {
    fn of(format: &OutputFormat) -> Source {
        let (kind, text) = match format {
            OutputFormat::Schema(schema) => (Kind::Schema, schema.to_string()),
            OutputFormat::Compact(schema) => (Kind::Compact, schema.to_string()),
            OutputFormat::Object => (Kind::Schema, any_object().to_string()),
            OutputFormat::Regex(expression) => (Kind::Regex, ascii::ascii(expression)),
            OutputFormat::Choice(texts) => (Kind::Lark, one_of(texts)),
            OutputFormat::Lark(grammar) => (Kind::Lark, grammar.clone()),
        };
        Source { kind, text }
    }

    fn key(&self) -> [u8; 32] {
        Sha256::new_with_prefix([self.kind as u8]).chain_update(&self.text).finalize().into()
    }

    /// As llguidance compiles it, once it is known that this will end, soon and without running out of stack.
    fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        let grammar = match self.kind {
            Kind::Schema | Kind::Compact => {
                let schema = schema(&self.text, self.kind)?;
                size::schema(&schema)?;
                GrammarWithLexer::from_json_schema(schema)
            }
            Kind::Regex => {
                size::expression(&self.text)?;
                GrammarWithLexer::from_regex(&self.text)
            }
            Kind::Lark if ebnf::is_meant(&self.text) => {
                let lark = ebnf::to_lark(&self.text)?;
                size::made_lark(&lark)?;
                GrammarWithLexer::from_lark(lark)
            }
            Kind::Lark if self.text == one_of(&[]) => {
                return Err(GrammarError::Invalid("a choice needs a text to choose, found none".to_owned()));
            }
            Kind::Lark => {
                size::lark(&self.text)?;
                GrammarWithLexer::from_lark(self.text.clone())
            }
        };
        Ok(TopLevelGrammar::from_grammar(grammar))
    }
}

/// A schema with our settings.
fn schema(text: &str, kind: Kind) -> Result<Value, GrammarError> {
    let (setting, value) = match kind {
        Kind::Compact => ("whitespace_flexible", json!(false)),
        _ => ("whitespace_pattern", json!(WHITE_SPACE)),
    };
    match serde_json::from_str(text) {
        Ok(Value::Object(schema)) => Ok(settled(schema, [(setting.to_owned(), value)].into_iter().collect())),
        Ok(Value::Bool(true)) => schema("{}", kind),
        _ => Err(GrammarError::Invalid("a schema is an object".to_owned())),
    }
}

/// The schema of any object.
pub(crate) fn any_object() -> Value {
    json!({"type": "object"})
}

/// A Lark grammar whose texts are these.
fn one_of(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("start: {}", quoted.join(" | "))
}

/// A text as Lark quotes it, which is as JSON does, but for one character.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
