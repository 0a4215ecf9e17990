//! What weights are kept as, where nobody says.

use kernels::linear::Format;
use model::Checkpoint;
use model::decoder::WeightsAs;

use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::planned::{Planned, blueprint};

impl EngineConfig {
    /// The same with weights in 12 bits each, if they are bf16 as they are stored and there is no room for all of them: the
    /// numbers are the same, and a quarter less is read for every pass. Where there is room they are multiplied as they are.
    #[must_use]
    pub fn with_weights_for(self, checkpoint: &Checkpoint) -> EngineConfig {
        let is_bf16 = || blueprint(checkpoint, &self).formats().iter().all(|(format, _)| *format == Format::Bf16);
        let may = self.weights == WeightsAs::Stored && self.device != DeviceChoice::Cuda && is_bf16();
        let fits = || {
            let resident_bytes = crate::memory::resident_bytes();
            Planned::beside(checkpoint, self.clone(), resident_bytes).is_ok_and(|planned| planned.fits())
        };
        if may && !fits() { EngineConfig { weights: WeightsAs::Bf12, ..self } } else { self }
    }
}
