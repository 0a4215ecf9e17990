//! What can be wrong with a CUDA device.

/// Why a device could not be opened or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// A shared library is not there.
    #[error("{library} was not found: {needed_for}. Install {install}, or use --device cpu")]
    Library {
        /// Its file name.
        library: &'static str,
        /// What it does.
        needed_for: &'static str,
        /// What brings it.
        install: &'static str,
    },
    /// The driver sees no device of this number.
    #[error(
        "the CUDA driver sees {found} devices, and number {wanted} was asked for; is CUDA_VISIBLE_DEVICES right?"
    )]
    NoDevice {
        /// Its number, from 0.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// More memory was asked for than the device can give.
    #[error(
        "{wanted} bytes of device memory were asked for, and {free} of {total} are free; lower --device-memory"
    )]
    Memory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that nobody has taken.
        free: usize,
        /// Bytes that the device has.
        total: usize,
    },
    /// A call of the driver failed.
    #[error("the CUDA driver failed to {what}: {why}")]
    Driver {
        /// What was to be done.
        what: String,
        /// The driver's words.
        why: String,
    },
    /// A variable of the environment says what there is not.
    #[error("{variable} is `{found}`; it may be {choices}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What it says.
        found: String,
        /// What it may say.
        choices: &'static str,
    },
    /// A kernel does not compile.
    #[error("kernels {module} do not compile for {architecture}:\n{log}")]
    Compile {
        /// Which.
        module: String,
        /// For what.
        architecture: String,
        /// The compiler's words.
        log: String,
    },
}
