//! Everything that can go wrong between a file and a model.

use spec::model::SpecError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate: what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried (`read`, `create`).
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Packed weights cannot be kept where they are to be.
    #[error("cannot keep packed weights in {}: {source}; name another folder with --offload-dir", path.display())]
    NoStore {
        /// The folder, or its file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file breaks the rules of its format.
    #[error("{file} is malformed: {found}; expected {expected}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// What the file says.
        found: String,
        /// What the format allows.
        expected: String,
    },
    /// A file is sound but asks for something that is not built.
    #[error("{file}: {what} is not supported; supported: {supported}")]
    Unsupported {
        /// Name of the file.
        file: String,
        /// What was asked for.
        what: String,
        /// What there is instead.
        supported: String,
    },
    /// The sizes of a model contradict each other.
    #[error("{file}: {source}")]
    Spec {
        /// Name of the file that gave the sizes.
        file: String,
        /// The contradiction.
        source: SpecError,
    },
    /// The tensors of a checkpoint are not those of its model.
    #[error("{file} does not hold the model that its configuration describes:{}", list(problems))]
    Tensors {
        /// Name of the checkpoint.
        file: String,
        /// Every tensor that is missing, superfluous or misshapen, one sentence each.
        problems: Vec<String>,
    },
    /// The tokenizer could not be loaded, or a text not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::TokenizerError),
    /// The chat template could not be found, or fails.
    #[error(transparent)]
    Template(#[from] crate::template::TemplateError),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Param(#[from] crate::sampling::ParamError),
    /// No token can be taken from the logits.
    #[error(transparent)]
    Sample(#[from] crate::sampling::SampleError),
    /// A weight is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` holds NaN or infinity in row {row}; the file is damaged, fetch it again"
    )]
    NotFinite {
        /// Name of the file.
        file: String,
        /// Name of the tensor in the file.
        tensor: String,
        /// First offending row.
        row: usize,
    },
    /// Weights that 12 bits cannot hold.
    #[error("{tensors} cannot be kept in 12 bits a weight ({found}); write --weights bf16")]
    TooVaried {
        /// The matrix's tensors.
        tensors: String,
        /// Where.
        found: kernels::linear::TooVaried,
    },
    /// A packed store that cannot be used.
    #[error("the packed store {} {found}; {remedy}", path.display())]
    Store {
        /// Its folder, or the file in it.
        path: PathBuf,
        /// What is wrong.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A packed store that something has become of since it was made.
    #[error("the packed store {} {found}; start with it, and it is packed again, or name another with --offload-dir", path.display())]
    Ruined {
        /// Its folder, or the file in it.
        path: PathBuf,
        /// What is wrong.
        found: String,
    },
    /// A file ends in the middle of what it held.
    #[error("{} is torn: it ends before byte {end}; {remedy}", path.display())]
    Torn {
        /// Which.
        path: PathBuf,
        /// Where it should end, or later.
        end: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// The drive has no room for a packed store.
    #[error(
        "the drive is full: the packed store {} has {written} of {needed} bytes; free some space (`ballast stores` \
         lists what is packed already), or name a folder on another drive with --offload-dir (what is written is kept, and continued from)",
        path.display()
    )]
    DriveFull {
        /// Its folder.
        path: PathBuf,
        /// Bytes that are there.
        written: u64,
        /// Bytes that it will have.
        needed: u64,
    },
    /// The drive will not give a packed store its room.
    #[error(
        "the packed store {} takes {needed} bytes, which its drive does not give it ({source}; free: {free}); free some \
         space (`ballast stores` lists what is packed already), or name a folder on another drive with --offload-dir",
        path.display()
    )]
    DriveSmall {
        /// Its folder.
        path: PathBuf,
        /// Bytes that it will have.
        needed: u64,
        /// What the drive has free, as told to people.
        free: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A name that is neither of a file nor of the hub.
    #[error(
        "no model `{name}`: there is no such file or folder; expected `smollm2`, a folder with config.json, a .gguf file, or a hub \
         id: `org/name[:revision]`, `org/name/file.gguf` or `org/name:Q4_K_M`"
    )]
    NotThere {
        /// The MODEL argument.
        name: String,
    },
    /// No model answers to that name.
    #[error("no model `{name}`: {why}")]
    NoModel {
        /// The MODEL argument.
        name: String,
        /// Where was looked, and what to do.
        why: String,
    },
    /// A download failed.
    #[error("cannot fetch {url}: {why}")]
    Fetch {
        /// The address, without credentials.
        url: String,
        /// What happened, and what to do.
        why: String,
    },
    /// A downloaded file is not the one that was announced.
    #[error("{file} has the digest {found}, expected {expected}; it was removed, try again")]
    Digest {
        /// Name of the file.
        file: String,
        /// Digest that was announced or pinned.
        expected: String,
        /// Digest of the bytes that came.
        found: String,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Io`], for `map_err`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { doing, path, source }
    }

    /// An [`Error::NoStore`], for `map_err`.
    pub(crate) fn no_store(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::NoStore { path, source }
    }

    /// An [`Error::Malformed`].
    pub fn malformed(file: &str, found: impl Into<String>, expected: impl Into<String>) -> Error {
        Error::Malformed { file: file.into(), found: found.into(), expected: expected.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(file: &str, what: impl Into<String>, supported: impl Into<String>) -> Error {
        Error::Unsupported { file: file.into(), what: what.into(), supported: supported.into() }
    }
}

/// The beginning of a text that a file chose, for a message.
pub(crate) fn shorten(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}...", &text[..at]),
    }
}

/// The first problems on a line each, and how many more there are.
fn list(problems: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut text: String = problems.iter().take(SHOWN).map(|p| format!("\n  {p}")).collect();
    if problems.len() > SHOWN {
        text += &format!("\n  and {} more", problems.len() - SHOWN);
    }
    text
}
