//! This very program run again, as a person would: a run measures itself alone, and what ran before leaves no trace in
//! its memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::console::{EXIT_MISUSE, Misuse};

/// A folder of files between this process and its children; it goes with the command.
pub(super) struct Desk(TempDir);

impl Desk {
    pub(super) fn new() -> Result<Desk> {
        let home = std::env::temp_dir();
        let folder = tempfile::Builder::new().prefix("ballast-bench-").tempdir_in(&home);
        Ok(Desk(folder.with_context(|| format!("cannot create a folder in {}", home.display()))?))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `ballast ARGS --json FILE`, and returns what it wrote there.
    pub(super) fn run(&self, args: &[String]) -> Result<Value> {
        let json = self.file("child.json");
        let told = |name: &str| format!("`ballast {}`{name}", args.join(" "));
        let exe = std::env::current_exe().context("where this program is")?;
        let output = alone(Command::new(exe))
            .args(args)
            .arg("--json")
            .arg(&json)
            .stdin(Stdio::null())
            .output()
            .with_context(|| told(" did not start"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().last().unwrap_or("it said nothing").to_string();
            let why = format!("{}: {why}", told(" failed"));
            // What was wrong with that command was wrong with this one.
            let is_misuse = output.status.code() == Some(EXIT_MISUSE.into());
            return Err(if is_misuse { Misuse(why).into() } else { Error::msg(why) });
        }
        read(&json).with_context(|| told(""))
    }
}

/// Away from what the environment says of flags: what is run is what was planned.
fn alone(mut command: Command) -> Command {
    let flags = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        name.to_string_lossy().starts_with("BALLAST_") && name != "BALLAST_ISA" && name != "BALLAST_CACHE"
    });
    flags.for_each(|name| {
        command.env_remove(name);
    });
    command
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)?;
    let value = serde_json::from_str(&text)?;
    std::fs::remove_file(path)?;
    Ok(value)
}

/// A number of a report.
pub(super) fn number(report: &Value, pointer: &str) -> Result<f64> {
    report.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no number at {pointer}"))
}
