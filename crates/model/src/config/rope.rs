//! Rotary parameters: `rope_scaling` and `rope_theta` of transformers 4, `rope_parameters` of 5.

use crate::error::{Error, Result};
use crate::json::Fields;
use spec::rope::{Rope, RopeScaling, Yarn};

const THETA_DEFAULT: f64 = 10_000.0;

/// The longest sequence of a model that was trained on `max_positions`: scaling stretches them, as vLLM derives it. With
/// llama3, `max_position_embeddings` says what comes of that.
pub(super) fn stretched(rope: &Rope, max_positions: usize) -> usize {
    let (positions, factor) = match &rope.scaling {
        RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. } => (max_positions, *factor),
        RopeScaling::Yarn(yarn) => (yarn.original_positions, yarn.factor),
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => (max_positions, 1.0),
    };
    let stretched = positions as f64 * factor;
    // What is no factor is refused as such when the model is checked.
    if stretched >= 1.0 { stretched as usize } else { max_positions }
}

/// The rotary embedding of a model that was trained on `max_positions`.
pub(super) fn read(fields: &Fields, max_positions: usize) -> Result<Rope> {
    let outer_theta = fields.number("rope_theta")?;
    let Some(inner) = parameters(fields)? else {
        refuse_partial(fields)?;
        return Ok(Rope::plain(outer_theta.unwrap_or(THETA_DEFAULT)));
    };
    refuse_partial(fields)?;
    refuse_partial(&inner)?;
    let theta = inner.number("rope_theta")?.or(outer_theta).unwrap_or(THETA_DEFAULT);
    Ok(Rope { theta, scaling: scaling(fields, &inner, max_positions)?, rotary_fraction: 1.0 })
}

/// The older name wins where both are there, as in transformers 5.
fn parameters<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    for name in ["rope_scaling", "rope_parameters"] {
        if let Some(inner) = fields.object(name)?.filter(|inner| !inner.is_empty()) {
            if inner.get("full_attention").is_some() || inner.get("sliding_attention").is_some() {
                let what = format!("`{name}` that differs between layers");
                return Err(Error::unsupported(fields.file, what, "one rotary embedding for all layers"));
            }
            return Ok(Some(inner));
        }
    }
    Ok(None)
}

/// None of the architectures turns a part of a head; transformers would pass over it or fail.
fn refuse_partial(fields: &Fields) -> Result<()> {
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(other) => {
            Err(Error::unsupported(fields.file, format!("`partial_rotary_factor` = {other}"), "1"))
        }
    }
}

fn scaling(outer: &Fields, inner: &Fields, max_positions: usize) -> Result<RopeScaling> {
    let kind = match inner.text("rope_type")? {
        Some(kind) => kind,
        None => inner.text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: inner.needed_number("factor")? }),
        "dynamic" => Ok(RopeScaling::Dynamic {
            factor: inner.needed_number("factor")?,
            original_positions: max_positions,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: inner.needed_number("factor")?,
            low_freq_factor: inner.needed_number("low_freq_factor")?,
            high_freq_factor: inner.needed_number("high_freq_factor")?,
            original_positions: original_positions(outer, inner, max_positions)?,
        }),
        "yarn" => yarn(outer, inner, max_positions).map(RopeScaling::Yarn),
        other => Err(Error::unsupported(
            outer.file,
            format!("RoPE scaling `{}`", other.escape_debug()),
            "default, linear, dynamic, llama3, yarn",
        )),
    }
}

/// The field outside wins, then the one inside, then the context itself.
fn original_positions(outer: &Fields, inner: &Fields, max_positions: usize) -> Result<usize> {
    let name = "original_max_position_embeddings";
    Ok(outer.size(name)?.or(inner.size(name)?).unwrap_or(max_positions))
}

fn yarn(outer: &Fields, inner: &Fields, max_positions: usize) -> Result<Yarn> {
    let original_positions = original_positions(outer, inner, max_positions)?;
    let implied = max_positions as f64 / original_positions.max(1) as f64;
    let nonzero = |x: &f64| *x != 0.0;
    Ok(Yarn {
        factor: inner.number("factor")?.unwrap_or(implied),
        original_positions,
        attention_factor: inner.number("attention_factor")?,
        beta_fast: inner.number("beta_fast")?.filter(nonzero).unwrap_or(32.0),
        beta_slow: inner.number("beta_slow")?.filter(nonzero).unwrap_or(1.0),
        mscale: inner.number("mscale")?.filter(nonzero),
        mscale_all_dim: inner.number("mscale_all_dim")?.filter(nonzero),
        // A field that says `null` is not true, and the field that is not there is.
        truncate: inner.flag("truncate")?.unwrap_or(!inner.has_null("truncate")),
    })
}
