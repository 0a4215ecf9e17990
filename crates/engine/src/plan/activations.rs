//! Whether activations can be multiplied as was asked for.

use kernels::linear::{Activations, Format};
use model::decoder::Blueprint;

use crate::config::{DeviceChoice, EngineConfig};

/// Why activations cannot be rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchActivations {
    /// The GPU's kernels expand weights.
    #[error(
        "--activations int8 and int16 are not built for CUDA: leave it out, or run on the CPU (--device cpu)"
    )]
    OnCuda,
    /// Only weights of 8 bits and fewer are multiplied so.
    #[error(
        "--activations int8 and int16 are for weights of 8 bits and fewer, and none of these is: add --weights int8 or \
         --weights int4, or leave it out"
    )]
    NothingNarrow,
}

impl EngineConfig {
    /// # Errors
    /// [`NoSuchActivations`]: why not, and what to do.
    pub(crate) fn check_activations(&self, blueprint: &Blueprint) -> Result<(), NoSuchActivations> {
        let narrow = |(format, _): &(Format, usize)| matches!(format, Format::Narrow(_));
        match (self.activations, self.device) {
            (Activations::Exact, _) => Ok(()),
            (_, DeviceChoice::Cuda) => Err(NoSuchActivations::OnCuda),
            _ if !blueprint.formats().iter().any(narrow) => Err(NoSuchActivations::NothingNarrow),
            (Activations::Int8 | Activations::Int16, _) => Ok(()),
        }
    }
}
