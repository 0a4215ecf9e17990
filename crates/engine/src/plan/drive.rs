//! What an engine may take on a drive where nobody says.

use kernels::drive::free_bytes;
use model::Checkpoint;
use model::decoder::LoadError;
use model::store::Maker;

use crate::config::EngineConfig;
use crate::plan::planned::{StartError, blueprint};

/// Of what is free, this part is left to others, and no more than so many bytes.
const LEFT: u64 = 20;
const LEFT_MOST: u64 = 1 << 30;

/// Bytes that the drive of `config`'s folder has for this model: what is free there but for a margin, and what its packed store
/// takes already. Nothing without a folder, or where the system does not say.
///
/// # Errors
/// A checkpoint that cannot be read.
pub fn drive_room(checkpoint: &Checkpoint, config: &EngineConfig) -> Result<Option<u64>, StartError> {
    let Some(home) = config.offload.folder.as_deref() else { return Ok(None) };
    let Some(free) = free_bytes(home) else { return Ok(None) };
    let blueprint = blueprint(checkpoint, config);
    let held = Maker { checkpoint, blueprint: &blueprint, home }.held_bytes().map_err(LoadError::File)?;
    Ok(Some(but_for_others(free) + held))
}

/// What is free, but for a margin.
pub(crate) fn but_for_others(free: u64) -> u64 {
    free - (free / LEFT).min(LEFT_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_to_others() {
        assert_eq!([0, 19, 40, 100 << 30].map(but_for_others), [0, 19, 38, 99 << 30]);
    }
}
