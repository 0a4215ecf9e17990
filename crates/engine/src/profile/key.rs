//! What a profile is of: times of one machine, setting or model say nothing of another.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use cuda::{CudaError, Driver};
use kernels::device::Dtype;
use kernels::linear::Activations;
use model::Checkpoint;
use model::decoder::Blueprint;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::planned::StartError;

/// Whatever measures otherwise has another key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Of the tables; other versions measured otherwise.
    pub version: u32,
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// What computes.
    pub device: String,
    /// Its kernels.
    pub isa: String,
    /// Threads that compute.
    pub threads: usize,
    /// Numbers of activations.
    pub dtype: String,
    /// Numbers of KV.
    pub kv: String,
    /// Formats of the weights in memory, with the bytes of each.
    pub formats: Vec<(String, usize)>,
    /// Layers, width, query heads, KV heads, width of a head, width inside the MLP, vocabulary.
    pub shape: [usize; 7],
    /// The number of the drive that is streamed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<u64>,
}

const VERSION: u32 = 9;

impl ProfileKey {
    /// Of this machine, an engine's settings and a model.
    ///
    /// # Errors
    /// [`StartError::Cuda`]: a GPU that cannot be opened cannot be told from others.
    pub fn of(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        config: &EngineConfig,
    ) -> Result<ProfileKey, StartError> {
        let spec = checkpoint.spec();
        let formats = blueprint.formats().into_iter();
        Ok(ProfileKey {
            version: VERSION,
            cpu: cpu_name(),
            cores: crate::cores::default_threads(),
            device: match config.device {
                DeviceChoice::Cpu | DeviceChoice::Virtual | DeviceChoice::Poisoned => "cpu".into(),
                DeviceChoice::Cuda => gpu_name()?,
            },
            isa: config.isa.to_string(),
            threads: config.threads,
            dtype: activations_name(config),
            kv: kv_name(config),
            formats: formats.map(|(format, bytes)| (format!("{format:?}"), bytes)).collect(),
            shape: [spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn, spec.vocab],
            drive: config.offload.folder.as_deref().and_then(drive_of),
        })
    }

    /// A short name for files.
    pub fn name(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Numbers of activations, and what they are rounded to before they are multiplied: `bf16`, or `bf16, int8`.
fn activations_name(config: &EngineConfig) -> String {
    match (config.dtype(), config.activations) {
        (Dtype::F32, _) => "f32".into(),
        (Dtype::Bf16, Activations::Exact) => "bf16".into(),
        (Dtype::Bf16, Activations::Int8) => "bf16, int8".into(),
        (Dtype::Bf16, Activations::Int16) => "bf16, int16".into(),
    }
}

/// The format of KV, and the share of it that counts: `int4`, or `int4, sparse 0.1`.
fn kv_name(config: &EngineConfig) -> String {
    let share = config.sparse.map_or(String::new(), |share| format!(", sparse {share}"));
    format!("{:?}{share}", config.kv_dtype()).to_lowercase()
}

/// The number of the drive that a folder is on, or would be once it is made.
pub(super) fn drive_of(folder: &Path) -> Option<u64> {
    // A relative folder's last ancestor is an empty path, which is the current folder.
    let exists = |folder: &Path| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        std::fs::metadata(folder).ok()
    };
    folder.ancestors().find_map(exists).map(|found| found.dev())
}

/// The GPU, by its name, and whether it has no library for large products, without which they take longer. It is asked once, as
/// opening it takes a while.
fn gpu_name() -> Result<String, CudaError> {
    static NAME: OnceLock<String> = OnceLock::new();
    if let Some(known) = NAME.get() {
        return Ok(known.clone());
    }
    let gpu = cuda::Gpu::open(0)?;
    let products = if gpu.products().is_some() { "" } else { ", own products" };
    Ok(NAME.get_or_init(|| format!("cuda {}{products}", gpu.name())).clone())
}

/// As Linux tells it; elsewhere the architecture's name.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let fields = ["model name", "cpu family", "model", "stepping"];
    let known: Vec<String> = fields.into_iter().filter_map(field).collect();
    if known.is_empty() { std::env::consts::ARCH.to_string() } else { known.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of one GPU would be taken for those of another.
    #[test]
    fn a_gpu_that_cannot_be_opened_has_no_name() {
        assert_eq!(gpu_name().err(), cuda::Gpu::open(0).err());
    }
}
