//! Whether a description is one of a model that can be.

use std::fmt;

use super::{ModelSpec, RopeLayers, SpecError, Window};
use crate::heads;
use crate::rope::Rope;

impl ModelSpec {
    /// Checks that the sizes agree and are small enough that no product of two overflows.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_sizes()?;
        self.check_heads()?;
        self.check_numbers()?;
        self.check_windows()?;
        self.check_total()
    }

    fn check_sizes(&self) -> Result<(), SpecError> {
        const MOST: usize = 1 << 24;
        let sizes = [
            ("vocab", self.vocab),
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("ffn", self.ffn),
            ("max_positions", self.max_positions),
            ("embed_dim", self.embed_dim),
        ];
        for (field, found) in sizes {
            expect(field, found, (1..=MOST).contains(&found), || format!("1 to {MOST}"))?;
        }
        const MOST_LAYERS: usize = u16::MAX as usize;
        expect("layers", self.layers, self.layers <= MOST_LAYERS, || format!("at most {MOST_LAYERS}"))?;
        let rows = self.heads.saturating_mul(self.head_dim);
        expect("heads", rows, rows <= MOST, || format!("heads * head_dim at most {MOST}"))
    }

    fn check_heads(&self) -> Result<(), SpecError> {
        heads::check(self.head_dim)?;
        let divides = self.heads.is_multiple_of(self.kv_heads);
        expect("kv_heads", self.kv_heads, divides, || format!("a divisor of heads, {}", self.heads))?;
        self.rope().map_or(Ok(()), |rope| self.check_rope(rope))?;
        match &self.rope_layers {
            RopeLayers::All => Ok(()),
            RopeLayers::Listed(turns) => {
                expect("rope layers", turns.len(), turns.len() == self.layers, || {
                    format!("an entry for each of {} layers", self.layers)
                })
            }
            RopeLayers::WindowsBy(rope) => {
                self.check_rope(rope)?;
                let by_length = [Some(rope), self.rope()].into_iter().flatten().any(Rope::depends_on_length);
                expect("rope", "dynamic or longrope", !by_length, || {
                    "another scaling, where layers with a window turn otherwise".into()
                })
            }
        }
    }

    fn check_rope(&self, rope: &Rope) -> Result<(), SpecError> {
        let dims = rope.rotary_dims(self.head_dim);
        let even = dims >= 2 && dims.is_multiple_of(2) && dims <= self.head_dim;
        expect("positions", dims, even, || "an even number of rotary dimensions within a head".into())?;
        rope.check(dims)
    }

    fn check_numbers(&self) -> Result<(), SpecError> {
        let eps = self.norm.eps;
        expect("norm", eps, eps.is_finite() && (0.0..=1.0).contains(&eps), || "eps in 0 to 1".into())?;
        let factors = [
            ("attention_scale", self.attention_scale),
            ("embed_scale", self.embed_scale),
            ("logit_scale", self.logit_scale),
        ];
        for (field, factor) in factors {
            let range = 1e-6..=1e6;
            expect(field, factor, range.contains(&factor), || "a positive factor, from 1e-6 to 1e6".into())?;
        }
        for (field, cap) in [("score_cap", self.score_cap), ("logit_cap", self.logit_cap)] {
            let cap = cap.unwrap_or(1.0);
            expect(field, cap, (1e-3..=1e6).contains(&cap), || "a cap from 0.001 to 1e6".into())?;
        }
        let taken_in =
            self.logit_scale == 1.0 || (self.final_norm && self.norm.affine && !self.norm.has_bias());
        expect("logit_scale", self.logit_scale, taken_in, || {
            "1, without a final norm of a scale alone".into()
        })
    }

    /// So that no count of bytes overflows.
    fn check_total(&self) -> Result<(), SpecError> {
        let layer = self.layer_linear_parameters() + self.layer_vector_parameters();
        let most = (1 << 56) / self.layers as u64;
        expect("layers", self.layers, layer <= most, || {
            format!("at most {} of {layer} weights", (1u64 << 56) / layer)
        })
    }

    fn check_windows(&self) -> Result<(), SpecError> {
        let tokens: Vec<_> = match &self.window {
            Window::Full => vec![],
            Window::Sliding(tokens) => vec![*tokens],
            Window::PerLayer(all) => {
                expect("window", all.len(), all.len() == self.layers, || {
                    format!("an entry for each of {} layers", self.layers)
                })?;
                all.iter().flatten().copied().collect()
            }
        };
        tokens.iter().try_for_each(|t| expect("window", t, *t > 0, || "at least 1 token".into()))
    }
}

/// `Err` unless `holds`.
pub(crate) fn expect(
    field: &'static str,
    found: impl fmt::Display,
    holds: bool,
    expected: impl FnOnce() -> String,
) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(SpecError { field, found: found.to_string(), expected: expected() }) }
}
