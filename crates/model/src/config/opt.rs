//! OPT, which is shaped otherwise than all that came after Llama.

use super::family::{Family, activation, layer_count};
use crate::error::Result;
use crate::json::Fields;
use spec::ModelSpec;
use spec::model::{Biases, DType, Mlp, Norm, NormPlacement, Positions, QkNorm, RopeLayers, Window};

/// Rows before that of position 0 in OPT's table.
const OPT_POSITION_OFFSET: usize = 2;

/// The model; its `dtype` is for the caller to set.
pub(super) fn opt(fields: &Fields) -> Result<ModelSpec> {
    let hidden = fields.needed_size("hidden_size")?;
    let heads = fields.needed_size("num_attention_heads")?;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(fields.wrong("num_attention_heads", &format!("a divisor of hidden_size, {hidden}")));
    }
    let pre = fields.flag("do_layer_norm_before")?.unwrap_or(true);
    let bias = fields.flag("enable_bias")?.unwrap_or(true);
    let affine = fields.flag("layer_norm_elementwise_affine")?.unwrap_or(true);
    Ok(ModelSpec {
        architecture: Family::Opt.class().into(),
        vocab: fields.needed_size("vocab_size")?,
        hidden,
        layers: layer_count(fields, fields.needed_size("num_hidden_layers")?)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: fields.needed_size("ffn_dim")?,
        max_positions: Family::Opt.rope_defaults(fields)?.max_positions,
        norm: Norm { affine, ..Norm::layer(1e-5) },
        placement: if pre { NormPlacement::Pre } else { NormPlacement::Post },
        final_norm: pre && !fields.flag("_remove_final_layer_norm")?.unwrap_or(false),
        activation: activation(fields, "activation_function", "relu")?,
        mlp: Mlp::Plain,
        positions: Positions::Learned { offset: OPT_POSITION_OFFSET },
        rope_layers: RopeLayers::All,
        biases: Biases { qkv: bias, o: bias, mlp: bias, head: false },
        qk_norm: QkNorm::None,
        attention_scale: 1.0 / ((hidden / heads) as f32).sqrt(),
        score_cap: None,
        window: Window::Full,
        tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        embed_dim: fields.size("word_embed_proj_dim")?.unwrap_or(hidden),
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        bos: Family::Opt.bos(fields)?,
        eos: Family::Opt.ends(fields)?,
        dtype: DType::F32,
    })
}
