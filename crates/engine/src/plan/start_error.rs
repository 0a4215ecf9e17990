//! Why an engine does not start.

use std::io;

use model::decoder::LoadError;

use crate::plan::activations::NoSuchActivations;
use crate::plan::hold::NoSuchKv;
use crate::plan::too_small::TooSmall;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model does not fit the memory allowed.
    #[error(transparent)]
    TooSmall(#[from] TooSmall),
    /// The weights could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Nothing attends this format of KV.
    #[error(transparent)]
    Kv(#[from] NoSuchKv),
    /// Nothing multiplies activations so.
    #[error(transparent)]
    Activations(#[from] NoSuchActivations),
    /// The GPU could not be opened.
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
    /// The device cannot do what the model needs.
    #[error("{0}")]
    Device(String),
    /// The system gave no memory or threads.
    #[error("the system refused memory or threads: {0}")]
    System(#[from] io::Error),
    /// The drive cannot be measured.
    #[error("cannot measure the drive of {folder}: {source}; name another with --offload-dir")]
    Drive {
        /// A folder there.
        folder: String,
        /// Why not.
        source: io::Error,
    },
    /// The record cannot be written.
    #[error("cannot write the record {path}: {source}")]
    Record {
        /// Where it should go.
        path: String,
        /// Why not.
        source: io::Error,
    },
}
