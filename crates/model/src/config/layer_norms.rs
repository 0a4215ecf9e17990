//! Families whose norms are layer norms; in most of them attention and MLP stand beside each other.

use crate::error::Result;
use crate::json::Fields;
use spec::ModelSpec;
use spec::model::{Mlp, Norm, NormPlacement, QkNorm};

/// Cohere's factor of logits, where nothing is said of it.
const COHERE_LOGITS: f64 = 0.0625;

/// What others call GPT-NeoX's rotary parameters, what it calls them, and what they are where nothing is said of them.
const NEOX_ROTARY: [(&str, &str, f64); 2] =
    [("rope_theta", NEOX_THETA.0, NEOX_THETA.1), ("partial_rotary_factor", NEOX_PART.0, NEOX_PART.1)];
pub(super) const NEOX_THETA: (&str, f64) = ("rotary_emb_base", 1e4);
pub(super) const NEOX_PART: (&str, f64) = ("rotary_pct", 0.25);

pub(super) fn cohere(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    let spec = with_cohere(spec, fields.number("logit_scale")?.unwrap_or(COHERE_LOGITS));
    let is_plus = fields.flag("use_qk_norm")?.unwrap_or(false);
    Ok(ModelSpec { qk_norm: if is_plus { QkNorm::OwnHeads } else { spec.qk_norm }, ..spec })
}

pub(super) fn neox(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    // Who writes both names writes the same; of one alone transformers 4 takes it, and 5 does not.
    for (name, known, usual) in NEOX_ROTARY {
        let meant = fields.number(known)?.unwrap_or(usual);
        if fields.number(name)?.is_some_and(|value| value != meant) {
            return Err(fields.wrong(name, &format!("{meant}, by `{known}`")));
        }
    }
    Ok(with_neox(spec, fields.flag("use_parallel_residual")?.unwrap_or(true)))
}

pub(super) fn stablelm(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    Ok(with_stablelm(spec, fields.flag("use_parallel_residual")?.unwrap_or(false)))
}

/// What Command R has otherwise than Llama: one norm of a scale alone for attention and MLP, and a factor of logits.
pub(crate) fn with_cohere(spec: ModelSpec, logit_scale: f64) -> ModelSpec {
    let norm = Norm { shift: false, ..Norm::layer(spec.norm.eps) };
    ModelSpec { norm, placement: NormPlacement::Shared, logit_scale: logit_scale as f32, ..spec }
}

/// What Phi-2 has otherwise than Llama: one norm for attention and a plain MLP.
pub(crate) fn with_phi(spec: ModelSpec) -> ModelSpec {
    ModelSpec { placement: NormPlacement::Shared, ..with_starcoder2(spec) }
}

/// What GPT-NeoX has otherwise than Llama: a plain MLP, beside attention or behind it.
pub(crate) fn with_neox(spec: ModelSpec, parallel: bool) -> ModelSpec {
    let placement = if parallel { NormPlacement::Parallel } else { NormPlacement::Pre };
    ModelSpec { placement, ..with_starcoder2(spec) }
}

/// What StarCoder2 has otherwise than Llama: layer norms and a plain MLP.
pub(crate) fn with_starcoder2(spec: ModelSpec) -> ModelSpec {
    ModelSpec { norm: Norm::layer(spec.norm.eps), mlp: Mlp::Plain, ..spec }
}

/// What Nemotron has otherwise than Llama: layer norms, whose scales files hold less 1, and a plain MLP.
pub(crate) fn with_nemotron(spec: ModelSpec) -> ModelSpec {
    let spec = with_starcoder2(spec);
    ModelSpec { norm: Norm { from_one: true, ..spec.norm }, ..spec }
}

/// What StableLM has otherwise than Llama: layer norms, one for attention and MLP where they stand beside each other.
pub(crate) fn with_stablelm(spec: ModelSpec, parallel: bool) -> ModelSpec {
    let placement = if parallel { NormPlacement::Shared } else { NormPlacement::Pre };
    ModelSpec { norm: Norm::layer(spec.norm.eps), placement, ..spec }
}
