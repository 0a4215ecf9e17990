//! How fast bytes go between host and device.

use kernels::calibrate::copy_bandwidth;

use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::planned::StartError;

/// Bytes per second: of the link to a GPU, and where the device's memory is the processor's, of a thread that copies so many bytes
/// at a time.
///
/// # Errors
/// [`StartError::Device`].
pub(super) fn copy_bytes_per_s(config: &EngineConfig, bytes: usize) -> Result<f64, StartError> {
    match config.device {
        DeviceChoice::Cuda => Ok(cuda::link_bytes_per_s()?),
        DeviceChoice::Cpu | DeviceChoice::Virtual | DeviceChoice::Poisoned => Ok(copy_bandwidth(bytes)),
    }
}
