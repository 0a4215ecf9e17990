//! What `ballast stores` is told.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

#[derive(Args)]
pub(crate) struct StoresArgs {
    /// Where they are kept [default: the cache folder, as for every command with this flag].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) offload_dir: Option<PathBuf>,
    /// Remove these, by their names or how those begin; `all`, or `unwhole`: those whose
    /// packing was never finished.
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    pub(crate) remove: Vec<String>,
    /// Write them here (-: standard output).
    #[arg(long, value_name = "FILE", conflicts_with = "remove")]
    pub(crate) json: Option<PathBuf>,
}
