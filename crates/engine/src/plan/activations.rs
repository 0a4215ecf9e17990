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
    /// Only weights of 8 bits and fewer are multiplied so, unless those are floats.
    #[error(
        "--activations int8 and int16 are for weights that are whole numbers of 8 bits and fewer, and none of these is: add \
         --weights int8 or --weights int4, or leave it out"
    )]
    NothingNarrow,
}

impl EngineConfig {
    /// # Errors
    /// [`NoSuchActivations`]: why not, and what to do.
    pub(crate) fn check_activations(&self, blueprint: &Blueprint) -> Result<(), NoSuchActivations> {
        let whole =
            |(format, _): &(Format, usize)| matches!(format, Format::Narrow(narrow) if narrow.is_whole());
        match (self.activations, self.device) {
            (Activations::Exact, _) => Ok(()),
            (_, DeviceChoice::Cuda) => Err(NoSuchActivations::OnCuda),
            _ if !blueprint.formats().iter().any(whole) => Err(NoSuchActivations::NothingNarrow),
            (Activations::Int8 | Activations::Int16, _) => Ok(()),
        }
    }
}
