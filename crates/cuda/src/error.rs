//! What can be wrong with a CUDA device.

use crate::library::Refused;

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
    /// A shared library is there and does not serve.
    #[error("{library} does not work here ({}): {needed_for}. Install {install}, or use --device cpu", why.join("; "))]
    Unfit {
        /// Its file name.
        library: &'static str,
        /// What it does.
        needed_for: &'static str,
        /// What would serve.
        install: &'static str,
        /// The files that were found, each with what is wrong with it.
        why: Vec<String>,
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
    /// The device lacks instructions that the kernels are made of.
    #[error("this GPU is of {found}, and the kernels need {oldest} or newer: use another, or --device cpu")]
    Old {
        /// What it is.
        found: String,
        /// What the oldest is that serves.
        oldest: String,
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

/// What a call unwinds with whose device fails at work: the driver's words. No hook for panics hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub String);

impl CudaError {
    /// Of a library of which no file serves.
    pub(crate) fn without(
        library: &'static str,
        needed_for: &'static str,
        install: &'static str,
        Refused { why }: Refused,
    ) -> CudaError {
        if why.is_empty() {
            return CudaError::Library { library, needed_for, install };
        }
        CudaError::Unfit { library, needed_for, install, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_does_not_serve_is_told_from_one_that_is_not_there() {
        let error = |why: &[&str]| {
            let why = why.iter().map(|why| (*why).to_string()).collect();
            CudaError::without("libx.so", "it counts", "X", Refused { why }).to_string()
        };
        assert_eq!(error(&[]), "libx.so was not found: it counts. Install X, or use --device cpu");
        assert_eq!(
            error(&["/a: too new", "/b: too old"]),
            "libx.so does not work here (/a: too new; /b: too old): it counts. Install X, or use --device cpu"
        );
    }
}
