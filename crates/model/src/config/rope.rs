//! Rotary parameters: `rope_scaling` and `rope_theta` of transformers 4, `rope_parameters` of 5.

use super::Family;
use super::layer_norms::{NEOX_PART, NEOX_THETA};
use crate::error::{Error, Result};
use crate::json::Fields;
use spec::model::RopeLayers;
use spec::rope::{Growth, LongRope, Rope, RopeScaling, Yarn};

/// What transformers takes where a configuration does not say.
pub(super) struct Defaults {
    /// Positions that the model was trained on.
    pub(super) max_positions: usize,
    /// Base of the wavelengths.
    pub(super) theta: f64,
    /// Positions that it was trained on before, if not as many; what a configuration says inside its scaling is then nothing.
    pub(super) original_positions: Option<usize>,
    /// The part of each head that is turned, where that may be a part. Where it may not, transformers would pass over it or fail.
    pub(super) partial: Option<f64>,
    /// Whether queries grow with their position (Ministral 3).
    pub(super) grows: bool,
    /// Whether parts of a head turn by time, height and width, which are all the position where there is text alone.
    pub(super) in_sections: bool,
}

impl Family {
    /// The defaults of transformers' configuration classes.
    pub(super) fn rope_defaults(self, fields: &Fields) -> Result<Defaults> {
        let (max_positions, theta) = match self {
            Family::Mistral => (131_072, 1e4),
            Family::Ministral3 => (262_144, 1e4),
            Family::Qwen2 | Family::Qwen3 => (32_768, 1e4),
            Family::Qwen2Vl => (32_768, 1e6),
            Family::Qwen3Vl => (128_000, 5e5),
            Family::Phi3 => (4096, 1e4),
            Family::SmolLm3 => (32_768, 2e6),
            Family::Gemma | Family::Gemma2 => (8192, 1e4),
            Family::Gemma3 => (131_072, 1e6),
            Family::Olmo3 => (2048, 5e5),
            Family::SeedOss => (524_288, 1e4),
            Family::Glm | Family::Glm4 => (131_072, 1e4),
            Family::Ernie45 => (131_072, 5e5),
            Family::Cohere => (8192, 5e5),
            Family::Cohere2 => (8192, 1e4),
            Family::StarCoder2 | Family::StableLm | Family::Arcee | Family::Nemotron => (4096, 1e4),
            Family::NeoX => (2048, fields.number(NEOX_THETA.0)?.unwrap_or(NEOX_THETA.1)),
            Family::Llama
            | Family::Granite
            | Family::Granite4
            | Family::Exaone4
            | Family::Olmo2
            | Family::Phi
            | Family::Opt => (2048, 1e4),
        };
        let is_phi = self == Family::Phi3;
        Ok(Defaults {
            max_positions: fields.size("max_position_embeddings")?.unwrap_or(max_positions),
            theta,
            original_positions: is_phi.then_some(4096),
            partial: match self {
                Family::Phi3 => Some(1.0),
                Family::Glm | Family::Glm4 | Family::Phi | Family::Nemotron => Some(0.5),
                Family::NeoX => Some(fields.number(NEOX_PART.0)?.unwrap_or(NEOX_PART.1)),
                Family::StableLm => Some(0.25),
                _ => None,
            },
            grows: self == Family::Ministral3,
            in_sections: self.sees(),
        })
    }

    /// The rotary embedding, and which layers turn by it.
    pub(super) fn ropes(
        self,
        fields: &Fields,
        defaults: &Defaults,
        layers: usize,
    ) -> Result<(Rope, RopeLayers)> {
        let of_windows = match self {
            Family::Gemma3 => Some(fields.number("rope_local_base_freq")?.unwrap_or(1e4)),
            // One of both, as in transformers 4; 5 takes its default for windows where `rope_theta` is another.
            Family::Olmo3 => Some(fields.number("rope_theta")?.unwrap_or(defaults.theta)),
            _ => None,
        };
        if let Some(theta) = of_windows {
            let [rope, of_windows] = read_both(fields, defaults, theta)?;
            return Ok((rope, RopeLayers::WindowsBy(of_windows)));
        }
        let rope = read(fields, defaults)?;
        match self {
            Family::SmolLm3 => Ok((rope, RopeLayers::Listed(turning_layers(fields, layers)?))),
            _ => Ok((rope, RopeLayers::All)),
        }
    }
}

/// The longest sequence of a model that was trained on `max_positions`: scaling stretches them, as vLLM derives it. With
/// llama3 and longrope, `max_position_embeddings` says what comes of that.
pub(super) fn stretched(rope: &Rope, max_positions: usize) -> usize {
    let (positions, factor) = match &rope.scaling {
        RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor, .. } => (max_positions, *factor),
        RopeScaling::Yarn(yarn) => (yarn.original_positions, yarn.factor),
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Long(_) | RopeScaling::Factors(_) => {
            (max_positions, 1.0)
        }
    };
    let stretched = positions as f64 * factor;
    // What is no factor is refused as such when the model is checked.
    if stretched >= 1.0 { stretched as usize } else { max_positions }
}

/// The rotary embedding of a model.
pub(super) fn read(fields: &Fields, defaults: &Defaults) -> Result<Rope> {
    let inner = parameters(fields)?;
    if let Some((name, inner)) = &inner
        && BY_LAYER.iter().any(|kind| inner.get(kind).is_some())
    {
        let what = format!("`{name}` that differs between layers");
        return Err(Error::unsupported(fields.file, what, "one rotary embedding for all layers"));
    }
    let outer_theta = fields.number("rope_theta")?;
    rope(fields, inner.as_ref().map(|(_, inner)| inner), outer_theta.unwrap_or(defaults.theta), defaults)
}

/// Those of layers that see everything and of layers with a window, where they differ (Gemma 3).
pub(super) fn read_both(fields: &Fields, defaults: &Defaults, local_theta: f64) -> Result<[Rope; 2]> {
    let [full, sliding] = match parameters(fields)? {
        None => [None, None],
        Some((_, inner)) if BY_LAYER.iter().any(|kind| inner.get(kind).is_some()) => {
            [inner.object(BY_LAYER[0])?, inner.object(BY_LAYER[1])?]
        }
        // The older name means those that see everything; of the newer one transformers then takes nothing.
        Some(("rope_scaling", inner)) if fields.get("rope_parameters").is_none() => [Some(inner), None],
        Some(_) => {
            let what = "`rope_parameters` of no type of layers";
            return Err(Error::unsupported(fields.file, what, BY_LAYER.join(", ")));
        }
    };
    let theta = fields.number("rope_theta")?.unwrap_or(defaults.theta);
    Ok([
        rope(fields, full.as_ref(), theta, defaults)?,
        rope(fields, sliding.as_ref(), local_theta, defaults)?,
    ])
}

/// What `rope_parameters` is divided by, where layers differ.
const BY_LAYER: [&str; 2] = ["full_attention", "sliding_attention"];

fn rope(fields: &Fields, inner: Option<&Fields>, theta: f64, defaults: &Defaults) -> Result<Rope> {
    let name = "partial_rotary_factor";
    let inside = inner.map_or(Ok(None), |inner| inner.number(name))?;
    let usual = defaults.partial.unwrap_or(1.0);
    let rotary_fraction = inside.or(fields.number(name)?).unwrap_or(usual);
    if rotary_fraction != 1.0 && defaults.partial.is_none() {
        return Err(Error::unsupported(fields.file, format!("`{name}` = {rotary_fraction}"), "1"));
    }
    if inner.is_none() && defaults.grows {
        // transformers takes those of one size of it then, which files of others cannot mean.
        return Err(fields.wrong("rope_parameters", "those that Ministral 3 has"));
    }
    let Some(inner) = inner else { return Ok(Rope { rotary_fraction, ..Rope::plain(theta) }) };
    let theta = inner.number("rope_theta")?.unwrap_or(theta);
    Ok(Rope {
        theta,
        scaling: scaling(fields, inner, defaults)?,
        rotary_fraction,
        growth: growth(fields, inner, defaults)?,
    })
}

/// How queries grow, of an architecture where they do. How strongly has no default.
fn growth(fields: &Fields, inner: &Fields, defaults: &Defaults) -> Result<Option<Growth>> {
    if !defaults.grows {
        return Ok(None);
    }
    let beta = inner.needed_number("llama_4_scaling_beta")? as f32;
    let period = original_positions(fields, inner, defaults)?;
    Ok((beta != 0.0).then_some(Growth { beta, period }))
}

/// The older name wins where both are there, as in transformers 5.
fn parameters<'a>(fields: &Fields<'a>) -> Result<Option<(&'static str, Fields<'a>)>> {
    for name in ["rope_scaling", "rope_parameters"] {
        if let Some(inner) = fields.object(name)?.filter(|inner| !inner.is_empty()) {
            return Ok(Some((name, inner)));
        }
    }
    Ok(None)
}

fn scaling(outer: &Fields, inner: &Fields, defaults: &Defaults) -> Result<RopeScaling> {
    let kind = match inner.text("rope_type")? {
        Some(kind) => kind,
        None => inner.text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "mrope" if defaults.in_sections => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: inner.needed_number("factor")? }),
        "dynamic" => Ok(RopeScaling::Dynamic {
            factor: inner.needed_number("factor")?,
            original_positions: defaults.max_positions,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: inner.needed_number("factor")?,
            low_freq_factor: inner.needed_number("low_freq_factor")?,
            high_freq_factor: inner.needed_number("high_freq_factor")?,
            original_positions: original_positions(outer, inner, defaults)?,
        }),
        "longrope" => long(outer, inner, defaults).map(RopeScaling::Long),
        // What Phi-3 called it before.
        "su" | "yarn" if defaults.original_positions.is_some() => {
            long(outer, inner, defaults).map(RopeScaling::Long)
        }
        "yarn" => yarn(outer, inner, defaults).map(RopeScaling::Yarn),
        other => Err(Error::unsupported(
            outer.file,
            format!("RoPE scaling `{}`", other.escape_debug()),
            "default, linear, dynamic, llama3, yarn, longrope",
        )),
    }
}

/// The field outside wins, then the one inside, then the context itself.
fn original_positions(outer: &Fields, inner: &Fields, defaults: &Defaults) -> Result<usize> {
    let name = "original_max_position_embeddings";
    let outside = outer.size(name)?.or(defaults.original_positions);
    Ok(outside.or(inner.size(name)?).unwrap_or(defaults.max_positions))
}

fn long(outer: &Fields, inner: &Fields, defaults: &Defaults) -> Result<LongRope> {
    let original_positions = original_positions(outer, inner, defaults)?;
    let implied = defaults.max_positions as f64 / original_positions.max(1) as f64;
    let stretch = inner.number("factor")?.unwrap_or(implied);
    let factors = |name| -> Result<Vec<f32>> {
        let numbers = inner.numbers(name)?.ok_or_else(|| inner.wrong(name, "a list of numbers"))?;
        Ok(numbers.into_iter().map(|x| x as f32).collect())
    };
    Ok(LongRope {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original_positions,
        attention_factor: match inner.number("attention_factor")? {
            Some(given) => given,
            None => LongRope::attention_factor_of(stretch, original_positions),
        },
    })
}

fn yarn(outer: &Fields, inner: &Fields, defaults: &Defaults) -> Result<Yarn> {
    let original_positions = original_positions(outer, inner, defaults)?;
    let implied = defaults.max_positions as f64 / original_positions.max(1) as f64;
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

/// SmolLM3's layers that turn queries and keys: a one for each in `no_rope_layers`, or all but each fourth.
pub(super) fn turning_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let interval = fields.size("no_rope_layer_interval")?.unwrap_or(4);
    match fields.numbers("no_rope_layers")? {
        // transformers wants as many as there are layers at least.
        Some(turns) if turns.len() >= layers => {
            Ok(turns.iter().take(layers).map(|turn| *turn != 0.0).collect())
        }
        Some(_) => Err(fields.wrong("no_rope_layers", &format!("an entry for each of {layers} layers"))),
        None if interval == 0 => Err(fields.wrong("no_rope_layer_interval", "at least 1")),
        None => Ok((1..=layers).map(|layer| layer % interval != 0).collect()),
    }
}
