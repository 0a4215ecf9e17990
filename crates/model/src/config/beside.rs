//! Files beside `config.json` that say that the weights are not what it says.

use serde_json::Value;
use std::path::Path;

use super::CONFIG_BYTES_MAX;
use crate::error::{Error, Result};
use crate::file::read_text;
use crate::json::Fields;
use crate::quantized::{Method, Scheme};

/// PEFT's: weights that are added to those of another model.
const ADAPTER: &str = "adapter_config.json";
/// ModelOpt's: weights of fewer bits.
const QUANTISED: &str = "hf_quant_config.json";
/// Those that AutoGPTQ and AutoAWQ wrote before `quantization_config` was.
const OWN_FILES: [(&str, Method); 2] =
    [("quantize_config.json", Method::Gptq), ("quant_config.json", Method::Awq)];

/// Refuses adapters, and what is quantised in a way that is not read: weights alone would be another model, and nobody would be told.
///
/// # Errors
/// Where there is such a file.
pub(crate) fn refuse_beside(folder: &Path) -> Result<()> {
    let path = folder.join(ADAPTER);
    if path.is_file() {
        let adapter = json(&path);
        let of =
            adapter["base_model_name_or_path"].as_str().map(|base| format!(" of {base}")).unwrap_or_default();
        return Err(Error::unsupported(
            &path.display().to_string(),
            format!("an adapter{of}"),
            "whole models: merge it with PEFT's merge_and_unload and save_pretrained (or, if the folder has a whole model, \
             take this file away)",
        ));
    }
    of_modelopt(folder).map(drop)
}

/// How weights are stored, if a file beside a `config.json` that does not say it does.
///
/// # Errors
/// If it asks for what is not read.
pub(super) fn scheme_beside(folder: &Path) -> Result<Option<Scheme>> {
    for (name, method) in OWN_FILES {
        let path = folder.join(name);
        if path.is_file() {
            let (told, file) = (json(&path), path.display().to_string());
            return Scheme::of_own_file(&Fields::of(&told, &file)?, method).map(Some);
        }
    }
    of_modelopt(folder)
}

fn of_modelopt(folder: &Path) -> Result<Option<Scheme>> {
    let path = folder.join(QUANTISED);
    let told = if path.is_file() { json(&path) } else { Value::Null };
    let name = path.display().to_string();
    match Fields::of(&told["quantization"], &name) {
        Ok(told) => Scheme::of_modelopt(&told),
        Err(_) => Ok(None),
    }
}

/// What a file holds; null where that cannot be read.
fn json(path: &Path) -> Value {
    let text = read_text(path, CONFIG_BYTES_MAX).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
