//! What weights are kept as, where nobody says.

use kernels::Isa;
use kernels::linear::Format;
use model::Checkpoint;
use model::decoder::WeightsAs;

use crate::config::{DeviceChoice, EngineConfig};
use crate::memory;
use crate::plan::planned::{Planned, blueprint};

impl EngineConfig {
    /// The same with weights in 12 bits each, where they are bf16 as they are stored, nobody said otherwise, and it helps: the
    /// numbers are the same, and a quarter less is read. So it is where there is no room for all of them, and where one
    /// sequence at a time waits for memory; larger batches wait for products, which are a little faster as they are.
    #[must_use]
    pub fn with_weights_for(self, checkpoint: &Checkpoint) -> EngineConfig {
        if self.waits_for_memory() && self.may_keep_less(checkpoint) {
            return self.with_weights_kept_less(checkpoint);
        }
        self.with_weights_in_room(checkpoint)
    }

    /// The same, whatever the batches.
    #[must_use]
    pub fn with_weights_in_room(self, checkpoint: &Checkpoint) -> EngineConfig {
        let fits = || {
            let planned = Planned::beside(checkpoint, self.clone(), memory::needed_bytes());
            planned.is_ok_and(|planned| planned.fits())
        };
        if fits() { self } else { self.with_weights_kept_less(checkpoint) }
    }

    /// The same with weights in 12 bits each where they may be, whether there is room for all of them or not.
    #[must_use]
    pub fn with_weights_kept_less(self, checkpoint: &Checkpoint) -> EngineConfig {
        let weights = if self.may_keep_less(checkpoint) { WeightsAs::Bf12 } else { self.weights };
        EngineConfig { weights, ..self }
    }

    fn may_keep_less(&self, checkpoint: &Checkpoint) -> bool {
        let is_bf16 = |(format, _): &(Format, usize)| *format == Format::Bf16;
        self.weights == WeightsAs::Stored
            && self.device != DeviceChoice::Cuda
            && blueprint(checkpoint, self).formats().iter().all(is_bf16)
    }

    /// Whether reading weights takes longer than unfolding them: beside tiles nobody has measured what prompts wait for it.
    fn waits_for_memory(&self) -> bool {
        let vectors = match self.isa {
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => true,
            Isa::Scalar | Isa::Amx => false,
        };
        vectors && self.max_num_seqs == 1
    }
}
