//! Rotary embeddings, as GGUF files describe them.

use super::Gguf;
use super::to_spec::{Keys, TEMPERATURE};
use crate::error::{Error, Result};
use crate::stored::Stored;
use spec::rope::{Growth, LongRope, Rope, RopeScaling, Yarn};

/// Divisors of frequencies of short and long sequences.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

impl Keys<'_> {
    /// What rotary frequencies are divided by, under its name or its older one; none for 0, and for 1.
    fn rope_factor(&self) -> Result<Option<f64>> {
        let factor = match self.float("rope.scaling.factor")? {
            None => self.float("rope.scale_linear")?,
            factor => factor,
        };
        Ok(factor.filter(|factor| *factor != 0.0 && *factor != 1.0))
    }

    fn original_context(&self) -> Result<Option<usize>> {
        Ok(self.size("rope.scaling.original_context_length")?.filter(|tokens| *tokens != 0))
    }

    /// The same, or else the context that the file names.
    fn trained_context(&self) -> Result<usize> {
        match self.original_context()? {
            None => self.needed_size("context_length"),
            Some(tokens) => Ok(tokens),
        }
    }
}

impl Gguf {
    pub(super) fn rope(&self, keys: &Keys, head_dim: usize) -> Result<Rope> {
        let key = "rope.dimension_count";
        let dims = keys.size(key)?.unwrap_or(head_dim);
        // The rows of whole heads are put in order, and not those of a part.
        if dims != head_dim && self.pairs_rows() && !self.pairs_rows_of_a_part() {
            let what = format!("`{}` = {dims}, with heads of {head_dim}", keys.name(key));
            return Err(Error::unsupported(self.metadata.file(), what, "rotation of whole heads"));
        }
        let theta = keys.float("rope.freq_base")?.unwrap_or(10_000.0);
        let rotary_fraction = dims as f64 / head_dim.max(1) as f64;
        Ok(Rope { theta, scaling: self.scaling(keys)?, rotary_fraction, growth: growth(keys)? })
    }

    /// The context that YaRN makes of the original one, which some converters write as `context_length`; 0 where the file does
    /// not say which is the original one.
    pub(super) fn stretched(&self, keys: &Keys) -> Result<usize> {
        Ok(match (self.scaling(keys)?, keys.original_context()?) {
            (RopeScaling::Yarn(yarn), Some(original)) => (original as f64 * yarn.factor) as usize,
            _ => 0,
        })
    }

    /// As llama.cpp takes it: the type is linear where the file does not say.
    fn scaling(&self, keys: &Keys) -> Result<RopeScaling> {
        if self.has(LONG) {
            return self.long(keys).map(RopeScaling::Long);
        }
        let kind = keys.metadata.text(&keys.name("rope.scaling.type"))?.unwrap_or("linear");
        let key = "rope.scaling.attn_factor";
        if let Some(factor) = keys.float(key)?.filter(|factor| kind != "yarn" && *factor != 1.0) {
            let what = format!("`{}` = {}", keys.name(key), factor as f32);
            return Err(Error::unsupported(self.metadata.file(), what, "yarn and longrope with it"));
        }
        match (kind, keys.rope_factor()?) {
            ("none", _) | ("linear" | "yarn", None) if self.has("rope_freqs.weight") => {
                self.rope_factors("rope_freqs.weight").map(RopeScaling::Factors)
            }
            ("none", _) | ("linear" | "yarn", None) => Ok(RopeScaling::None),
            ("linear" | "yarn", _) if self.has("rope_freqs.weight") => Err(Error::unsupported(
                self.metadata.file(),
                "RoPE scaling by both `rope.scaling.factor` and `rope_freqs.weight`",
                "either of them",
            )),
            ("linear", Some(factor)) => Ok(RopeScaling::Linear { factor }),
            ("yarn", Some(factor)) => yarn(keys, factor).map(RopeScaling::Yarn),
            (other, _) => Err(Error::unsupported(
                self.metadata.file(),
                format!("RoPE scaling `{}`", other.escape_debug()),
                "none, linear, yarn, and llama3 by `rope_freqs.weight`",
            )),
        }
    }

    /// Phi-3's, of which llama.cpp takes one set for all sequences of a context, and transformers the one for a sequence's length.
    fn long(&self, keys: &Keys) -> Result<LongRope> {
        let context = keys.needed_size("context_length")?;
        let original_positions = keys.trained_context()?;
        let stretch = context as f64 / original_positions.max(1) as f64;
        let implied = LongRope::attention_factor_of(stretch, original_positions);
        Ok(LongRope {
            short: self.rope_factors(SHORT)?,
            long: self.rope_factors(LONG)?,
            original_positions,
            attention_factor: keys.float("rope.scaling.attn_factor")?.unwrap_or(implied),
        })
    }

    fn rope_factors(&self, name: &str) -> Result<Vec<f32>> {
        let found = self.entries.iter().find(|(_, e)| e.name == name);
        let fault = || Error::malformed(self.metadata.file(), format!("`{name}`"), "a vector of F32");
        let (file, entry) = found.ok_or_else(fault)?;
        if entry.stored != Stored::F32 || entry.dims.len() != 1 || entry.bytes > 1 << 16 {
            return Err(fault());
        }
        let mut bytes = vec![0; entry.bytes as usize];
        self.files.get(*file).ok_or_else(fault)?.read_at(entry.offset, &mut bytes)?;
        let mut factors = vec![0.0; bytes.len() / 4];
        entry.stored.decode_plain(&bytes, &mut factors).ok_or_else(fault)?;
        Ok(factors)
    }
}

/// That of Ministral 3, of which llama.cpp writes its strength.
fn growth(keys: &Keys) -> Result<Option<Growth>> {
    let Some(beta) = keys.float(TEMPERATURE)?.filter(|beta| *beta != 0.0) else { return Ok(None) };
    Ok(Some(Growth { beta: beta as f32, period: keys.trained_context()? }))
}

fn yarn(keys: &Keys, factor: f64) -> Result<Yarn> {
    // How much of it llama.cpp mixes in: all where it is 1, or negative.
    let mixed = "rope.scaling.yarn_ext_factor";
    if let Some(factor) = keys.float(mixed)?.filter(|factor| *factor >= 0.0 && *factor != 1.0) {
        let what = format!("`{}` = {}", keys.name(mixed), factor as f32);
        return Err(Error::unsupported(keys.metadata.file(), what, "all of yarn, or none"));
    }
    let own =
        if keys.architecture == "mistral3" { keys.float("rope.scaling.yarn_log_multiplier")? } else { None };
    let mscale_all_dim = own.filter(|scale| *scale != 0.0);
    let yarn = Yarn {
        factor,
        original_positions: keys.trained_context()?,
        attention_factor: None,
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        // llama.cpp takes the other one for 1.
        mscale: mscale_all_dim.map(|_| 1.0),
        mscale_all_dim,
        truncate: true,
    };
    Ok(Yarn { attention_factor: attention_factor(keys, yarn.attention_factor())?, ..yarn })
}

/// Converters write the `attention_factor` of Hugging Face, which is the whole of it, as `yarn_attn_factor`. llama.cpp multiplies
/// by `attn_factor`. Either is 1 where a writer has nothing to say.
fn attention_factor(keys: &Keys, usual: f64) -> Result<Option<f64>> {
    let whole = keys.float("rope.scaling.yarn_attn_factor")?.filter(|f| *f != 1.0);
    let times = keys.float("rope.scaling.attn_factor")?.filter(|f| *f != 1.0);
    Ok(times.map(|times| times * whole.unwrap_or(usual)).or(whole))
}
