//! What tells one model's weights from another's, without reading all of them.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::checkpoint::Checkpoint;
use crate::decoder::Blueprint;
use crate::error::Result;
use crate::file::RegularFile;

/// Samples of a file, and bytes of each; the first begins with the header.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;
const HEADER_BYTES: u64 = 1 << 20;

/// 32 hexadecimal digits for a model in the formats of a blueprint: its files' sizes, headers and samples of their
/// contents (of random weights their seed), and the shapes and formats of its packed matrices. Not what else a configuration
/// says: which tokens end a text, or how far one may go, changes no weight.
///
/// # Errors
/// If a file cannot be read.
pub fn fingerprint(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Result<String> {
    let mut hash = Sha256::new();
    let spec = checkpoint.spec();
    let heads = (spec.heads, spec.kv_heads, spec.head_dim);
    hash.update(format!("{} {:?} {heads:?} {:?}", spec.architecture, spec.dtype, checkpoint.seed()));
    for plan in blueprint.matrices() {
        let shape = (plan.n, plan.k, plan.order, plan.format, plan.rounded);
        hash.update(format!("{:?} {shape:?};", plan.tensors));
    }
    for file in checkpoint.files() {
        hash.update(file.len().to_le_bytes());
        sample(file, &mut hash)?;
    }
    let digest = hash.finalize();
    Ok(digest.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn sample(file: &RegularFile, hash: &mut Sha256) -> Result<()> {
    let mut bytes = vec![0; HEADER_BYTES.min(file.len()) as usize];
    file.read_at(0, &mut bytes)?;
    hash.update(&bytes);
    let last = file.len().saturating_sub(SAMPLE_BYTES);
    bytes.resize(SAMPLE_BYTES.min(file.len()) as usize, 0);
    for i in 0..=SAMPLES {
        file.read_at(last / SAMPLES * i + last % SAMPLES * i / SAMPLES, &mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}
