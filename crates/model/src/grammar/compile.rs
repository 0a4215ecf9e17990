//! Compiling what strangers send: on a thread of its own, with an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};

use super::guide::Prepared;
use super::{GrammarError, Source};
use crate::sampling::Grammar;

/// Schemas nest, and the compiler follows them down.
const STACK_BYTES: usize = 32 << 20;
/// Characters of the compiler's complaints that are passed on.
const MESSAGE_CHARS: usize = 300;

/// What the first steps of a lexer may cost, of which each part takes about a tenth of a microsecond.
const FIRST_STEPS_FUEL: u64 = 500_000;

/// Limits of work and memory: seconds to compile at the very worst, 20 ms and 32 MiB while a text is made.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 200_000,
        max_lexer_states: 16_000,
        initial_lexer_fuel: 250_000,
        // An object of as many properties as there may be, of which all may be left out, takes four each.
        max_items_in_row: 10_000,
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

    pub(super) fn has_place(&self) -> bool {
        self.busy.load(Relaxed) < self.limit
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
        let result = build(&factory, &source).map_err(|error| error.of(source.kind));
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
    let grammar = source.grammar()?;
    begin(factory, grammar.clone())?;
    let mut matcher = Matcher::new(factory.create_parser(grammar));
    // The first mask shows what cannot begin at all, or only with too much work.
    match matcher.compute_mask_or_eos() {
        Ok(mask) if mask.is_zero() => Err(complaint("no text can match it")),
        Ok(_) => Ok(Grammar::new(Arc::new(Prepared::new(matcher, source.text.len())))),
        Err(error) => Err(complaint(&error.to_string())),
    }
}

/// Takes the lexer's first steps with a limit. A parser takes the same ones as it is made, but without: whether two
/// expressions have a text in common, which each step asks, may be found out for ever.
fn begin(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<(), GrammarError> {
    let mut limits = factory.limits().clone();
    let internal =
        GrammarInit::Serialized(grammar).to_internal(Some(factory.tok_env().clone()), limits.clone());
    let (_, lexer) = internal.map_err(|error| complaint(&error.to_string()))?;
    let mut steps = lexer.to_regex_vec(&mut limits).map_err(|error| complaint(&error.to_string()))?;
    let start = steps.initial_state(&lexer.all_lexemes());
    steps.set_fuel(FIRST_STEPS_FUEL);
    for byte in 0..=u8::MAX {
        steps.transition(start, byte);
        if let Some(error) = steps.get_error() {
            return Err(complaint(&format!("its expressions are too much to tell apart: {error}")));
        }
    }
    Ok(())
}

fn complaint(message: &str) -> GrammarError {
    let short: String = message.trim().chars().take(MESSAGE_CHARS).collect();
    GrammarError::Invalid(short)
}
