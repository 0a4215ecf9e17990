//! From the MODEL argument to files: a folder, a GGUF file, a hub id, or nothing at all.

mod checked;
mod default_model;
mod http;
mod hub;
mod listed;
mod lock;
mod pip;
mod places;
mod progress;
mod repo;
mod simple_index;
mod wheel;

pub use places::Places;
pub use progress::{Progress, Silent};
pub use repo::{GgufChoice, RepoId};

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Finds the files of a model, downloading them where they are neither here nor in a cache.
/// `None` is the default model. The result is for [`Checkpoint::open`](crate::Checkpoint::open).
///
/// # Errors
/// If there is no such model, or it cannot be fetched; the text says where was looked.
pub fn locate(model: Option<&str>, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    find(model, Extent::Model, places, progress)
}

/// The same of what describes a model: its weights are not fetched where it has a config.json. For
/// [`Checkpoint::open_dummy`](crate::Checkpoint::open_dummy).
///
/// # Errors
/// As [`locate`].
pub fn describe(model: Option<&str>, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    find(model, Extent::Description, places, progress)
}

/// What is wanted of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All that it is made of.
    Model,
    /// Configuration and text, with weights or without.
    Description,
}

fn find(
    model: Option<&str>,
    extent: Extent,
    places: &Places,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let Some(model) = model else { return default_model::locate(places, progress) };
    let path = Path::new(model);
    if path.exists() {
        return local(path, extent);
    }
    match RepoId::parse(model) {
        Some(repo) if !looks_like_path(model, &repo) => hub::locate(&repo, extent, places, progress),
        _ => Err(Error::NotThere { name: model.into() }),
    }
}

fn looks_like_path(model: &str, repo: &RepoId) -> bool {
    model.starts_with(['/', '.', '~']) || repo.name.ends_with(".gguf")
}

fn local(path: &Path, extent: Extent) -> Result<PathBuf> {
    let is_gguf = path.extension().is_some_and(|e| e == "gguf");
    if is_gguf || path.join("config.json").is_file() {
        // Beside GGUF files lies the configuration of what they were made from.
        let beside = extent == Extent::Model && !is_gguf && !hub::has_safetensors(path);
        return match hub::only_gguf(path) {
            Ok(file) if beside => Ok(file),
            Err(several) if beside && !several.is_empty() => Err(no_model(path, &one_of(path, &several))),
            _ => Ok(path.to_owned()),
        };
    }
    let why = match path.is_dir() {
        true => match hub::only_gguf(path) {
            Ok(file) => return Ok(file),
            Err(several) if !several.is_empty() => &one_of(path, &several),
            Err(_) => {
                crate::config::refuse_beside(path)?;
                "the folder has no config.json and no .gguf file"
            }
        },
        false if path.with_file_name("config.json").is_file() => "it is a part of a model: name its folder",
        false => "the file does not end in .gguf",
    };
    Err(no_model(path, why))
}

fn no_model(path: &Path, why: &str) -> Error {
    Error::NoModel { name: path.display().to_string(), why: why.into() }
}

/// What to do where a folder has several GGUF files.
fn one_of(folder: &Path, files: &[String]) -> String {
    if let [part] = files {
        return format!("{part} is a part of a GGUF file, and the others are missing");
    }
    format!(
        "its GGUF files are {}: name one of them, as {}",
        files.join(", "),
        folder.join(&files[0]).display()
    )
}

#[cfg(test)]
mod tests;
