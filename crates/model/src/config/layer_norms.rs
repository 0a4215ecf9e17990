//! Families whose norms are layer norms; in most of them attention and MLP stand beside each other.

use crate::error::Result;
use crate::json::Fields;
use spec::ModelSpec;
use spec::model::{Mlp, Norm, NormPlacement};

/// Cohere's factor of logits, where nothing is said of it.
const COHERE_LOGITS: f64 = 0.0625;

pub(super) fn cohere(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    Ok(with_cohere(spec, fields.number("logit_scale")?.unwrap_or(COHERE_LOGITS)))
}

pub(super) fn neox(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
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

/// What StableLM has otherwise than Llama: layer norms, one for attention and MLP where they stand beside each other.
pub(crate) fn with_stablelm(spec: ModelSpec, parallel: bool) -> ModelSpec {
    let placement = if parallel { NormPlacement::Shared } else { NormPlacement::Pre };
    ModelSpec { norm: Norm::layer(spec.norm.eps), placement, ..spec }
}
