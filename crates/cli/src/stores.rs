//! `ballast stores`: packed weights that lie on the drive, and their removal.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, bail};
use engine::{counted, size};
use model::store::{Kept, Removal, kept};
use serde::Serialize;

use crate::args::StoresArgs;
use crate::console::{Misuse, note, show, told};
use crate::output_file::JsonReport;
use crate::resolve::packed_folder;

/// Every store.
const ALL: &str = "all";
/// Those that were never finished.
const UNWHOLE: &str = "unwhole";

/// A store as `--json` has it.
#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    bytes: u64,
    whole: bool,
    of: Option<&'a str>,
    unused_s: u64,
}

impl Report<'_> {
    fn of(store: &Kept) -> Report<'_> {
        Report {
            name: &store.name,
            bytes: store.bytes,
            whole: store.is_whole,
            of: store.of.as_deref(),
            unused_s: unused_s(store),
        }
    }
}

pub(crate) fn stores(args: &StoresArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.json.as_deref())?;
    let home = args.offload_dir.clone().unwrap_or_else(packed_folder);
    let all = kept(&home)?;
    if !args.remove.is_empty() {
        return remove(&chosen(&all, &args.remove)?);
    }
    if args.json.is_none() {
        tell(&all, &home.display().to_string())?;
    }
    json.write(&all.iter().map(Report::of).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

fn tell(all: &[Kept], home: &str) -> Result<()> {
    if all.is_empty() {
        return show!("no packed weights are in {home}");
    }
    show!("{:<34}{:>10}  {:<16}of", "name", "size", "last used")?;
    for store in all {
        let of = if store.is_whole { store.of.as_deref().unwrap_or("-") } else { "not whole" };
        show!("{:<34}{:>10}  {:<16}{of}", store.name, size(&store.bytes), ago(unused_s(store)))?;
    }
    let bytes = all.iter().map(|store| store.bytes).sum();
    show!(
        "\n{} in {home}, {} in all; --remove NAME has the drive get it back",
        counted(all.len(), "store"),
        size(&bytes)
    )
}

/// Seconds since a store was used.
fn unused_s(store: &Kept) -> u64 {
    SystemTime::now().duration_since(store.used).map_or(0, |time| time.as_secs())
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..3600 => "within an hour".into(),
        3600..86_400 => format!("{} ago", counted((seconds / 3600) as usize, "hour")),
        _ => format!("{} ago", counted((seconds / 86_400) as usize, "day")),
    }
}

/// The stores that are named.
fn chosen<'a>(all: &'a [Kept], names: &[String]) -> Result<Vec<&'a Kept>> {
    let mut chosen: Vec<&Kept> = Vec::new();
    for name in names {
        let is_meant = |store: &&Kept| match name.as_str() {
            ALL => true,
            UNWHOLE => !store.is_whole,
            begins => store.name.starts_with(begins),
        };
        let found: Vec<&Kept> = all.iter().filter(is_meant).collect();
        let many = [ALL, UNWHOLE].contains(&name.as_str());
        match found.len() {
            0 if !many => {
                bail!(Misuse(format!("--remove {name}: no store has that name: `ballast stores` lists them")))
            }
            2.. if !many => {
                bail!(Misuse(format!(
                    "--remove {name}: {} begin so: give more of the name",
                    counted(found.len(), "name")
                )))
            }
            _ => {}
        }
        chosen.extend(found.into_iter().filter(|store| !chosen.contains(store)).collect::<Vec<_>>());
    }
    Ok(chosen)
}

fn remove(chosen: &[&Kept]) -> Result<ExitCode> {
    let (mut bytes, mut code) = (0, ExitCode::SUCCESS);
    for store in chosen {
        match store.remove() {
            Ok(Removal::Removed) => {
                bytes += store.bytes;
                show!("removed {}, {}", store.name, size(&store.bytes))?;
            }
            Ok(Removal::Gone) => show!("{} is gone already", store.name)?,
            Ok(Removal::BeingMade) => {
                show!("{} is being made just now, and stays", store.name)?;
                code = ExitCode::FAILURE;
            }
            // The others are removed all the same.
            Err(error) => {
                bytes += store.bytes.saturating_sub(store.bytes_left());
                note!("ballast: {}", told(&error.into()));
                code = ExitCode::FAILURE;
            }
        }
    }
    show!("the drive has {} back", size(&bytes))?;
    Ok(code)
}
