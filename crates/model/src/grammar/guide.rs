//! A sequence's place in its grammar.

use std::fmt;
use std::sync::Mutex;

use llguidance::Matcher;

use crate::sampling::{Guide, Language, SampleError};

/// What a grammar takes beside what grows with its source.
const FIXED_BYTES: usize = 64 << 10;
/// Bytes that a byte of source becomes, an estimate from above of what llguidance makes of schemas.
const GROWTH: usize = 64;

/// A compiled grammar at its beginning.
pub(super) struct Prepared {
    matcher: Mutex<Matcher>,
    bytes: usize,
}

impl Prepared {
    /// Of a source of so many bytes.
    pub(super) fn new(matcher: Matcher, source_bytes: usize) -> Prepared {
        Prepared { matcher: Mutex::new(matcher), bytes: FIXED_BYTES + GROWTH * source_bytes }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

impl Language for Prepared {
    fn begin(&self) -> Box<dyn Guide> {
        let matcher = self.matcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).deep_clone();
        Box::new(Walk { matcher, ended: false })
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One text on its way.
struct Walk {
    matcher: Matcher,
    /// The text has ended.
    ended: bool,
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Walk(ended: {})", self.ended)
    }
}

impl Guide for Walk {
    fn mask(&mut self, row: &mut [f32], ends: &[u32], asked: &[u32]) -> Result<(), SampleError> {
        if self.ended {
            only(row, &[ends, asked].concat());
            return Ok(());
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(|_| SampleError::TooComplex)?;
        // The last id of the mask is the end of text. A model's own ids for that are special, which no text has, or should be.
        let end = allowed.len() - 1;
        let here = |id: u32| Some((id as usize, *row.get(id as usize)?));
        let kept: Vec<(usize, f32)> = match allowed.get(end) {
            true => ends.iter().chain(asked).filter_map(|&id| here(id)).collect(),
            false => ends.iter().filter_map(|&id| here(id)).map(|(id, _)| (id, f32::NEG_INFINITY)).collect(),
        };
        for (words, logits) in allowed.as_slice().iter().zip(row.chunks_mut(32)) {
            mask_word(*words, logits);
        }
        let known = end.min(row.len());
        row[known..].fill(f32::NEG_INFINITY);
        kept.into_iter().for_each(|(id, logit)| row[id] = logit);
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        // A token that does not belong here puts the matcher into a state of error, which the next mask tells.
        let _ = self.matcher.consume_token(token);
    }

    fn end(&mut self) {
        self.ended = true;
    }
}

/// One bit a logit, the lowest first.
fn mask_word(word: u32, logits: &mut [f32]) {
    if word == u32::MAX {
        return;
    }
    for (bit, logit) in logits.iter_mut().enumerate() {
        if word >> bit & 1 == 0 {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn only(row: &mut [f32], ids: &[u32]) {
    for (id, logit) in (0..).zip(row) {
        if !ids.contains(&id) {
            *logit = f32::NEG_INFINITY;
        }
    }
}
