//! Compiling what strangers send: on a thread of its own, with an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::ParserLimits;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};

use super::guide::Prepared;
use super::{GrammarError, Source};
use crate::sampling::Grammar;

/// Schemas nest, and the compiler follows them down.
const STACK_BYTES: usize = 16 << 20;
/// Characters of the compiler's complaints that are passed on.
const MESSAGE_CHARS: usize = 300;

/// Limits of work and memory: about a second to compile, 20 ms and 32 MiB while a text is made.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 200_000,
        max_lexer_states: 16_000,
        verbose_errors: false,
        precompute_large_lexemes: false,
        ..ParserLimits::default()
    }
}

/// What all grammars of a vocabulary share.
pub(super) fn factory(vocabulary: &TokEnv) -> Result<ParserFactory, GrammarError> {
    let mut factory = ParserFactory::new_simple(vocabulary).map_err(|error| complaint(&error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// Places for those who compile.
pub(super) struct Workers {
    limit: usize,
    busy: Arc<AtomicUsize>,
}

/// One of them, given back when dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Workers {
    pub(super) fn new(limit: usize) -> Workers {
        Workers { limit, busy: Arc::default() }
    }

    pub(super) fn enter(&self) -> Option<Place> {
        let more = |busy| (busy < self.limit).then_some(busy + 1);
        self.busy.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Place(Arc::clone(&self.busy)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Compiles, and waits for it no longer than `time`. What goes on after that keeps its place until it ends, which
/// its limits see to.
pub(super) fn within(
    time: Duration,
    factory: Arc<ParserFactory>,
    source: Source,
    place: Place,
) -> Result<Grammar, GrammarError> {
    let (told, result) = channel();
    let work = move || {
        let began = Instant::now();
        let result = build(&factory, &source);
        drop(place);
        // Whoever asked may have gone.
        let _ = told.send((result, began.elapsed()));
    };
    let worker = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES).spawn(work);
    worker.map_err(|_| GrammarError::Busy)?;
    match result.recv_timeout(time) {
        // Who was kept from looking in time judges as if not.
        Ok((_, took)) if took > time => Err(GrammarError::TooSlow(time)),
        Ok((result, _)) => result,
        Err(RecvTimeoutError::Timeout) => Err(GrammarError::TooSlow(time)),
        Err(RecvTimeoutError::Disconnected) => Err(complaint("the compiler gave up on it")),
    }
}

fn build(factory: &ParserFactory, source: &Source) -> Result<Grammar, GrammarError> {
    let mut matcher = Matcher::new(factory.create_parser(source.grammar()?));
    // The first mask shows what cannot begin at all, or only with too much work.
    match matcher.compute_mask_or_eos() {
        Ok(mask) if mask.is_zero() => Err(complaint("no text can match it")),
        Ok(_) => Ok(Grammar::new(Arc::new(Prepared::new(matcher)))),
        Err(error) => Err(complaint(&error.to_string())),
    }
}

fn complaint(message: &str) -> GrammarError {
    let short: String = message.trim().chars().take(MESSAGE_CHARS).collect();
    GrammarError::Invalid(short)
}
