//! Hugging Face's hub: its cache layout, read and written as its own client does, and its files.
//!
//! ```text
//! models--org--name/refs/main                 a commit
//! models--org--name/snapshots/<commit>/x  ->  ../../blobs/<digest>
//! ```

use super::http::{self, Http, json};
use super::listed::{self, Listed};
use super::lock::{Lock, create_folder};
use super::repo::{GgufChoice, RepoId, is_name, last_part};
use super::{Extent, Places, Progress};
use crate::config::read_config;
use crate::error::{Error, Result};
use crate::safetensors::{INDEX, PICKLED, SINGLE, parse_index};
use crate::template::TEMPLATES;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Long enough for a slow network, short enough for a newcomer without one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
const CONFIG: &str = "config.json";

/// The snapshot of a repository: from the cache if what is wanted of it is there, else from the hub.
pub(super) fn locate(
    repo: &RepoId,
    extent: Extent,
    places: &Places,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let found = cached_weights(repo, places);
    let found = found.or_else(|| described(repo, places).filter(|_| extent == Extent::Description));
    let found = match found {
        Some(model) if has_text(&model) => return Ok(model),
        other => other,
    };
    // transformers leaves models without their tokenizers, which some commands can do without.
    if places.offline {
        return found.ok_or_else(|| not_cached(repo, places));
    }
    let fetched = download(repo, extent, places, progress);
    fetched.or_else(|error| found.ok_or_else(|| incomplete(repo, places, error)))
}

/// What could not be fetched, where a part of it is there.
fn incomplete(repo: &RepoId, places: &Places, error: Error) -> Error {
    let Some(partial) = partial(repo, places) else { return error };
    let why = format!("{partial}, and the rest could not be fetched: {error}");
    Error::NoModel { name: repo.name.clone(), why }
}

/// What the cache has of a model that is not whole.
fn partial(repo: &RepoId, places: &Places) -> Option<String> {
    let folder = snapshot(repo, places).filter(|folder| folder.is_dir())?;
    let mut names = names(&folder);
    names.sort();
    Some(format!("{} has no whole model (of files it has {})", folder.display(), names.join(", ")))
}

fn not_cached(repo: &RepoId, places: &Places) -> Error {
    let found = snapshot(repo, places).map(|folder| names(&folder)).unwrap_or_default();
    let why = match repo.gguf.among(found.iter().map(String::as_str)) {
        Err(files) if !files.is_empty() => choose(repo, &files),
        _ => match partial(repo, places) {
            Some(partial) => format!("{partial}, and HF_HUB_OFFLINE is set"),
            None => format!("it is not in {}, and HF_HUB_OFFLINE is set", places.hub_cache.display()),
        },
    };
    Error::NoModel { name: repo.name.clone(), why }
}

/// What to do where none or several of a repository's GGUF files are meant.
fn choose(repo: &RepoId, files: &[&str]) -> String {
    let name = &repo.name;
    format!(
        "its GGUF files are {}: name one of them, as {name}/{}, or its format, as {name}:Q4_K_M",
        files.join(", "),
        last_part(files[0])
    )
}

/// The folder, or GGUF file, of a repository that is whole in the cache.
pub(super) fn cached(repo: &RepoId, places: &Places) -> Option<PathBuf> {
    cached_weights(repo, places).filter(|model| has_text(model))
}

fn cached_weights(repo: &RepoId, places: &Places) -> Option<PathBuf> {
    whole(&snapshot(repo, places)?, &repo.gguf)
}

/// The folder of a repository, with or without weights, if the cache has its configuration.
fn described(repo: &RepoId, places: &Places) -> Option<PathBuf> {
    snapshot(repo, places).filter(|folder| folder.join(CONFIG).is_file())
}

fn snapshot(repo: &RepoId, places: &Places) -> Option<PathBuf> {
    let folder = repo.folder(places);
    let commit = match std::fs::read_to_string(folder.join("refs").join(&repo.revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => repo.revision.clone(),
    };
    is_name(&commit).then(|| folder.join("snapshots").join(commit))
}

/// Whether a model has what makes tokens of text; a GGUF file has it inside.
fn has_text(model: &Path) -> bool {
    let has = |name: &str| model.join(name).is_file();
    !model.is_dir() || has("tokenizer.json") || has("vocab.json") && has("merges.txt")
}

/// What [`crate::Checkpoint::open`] would open in a snapshot, if all its weights are there.
fn whole(snapshot: &Path, gguf: &GgufChoice) -> Option<PathBuf> {
    if *gguf != GgufChoice::Only || !snapshot.join(CONFIG).is_file() {
        return gguf_of(snapshot, gguf);
    }
    // As transformers does: an index counts where there is no single file.
    let has = |name: &str| snapshot.join(name).is_file();
    let shards = || {
        let index = std::fs::read_to_string(snapshot.join(INDEX)).ok()?;
        parse_index(&index, INDEX).ok()
    };
    let all = has(SINGLE) || shards().is_some_and(|of| of.values().all(|shard| has(shard)));
    if all { Some(snapshot.to_owned()) } else { gguf_of(snapshot, gguf) }
}

/// A GGUF file of a snapshot, at its top or in a folder there.
fn gguf_of(snapshot: &Path, choice: &GgufChoice) -> Option<PathBuf> {
    let top = one_gguf(snapshot, choice, names(snapshot));
    top.or_else(|| {
        let folders = std::fs::read_dir(snapshot).into_iter().flatten().filter_map(|entry| entry.ok());
        let folders = folders.filter(|entry| entry.path().is_dir());
        let within = |folder: String| {
            names(&snapshot.join(&folder)).into_iter().map(move |name| format!("{folder}/{name}"))
        };
        let below = folders.filter_map(|entry| entry.file_name().into_string().ok()).flat_map(within);
        one_gguf(snapshot, choice, below.collect())
    })
}

/// Whether a folder has safetensors.
pub(super) fn has_safetensors(folder: &Path) -> bool {
    names(folder).iter().any(|name| name.ends_with(".safetensors") || name == INDEX)
}

/// The GGUF file of a folder that has just one, or one split into parts; else all that it has.
pub(super) fn only_gguf(folder: &Path) -> std::result::Result<PathBuf, Vec<String>> {
    let names = names(folder);
    match GgufChoice::Only.among(names.iter().map(String::as_str)) {
        Ok(parts) => Ok(folder.join(parts[0])),
        Err(several) => Err(several.into_iter().map(str::to_owned).collect()),
    }
}

fn one_gguf(folder: &Path, choice: &GgufChoice, names: Vec<String>) -> Option<PathBuf> {
    let parts = choice.among(names.iter().map(String::as_str)).ok()?;
    Some(folder.join(parts[0]))
}

/// The names of a folder's files.
fn names(folder: &Path) -> Vec<String> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.is_file()).filter_map(|p| Some(p.file_name()?.to_str()?.to_owned())).collect()
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

struct Download<'a> {
    repo: &'a RepoId,
    extent: Extent,
    places: &'a Places,
    http: Http,
    commit: String,
}

fn download(repo: &RepoId, extent: Extent, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    progress.stage(&format!("asking {} for {}", http::without_credentials(&places.hub), repo.name));
    if !["http://", "https://"].into_iter().any(|scheme| places.hub.starts_with(scheme)) {
        let why = format!(
            "HF_ENDPOINT is {}: an address begins with https://",
            http::without_credentials(&places.hub)
        );
        return Err(Error::NoModel { name: repo.name.clone(), why });
    }
    let http = Http::new(CONNECT_TIMEOUT, places.token.clone());
    let revision = repo.revision.replace('/', "%2F");
    let url = format!("{}/api/models/{}/revision/{revision}", places.hub, repo.name);
    let Revision { sha } = json(&url, &http.text(&url, "application/json")?.body)?;
    if !is_name(&sha) {
        return Err(Error::malformed(
            &http::without_credentials(&url),
            format!("the commit {sha:?}"),
            "a commit",
        ));
    }
    let download = Download { repo, extent, places, http, commit: sha };
    download.run(progress)
}

impl Download<'_> {
    fn run(&self, progress: &mut dyn Progress) -> Result<PathBuf> {
        let (listed, left): (Vec<_>, Vec<_>) = self.listing()?.into_iter().partition(Listed::is_read);
        for file in small_files(&listed) {
            self.file(file, progress)?;
        }
        let snapshot = self.snapshot();
        let described = snapshot.join(CONFIG).is_file();
        if described && self.extent == Extent::Description {
            self.name_revision()?;
            return Ok(snapshot);
        }
        let weights = self.weights(&listed, &left)?;
        if described && !weights.iter().any(|file| file.path.ends_with(".gguf")) {
            // A model that is refused is refused before its weights come.
            read_config(&snapshot)?;
            if !has_text(&snapshot) {
                // Some commands can do without, and need not wait for the weights to hear that the others cannot.
                progress.stage(&format!("{} has no tokenizer that is read (tokenizer.json)", self.repo.name));
            }
        }
        for file in weights {
            self.file(file, progress)?;
        }
        self.name_revision()?;
        whole(&self.snapshot(), &self.repo.gguf)
            .ok_or_else(|| self.refuse("its repository has no model that can be read"))
    }

    fn refuse(&self, why: &str) -> Error {
        Error::NoModel { name: self.repo.name.clone(), why: why.into() }
    }

    fn snapshot(&self) -> PathBuf {
        self.repo.folder(self.places).join("snapshots").join(&self.commit)
    }

    /// The files at the top of the repository, its further templates, and GGUF files in folders where none at the top is meant.
    fn listing(&self) -> Result<Vec<Listed>> {
        let mut all = self.folder("")?;
        if all.iter().any(|listed| listed.path == TEMPLATES) {
            all.extend(self.folder(&format!("/{TEMPLATES}"))?);
        }
        if self.has_folders_of_gguf(&all) {
            let below = self.folder("?recursive=true")?.into_iter();
            all.extend(below.filter(|file| file.path.contains('/') && file.path.ends_with(".gguf")));
        }
        Ok(all)
    }

    /// Whether what is meant may be in one of its folders.
    fn has_folders_of_gguf(&self, top: &[Listed]) -> bool {
        let safetensors = top.iter().any(|file| file.path == INDEX || file.path == SINGLE);
        let folders = top.iter().any(|listed| listed.kind == "directory" && listed.path != TEMPLATES);
        let meant = self.repo.gguf.among(top.iter().map(|file| file.path.as_str()));
        folders && meant.is_err() && !(safetensors && self.repo.gguf == GgufChoice::Only)
    }

    fn folder(&self, below: &str) -> Result<Vec<Listed>> {
        let url = format!("{}/api/models/{}/tree/{}{below}", self.places.hub, self.repo.name, self.commit);
        listed::pages(&self.http, &self.places.hub, url)
    }

    /// The files that hold the weights, of the many forms in which a repository may have them.
    fn weights<'a>(&self, listed: &'a [Listed], left: &[Listed]) -> Result<Vec<&'a Listed>> {
        let find = |name: &str| listed.iter().find(|f| f.path == name);
        let only = self.repo.gguf == GgufChoice::Only;
        if let Some(one) = find(SINGLE).filter(|_| only) {
            return Ok(vec![one]);
        }
        if only && find(INDEX).is_some() {
            let index = crate::file::read_text(&self.snapshot().join(INDEX), 100 << 20)?;
            let names: std::collections::BTreeSet<_> = parse_index(&index, INDEX)?.into_values().collect();
            let shard = |name: &String| {
                find(name).ok_or_else(|| self.refuse(&format!("its shard {name} is missing")))
            };
            return names.iter().map(shard).collect();
        }
        match self.repo.gguf.among(listed.iter().map(|file| file.path.as_str())) {
            Ok(parts) => Ok(parts.into_iter().filter_map(find).collect()),
            Err(files) if files.is_empty() => {
                crate::config::refuse_beside(&self.snapshot())?;
                Err(self.nothing_to_read(listed, left))
            }
            Err(files) => Err(self.refuse(&choose(self.repo, &files))),
        }
    }

    /// `left`: what the repository has beside what is read.
    fn nothing_to_read(&self, listed: &[Listed], left: &[Listed]) -> Error {
        let pickled =
            |file: &Listed| file.path.rsplit_once('.').is_some_and(|(_, end)| PICKLED.contains(&end));
        let name = &self.repo.name;
        let other = |file: &&Listed| file.path.ends_with(".safetensors");
        self.refuse(&match (listed.iter().find(|file| pickled(file)), listed.iter().find(other)) {
            (_, Some(file)) => format!(
                "its repository has {} and no {SINGLE} or {INDEX}: weights by other names than transformers' are not read",
                file.path
            ),
            (None, None) => match left.iter().find(|file| file.path.ends_with(".gguf")) {
                Some(file) => format!(
                    "its repository has {}, which is not read from there: GGUF files are, at its top or in a folder there",
                    file.path
                ),
                None => "its repository has no safetensors and no GGUF file".into(),
            },
            (Some(file), None) => format!(
                "its repository has pickle files only ({}), which can run code when read: convert it with transformers' \
                 save_pretrained, or name a revision that has safetensors, as {name}:refs/pr/N, if the hub lists one",
                file.path
            ),
        })
    }

    /// Fetches a file into its blob, and links to it from the snapshot.
    fn file(&self, file: &Listed, progress: &mut dyn Progress) -> Result<()> {
        let folder = self.repo.folder(self.places);
        let blob = folder.join("blobs").join(file.digest());
        create_folder(&folder.join("blobs"))?;
        if !blob.is_file() {
            let locks = self.places.hub_cache.join(".locks").join(self.repo.folder_name());
            let _lock = Lock::hold(&locks.join(format!("{}.lock", file.digest())), progress)?;
            if !blob.is_file() {
                self.fetch(file, &blob, progress)?;
            }
        }
        // From a snapshot, or from a folder in it.
        let blobs = "../".repeat(1 + file.path.split('/').count()) + "blobs";
        link(&self.snapshot().join(&file.path), &Path::new(&blobs).join(file.digest()))
    }

    fn fetch(&self, file: &Listed, blob: &Path, progress: &mut dyn Progress) -> Result<()> {
        let partial = blob.with_extension("incomplete");
        let path = http::encoded(&file.path);
        let url = format!("{}/{}/resolve/{}/{path}", self.places.hub, self.repo.name, self.commit);
        progress.stage(&file.path);
        self.http.download(&url, &partial, Some(file.bytes()), progress)?;
        if file.bytes() == 0 {
            std::fs::File::create(&partial).map_err(Error::io("create", &partial))?;
        }
        file.check(&partial)?;
        std::fs::rename(&partial, blob).map_err(Error::io("rename", &partial))
    }

    /// Last of all, so that an interrupted download is not taken for a whole one.
    fn name_revision(&self) -> Result<()> {
        if self.repo.revision == self.commit {
            return Ok(());
        }
        let path = self.repo.folder(self.places).join("refs").join(&self.repo.revision);
        path.parent().map_or(Ok(()), create_folder)?;
        std::fs::write(&path, &self.commit).map_err(Error::io("write", &path))
    }
}

/// Configurations, tokenizers and templates.
fn small_files(listed: &[Listed]) -> impl Iterator<Item = &Listed> {
    let wanted = |name: &str| {
        name.ends_with(".json")
            || name.ends_with(".jinja")
            || name == "merges.txt"
            || name == "tokenizer.model"
    };
    listed.iter().filter(move |f| wanted(&f.path))
}

fn link(at: &Path, to: &Path) -> Result<()> {
    at.parent().map_or(Ok(()), create_folder)?;
    match std::os::unix::fs::symlink(to, at) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && at.is_file() => Ok(()),
        result => result.map_err(Error::io("link", at)),
    }
}
