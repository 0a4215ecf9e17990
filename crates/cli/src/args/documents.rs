//! What `ballast man` and `ballast completions` are told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// A folder for the pages.
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete.
    #[arg(value_enum)]
    pub(crate) shell: ShellName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellName {
    /// source <(ballast completions bash)
    Bash,
    /// ballast completions zsh > _ballast, in a folder of $fpath
    Zsh,
    /// ballast completions fish | source
    Fish,
}
