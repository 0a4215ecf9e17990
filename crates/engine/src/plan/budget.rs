//! What device and host may take, as it was asked for.

use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::too_small::TooSmall;

/// Whose memory the device's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The processor's: device and host share one limit, in bytes.
    Common(u64),
    /// A part of the process's memory, which the host then has not.
    Carved {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the whole process, the device's included.
        memory: u64,
    },
    /// Its own.
    Apart {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the process on the host.
        memory: u64,
    },
}

impl Budget {
    /// What a config says.
    ///
    /// # Errors
    /// [`TooSmall::Carved`], if the device leaves the host nothing.
    pub(crate) fn of(config: &EngineConfig) -> Result<Budget, TooSmall> {
        let memory = config.memory;
        match (config.device, config.offload.device_memory) {
            (DeviceChoice::Cuda, device) => Ok(Budget::Apart { device: device.unwrap_or(u64::MAX), memory }),
            (_, None) => Ok(Budget::Common(memory)),
            (_, Some(device)) if device < memory => Ok(Budget::Carved { device, memory }),
            (_, Some(device)) => Err(TooSmall::Carved { device, memory }),
        }
    }

    /// Bytes of the process.
    pub fn memory(self) -> u64 {
        match self {
            Budget::Common(memory) | Budget::Carved { memory, .. } | Budget::Apart { memory, .. } => memory,
        }
    }

    /// Bytes that the device may take beside `host` bytes of the host.
    pub fn device(self, host: u64) -> u64 {
        match self {
            Budget::Common(memory) => memory.saturating_sub(host),
            Budget::Carved { device, .. } | Budget::Apart { device, .. } => device,
        }
    }

    /// Bytes that the host may take, the process itself included, beside `device` bytes of the device.
    pub fn host(self, device: u64) -> u64 {
        match self {
            Budget::Common(memory) => memory.saturating_sub(device),
            Budget::Carved { device, memory } => memory - device,
            Budget::Apart { memory, .. } => memory,
        }
    }
}
