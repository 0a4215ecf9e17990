//! Factors that some architectures have on embeddings, scores, what layers add, and logits.

use crate::error::{Error, Result};
use crate::json::Fields;
use half::{bf16, f16};
use spec::ModelSpec;
use spec::model::{DType, Norm, NormPlacement, RopeLayers};

/// Gemma 2's caps of scores and of logits, where nothing is said of them.
pub(crate) const GEMMA_SCORE_CAP: f64 = 50.0;
pub(crate) const GEMMA_LOGIT_CAP: f64 = 30.0;

/// Granite's four factors.
pub(super) fn granite(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    let factor = |name| fields.number(name).map(|factor| factor.unwrap_or(1.0));
    Ok(with_granite(
        spec,
        &Granite {
            embedding: factor("embedding_multiplier")?,
            attention: factor("attention_multiplier")?,
            residual: factor("residual_multiplier")?,
            logits: factor("logits_scaling")?,
        },
    ))
}

/// A Granite 4 whose layers all attend; `num_local_experts` others refuse.
pub(super) fn granite4(fields: &Fields, spec: ModelSpec) -> Result<ModelSpec> {
    // Without this field they are Mamba's, and there are experts.
    let kinds = fields.texts("layer_types")?.unwrap_or_default();
    let other = kinds.iter().find(|kind| !["attention", "full_attention"].contains(kind));
    if other.is_some() || kinds.len() != spec.layers || fields.get("num_local_experts").is_none() {
        let what = match other {
            Some(kind) => format!("a layer of type `{}`", kind.escape_debug()),
            None => "a Granite 4 that does not say `attention` for each layer, and no experts,".into(),
        };
        return Err(Error::unsupported(fields.file, what, "Granite 4 without Mamba and experts"));
    }
    let rope_layers = match fields.text("position_embedding_type")? {
        Some("rope") => RopeLayers::All,
        None => RopeLayers::Listed(vec![false; spec.layers]),
        Some(_) => return Err(fields.wrong("position_embedding_type", "rope or null")),
    };
    Ok(ModelSpec { rope_layers, ..spec })
}

/// The factors of a Granite.
pub(crate) struct Granite {
    /// Of embeddings.
    pub(crate) embedding: f64,
    /// Of attention's scores.
    pub(crate) attention: f64,
    /// Of what attention and MLP add to the residual stream.
    pub(crate) residual: f64,
    /// What logits are divided by.
    pub(crate) logits: f64,
}

/// A Llama with these factors. The residual stream is kept divided by `residual`, so that layers add to it as they do elsewhere:
/// `x / r + f(norm(x))` for `x + r f(norm(x))`. The norms see through it, if what they add under the root is divided by its
/// square.
pub(crate) fn with_granite(spec: ModelSpec, factors: &Granite) -> ModelSpec {
    let eps = f64::from(spec.norm.eps) / (factors.residual * factors.residual);
    ModelSpec {
        norm: Norm { eps: eps as f32, ..spec.norm },
        attention_scale: factors.attention as f32,
        embed_scale: (factors.embedding / factors.residual) as f32,
        logit_scale: (1.0 / factors.logits) as f32,
        ..spec
    }
}

/// What Gemma has otherwise than Llama, of a checkpoint of these numbers.
pub(super) fn gemma(spec: ModelSpec, dtype: DType) -> ModelSpec {
    let embed_scale = of_gemma_embeddings(spec.hidden, dtype);
    ModelSpec { norm: Norm { from_one: true, ..spec.norm }, embed_scale, ..spec }
}

/// What Gemma 2 has otherwise than Gemma 3: caps of scores and of logits, which may be none.
pub(super) fn gemma2(fields: &Fields, spec: ModelSpec, dtype: DType) -> Result<ModelSpec> {
    let cap = |name, known| -> Result<Option<f32>> {
        let known = Some(known).filter(|_| !fields.has_null(name));
        Ok(fields.number(name)?.or(known).map(|cap| cap as f32))
    };
    let score_cap = cap("attn_logit_softcapping", GEMMA_SCORE_CAP)?;
    let logit_cap = cap("final_logit_softcapping", GEMMA_LOGIT_CAP)?;
    Ok(ModelSpec { score_cap, logit_cap, ..gemma3(fields, spec, dtype)? })
}

/// What Gemma 3 has otherwise than Gemma: norms around all that is added, and scores of a factor of their own.
pub(super) fn gemma3(fields: &Fields, spec: ModelSpec, dtype: DType) -> Result<ModelSpec> {
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    let attention_scale = (1.0 / scalar.sqrt()) as f32;
    Ok(ModelSpec { placement: NormPlacement::Around, attention_scale, ..gemma(spec, dtype) })
}

/// The factor of embeddings as a checkpoint of such numbers was trained with it.
pub(crate) fn of_gemma_embeddings(hidden: usize, dtype: DType) -> f32 {
    let factor = (hidden as f32).sqrt();
    match dtype {
        DType::F32 => factor,
        DType::F16 => f16::from_f32(factor).to_f32(),
        DType::Bf16 => bf16::from_f32(factor).to_f32(),
    }
}
