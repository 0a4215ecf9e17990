//! `truncate_prompt_tokens` and `truncation_side`: how much of a prompt that is too long is kept, and which end of it.

use std::ops::Range;

use super::ApiError;
use super::fields::Fields;

/// What becomes of long prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncation {
    keep: Keep,
    side: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Everything,
    Tokens(usize),
    /// As many as leave room for the answer.
    WhatFits,
}

/// Which end goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Truncation {
    pub(super) fn read(fields: &mut Fields) -> Result<Truncation, ApiError> {
        let tokens = fields.integer("truncate_prompt_tokens")?;
        let keep = match tokens.map(|n| (n, u32::try_from(n))) {
            None => Keep::Everything,
            Some((_, Ok(n))) => Keep::Tokens(n as usize),
            Some((-1, _)) => Keep::WhatFits,
            Some((n, _)) => {
                let message = format!(
                    "truncate_prompt_tokens: {n}; expected a count, or -1 for as many as leave room for the answer"
                );
                return Err(ApiError::invalid("truncate_prompt_tokens", message));
            }
        };
        let side = match fields.text("truncation_side")?.as_deref() {
            None | Some("left") => Side::Left,
            Some("right") => Side::Right,
            Some(_) => {
                return Err(ApiError::invalid("truncation_side", "truncation_side: expected left or right"));
            }
        };
        Ok(Truncation { keep, side })
    }

    /// Whether a prompt may be as long as the context and no longer.
    pub(super) fn is_off(self) -> bool {
        self.keep == Keep::Everything
    }

    /// Where tokens that were at `given` in a prompt of `from` tokens are now that it has `to`.
    pub(super) fn moved(self, given: Range<usize>, from: usize, to: usize) -> Range<usize> {
        let before = match self.side {
            Side::Left => from - to,
            Side::Right => 0,
        };
        let now = |at: usize| at.saturating_sub(before).min(to);
        now(given.start)..now(given.end)
    }

    /// Shortens a prompt. `fits`: tokens that leave room for its answer; where there are none, it stays, to be told that it
    /// is too long.
    pub(super) fn cut(self, prompt: &mut Vec<u32>, fits: usize) {
        let keep = match self.keep {
            Keep::Everything => return,
            Keep::Tokens(keep) => keep,
            Keep::WhatFits if fits == 0 => return,
            Keep::WhatFits => fits,
        };
        match self.side {
            Side::Left => drop(prompt.drain(..prompt.len().saturating_sub(keep))),
            Side::Right => prompt.truncate(keep),
        }
    }
}
