//! `quantization_config`: how a checkpoint's configuration says that its weights are stored.

use crate::error::{Error, Result};
use crate::json::Fields;

/// What is read, for messages.
const READ: &str = "GPTQ of 2, 3, 4 and 8 bits, AWQ of 4 (gemm), compressed-tensors of 2 to 8 (pack-quantized, int-quantized, \
                    float-quantized, naive-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized), ModelOpt's FP8, MXFP8 and \
                    NVFP4, FP8 (e4m3), bitsandbytes of 4 and 8 bits, F32, F16 and BF16 safetensors, and GGUF";

/// Of FP8, where a configuration says nothing of blocks: as in transformers.
const FP8_BLOCK: [usize; 2] = [128, 128];

/// How weights are stored that have fewer bits than their type says. What else there is to know, a matrix's own tensors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `qweight` has inputs packed into words, an output a column; `g_idx` says which group an input is of.
    Gptq {
        /// Of a code, where `g_idx` does not tell how many inputs there are.
        bits: u32,
        /// Codes mean as much below zero as above.
        symmetric: bool,
        /// What is added to a stored zero point: 1 in files of the first version.
        zeros_from: u8,
    },
    /// `qweight` has outputs packed into words, an input a row.
    Awq,
    /// `weight_packed`, or a `weight` of bytes, with `weight_scale` or `weight_scale_inv` beside it.
    Beside {
        /// Rows and columns that share a scale, where scales are of blocks.
        block: Option<[usize; 2]>,
    },
    /// `weight` of codes, with `weight.absmax` and others beside it, or of whole numbers with `SCB`.
    BitsAndBytes,
}

/// Quantisers that have had a file of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// `quantize_config.json`
    Gptq,
    /// `quant_config.json`
    Awq,
}

impl Scheme {
    /// What a configuration says, if it says anything.
    ///
    /// # Errors
    /// If it is malformed, or asks for what is not read.
    pub(crate) fn read(fields: &Fields) -> Result<Option<Scheme>> {
        // The second is an older one of compressed-tensors.
        for name in ["quantization_config", "compression_config"] {
            let Some(told) = fields.object(name)? else { continue };
            // ModelOpt has had its own inside.
            let inner = told.object("quantization")?;
            return match (told.text("quant_method")?, inner) {
                (Some("modelopt"), None) => Scheme::of_modelopt(&told),
                (Some("modelopt") | None, Some(inner)) => Scheme::of_modelopt(&inner),
                _ => Scheme::of(&told, name).map(Some),
            };
        }
        // MLX's, which writes the first name too.
        match fields.object("quantization")? {
            None => Ok(None),
            Some(told) => Err(unread(told.file, "mlx")),
        }
    }

    /// How ModelOpt's algorithms store weights. `told`: what has a field of its name.
    ///
    /// # Errors
    /// If it is one that is not read.
    pub(crate) fn of_modelopt(told: &Fields) -> Result<Option<Scheme>> {
        match told.text("quant_algo")? {
            // Where a cache alone is quantised, weights are as they were.
            None => Ok(None),
            Some("FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "MXFP8" | "NVFP4") => {
                Ok(Some(Scheme::Beside { block: None }))
            }
            Some(other) => Err(unread(told.file, &format!("modelopt to {other}"))),
        }
    }

    /// What the files say that quantisers wrote before there was a field for it.
    pub(crate) fn of_own_file(told: &Fields, method: Method) -> Result<Scheme> {
        match method {
            Method::Gptq => gptq(told),
            Method::Awq => awq(told),
        }
    }

    fn of(told: &Fields, name: &str) -> Result<Scheme> {
        match told.text("quant_method")?.or((name == "compression_config").then_some("compressed-tensors")) {
            Some("gptq") => gptq(told),
            Some("awq") => awq(told),
            Some("compressed-tensors") => compressed(told),
            Some("fp8") => fp8(told),
            Some("fbgemm_fp8") => Ok(Scheme::Beside { block: None }),
            Some("bitsandbytes") => Ok(Scheme::BitsAndBytes),
            Some(other) => Err(unread(told.file, other)),
            None if told.first_set(&["load_in_4bit", "load_in_8bit"]).is_some() => Ok(Scheme::BitsAndBytes),
            None if told.get("group_size").is_some() && told.get("bits").is_some() => {
                Err(unread(told.file, "mlx"))
            }
            None => Err(unread(told.file, &format!("{name} of config.json"))),
        }
    }
}

/// The error for what is quantised in a way that is not read.
fn unread(file: &str, by: &str) -> Error {
    Error::unsupported(file, format!("a checkpoint quantised by `{}`", by.escape_debug()), READ)
}

fn gptq(told: &Fields) -> Result<Scheme> {
    let bits = told.needed_size("bits")?;
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(unread(told.file, &format!("gptq to {bits} bits")));
    }
    let zeros_from = match told.text("checkpoint_format")?.unwrap_or("gptq") {
        "gptq" => 1,
        "gptq_v2" => 0,
        other => return Err(unread(told.file, &format!("gptq in the format {other}"))),
    };
    // Inputs of some matrices would have to be turned, too.
    if told.first_set(&["rotation"]).is_some() {
        return Err(unread(told.file, "gptq with a rotation"));
    }
    if told.text("pack_dtype")?.is_some_and(|word| word != "int32") {
        return Err(told.wrong("pack_dtype", "int32"));
    }
    // Where it is not said zero points are looked at, which takes a bit more of each weight.
    Ok(Scheme::Gptq { bits: bits as u32, symmetric: told.flag("sym")?.unwrap_or(false), zeros_from })
}

fn awq(told: &Fields) -> Result<Scheme> {
    let version = told.text("version")?.unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(unread(told.file, &format!("awq in the format {version}")));
    }
    // transformers has called it otherwise.
    match told.size("bits")?.or(told.size("w_bit")?) {
        None | Some(4) => Ok(Scheme::Awq),
        Some(bits) => Err(unread(told.file, &format!("awq to {bits} bits"))),
    }
}

fn compressed(told: &Fields) -> Result<Scheme> {
    let formats = [
        "dense",
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "mixed-precision",
    ];
    let known = |format: Option<&str>| match format.filter(|format| !formats.contains(format)) {
        Some(other) => Err(unread(told.file, &format!("compressed-tensors in the format {other}"))),
        None => Ok(()),
    };
    known(told.text("format")?)?;
    let sparse = told.object("sparsity_config")?;
    known(sparse.map(|sparse| sparse.text("format")).transpose()?.flatten())?;
    if told.first_set(&["transform_config"]).is_some() {
        return Err(unread(told.file, "compressed-tensors with a transform_config"));
    }
    let mut block = None;
    if let Some(groups) = told.object("config_groups")? {
        for name in groups.names() {
            let Some(group) = groups.object(name)? else { continue };
            known(group.text("format")?)?;
            if let Some(weights) = group.object("weights")? {
                block = block_of(&weights, "block_structure")?.or(block);
            }
        }
    }
    Ok(Scheme::Beside { block })
}

fn fp8(told: &Fields) -> Result<Scheme> {
    if told.text("fmt")?.is_some_and(|format| format != "e4m3") {
        return Err(told.wrong("fmt", "e4m3"));
    }
    // GPTQModel's, whose scales are what a weight is divided by.
    if told.first_set(&["weight_scale_semantics", "weight_scale_method"]).is_some() {
        return Err(unread(told.file, "fp8 with weight_scale_semantics"));
    }
    let said = block_of(told, "weight_block_size")?;
    let unsaid = !told.has_null("weight_block_size");
    Ok(Scheme::Beside { block: said.or(unsaid.then_some(FP8_BLOCK)) })
}

fn block_of(told: &Fields, name: &str) -> Result<Option<[usize; 2]>> {
    let Some(value) = told.get(name) else { return Ok(None) };
    let side =
        |i: usize| value.get(i)?.as_u64().and_then(|side| usize::try_from(side).ok()).filter(|n| *n > 0);
    match (side(0), side(1), value.get(2)) {
        (Some(rows), Some(columns), None) => Ok(Some([rows, columns])),
        _ => Err(told.wrong(name, "two whole numbers from 1")),
    }
}
