//! Hugging Face's hub: its cache layout, read and written as its own client does, and its files.
//!
//! ```text
//! models--org--name/refs/main                 a commit
//! models--org--name/snapshots/<commit>/x  ->  ../../blobs/<digest>
//! ```

use super::http::{self, Http};
use super::lock::{Lock, create_folder};
use super::{Places, Progress};
use crate::error::{Error, Result};
use crate::safetensors::parse_index;
use serde::Deserialize;
use sha1::Sha1;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Long enough for a slow network, short enough for a newcomer without one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
const INDEX: &str = "model.safetensors.index.json";
const PAGES_MAX: usize = 20;

/// A repository of the hub, at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId {
    /// `org/name`.
    pub name: String,
    /// Branch, tag or commit; `main` unless said.
    pub revision: String,
}

impl RepoId {
    /// Reads `org/name` or `org/name:revision`.
    pub fn parse(text: &str) -> Option<RepoId> {
        let (name, revision) = text.split_once(':').unwrap_or((text, "main"));
        let (org, model) = name.split_once('/')?;
        let revision_parts = revision.split('/');
        let sound = is_name(org) && is_name(model) && revision_parts.into_iter().all(is_name);
        sound.then(|| RepoId { name: name.into(), revision: revision.into() })
    }

    fn folder(&self, places: &Places) -> PathBuf {
        places.hub_cache.join(self.folder_name())
    }

    fn folder_name(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

/// A part of an id: nothing that a path or an address could take for something else.
fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !part.is_empty()
        && part.len() <= 96
        && part.chars().all(allowed)
        && !part.starts_with('.')
        && !part.contains("..")
}

/// The snapshot of a repository: from the cache if it is whole, else from the hub.
pub(super) fn locate(repo: &RepoId, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    if let Some(model) = cached(repo, places) {
        return Ok(model);
    }
    if places.offline {
        let why = format!("it is not in {}, and HF_HUB_OFFLINE is set", places.hub_cache.display());
        return Err(Error::NoModel { name: repo.name.clone(), why });
    }
    download(repo, places, progress)
}

/// The folder, or GGUF file, of a repository that is whole in the cache.
pub(super) fn cached(repo: &RepoId, places: &Places) -> Option<PathBuf> {
    let folder = repo.folder(places);
    let commit = match std::fs::read_to_string(folder.join("refs").join(&repo.revision)) {
        Ok(commit) => commit.trim().to_owned(),
        Err(_) => repo.revision.clone(),
    };
    let snapshot = is_name(&commit).then(|| folder.join("snapshots").join(commit))?;
    whole(&snapshot)
}

/// What [`crate::Checkpoint::open`] would open in a snapshot, if all its files are there.
fn whole(snapshot: &Path) -> Option<PathBuf> {
    if !snapshot.join("config.json").is_file() {
        return only_gguf(snapshot);
    }
    let weights = match std::fs::read_to_string(snapshot.join(INDEX)) {
        Ok(index) => parse_index(&index, INDEX).ok()?.into_values().collect(),
        Err(_) => vec!["model.safetensors".to_owned()],
    };
    let all = weights.iter().all(|name| snapshot.join(name).is_file());
    if all { Some(snapshot.to_owned()) } else { only_gguf(snapshot) }
}

/// The GGUF file of a folder that has just one, or one split into parts.
pub(super) fn only_gguf(folder: &Path) -> Option<PathBuf> {
    let listing = std::fs::read_dir(folder).ok()?;
    let paths = listing.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> =
        paths.filter(|p| p.extension().is_some_and(|e| e == "gguf") && p.is_file()).collect();
    found.sort();
    let of_parts = |p: &PathBuf| p.to_string_lossy().contains("-00001-of-");
    match found.len() {
        1 => found.pop(),
        _ if found.iter().filter(|p| of_parts(p)).count() == 1 => found.into_iter().find(of_parts),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// A line of a repository's listing.
#[derive(Deserialize)]
struct Listed {
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

impl Listed {
    /// Name of its blob: SHA-256 of a large file, else SHA-1 as git computes it.
    fn digest(&self) -> &str {
        self.lfs.as_ref().map_or(&self.oid, |lfs| &lfs.oid)
    }

    fn bytes(&self) -> u64 {
        self.lfs.as_ref().map_or(self.size, |lfs| lfs.size)
    }

    /// Names and digests become file names: they may hold nothing else.
    fn is_sound(&self) -> bool {
        let digits = if self.lfs.is_some() { 64 } else { 40 };
        let digest = self.digest();
        digest.len() == digits && digest.bytes().all(|b| b.is_ascii_hexdigit()) && is_name(&self.path)
    }

    fn check(&self, file: &Path) -> Result<()> {
        let found = match self.lfs {
            Some(_) => http::sha256_of(file)?,
            None => http::digest_of::<Sha1>(file, format!("blob {}\0", self.size).as_bytes())?,
        };
        http::check_digest(file, self.digest(), found)
    }
}

struct Download<'a> {
    repo: &'a RepoId,
    places: &'a Places,
    http: Http,
    commit: String,
}

fn download(repo: &RepoId, places: &Places, progress: &mut dyn Progress) -> Result<PathBuf> {
    progress.stage(&format!("asking {} for {}", http::without_credentials(&places.hub), repo.name));
    let http = Http::new(CONNECT_TIMEOUT, places.token.clone());
    let revision = repo.revision.replace('/', "%2F");
    let url = format!("{}/api/models/{}/revision/{revision}", places.hub, repo.name);
    let Revision { sha } = json(&url, &http.text(&url, "application/json")?.body)?;
    if !is_name(&sha) {
        return Err(Error::malformed(&url, format!("the commit {sha:?}"), "a commit"));
    }
    let download = Download { repo, places, http, commit: sha };
    download.run(progress)
}

fn json<T: for<'a> Deserialize<'a>>(url: &str, body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(|e| Error::malformed(url, e.to_string(), "the hub's JSON"))
}

impl Download<'_> {
    fn run(&self, progress: &mut dyn Progress) -> Result<PathBuf> {
        let listed = self.listing()?;
        for file in small_files(&listed) {
            self.file(file, progress)?;
        }
        let weights = self.weights(&listed)?;
        for file in weights {
            self.file(file, progress)?;
        }
        self.name_revision()?;
        whole(&self.snapshot()).ok_or_else(|| self.refuse("its repository has no model that can be read"))
    }

    fn refuse(&self, why: &str) -> Error {
        Error::NoModel { name: self.repo.name.clone(), why: why.into() }
    }

    fn snapshot(&self) -> PathBuf {
        self.repo.folder(self.places).join("snapshots").join(&self.commit)
    }

    /// The files at the top of the repository.
    fn listing(&self) -> Result<Vec<Listed>> {
        let mut url = format!("{}/api/models/{}/tree/{}", self.places.hub, self.repo.name, self.commit);
        let mut all: Vec<Listed> = vec![];
        for _ in 0..PAGES_MAX {
            let page = self.http.text(&url, "application/json")?;
            all.extend(json::<Vec<Listed>>(&url, &page.body)?);
            match next_page(page.headers.get("link").and_then(|v| v.to_str().ok())) {
                Some(next) if next.starts_with(&self.places.hub) => url = next,
                _ => break,
            }
        }
        all.retain(Listed::is_sound);
        Ok(all)
    }

    /// The files that hold the weights, of the many forms in which a repository may have them.
    fn weights<'a>(&self, listed: &'a [Listed]) -> Result<Vec<&'a Listed>> {
        let find = |name: &str| listed.iter().find(|f| f.path == name);
        if find(INDEX).is_some() {
            let index = crate::file::read_text(&self.snapshot().join(INDEX), 100 << 20)?;
            let names: std::collections::BTreeSet<_> = parse_index(&index, INDEX)?.into_values().collect();
            let shard = |name: &String| {
                find(name).ok_or_else(|| self.refuse(&format!("its shard {name} is missing")))
            };
            return names.iter().map(shard).collect();
        }
        if let Some(one) = find("model.safetensors") {
            return Ok(vec![one]);
        }
        match listed.iter().filter(|f| f.path.ends_with(".gguf")).collect::<Vec<_>>().as_slice() {
            [one] => Ok(vec![one]),
            [] => Err(self.refuse("its repository has no safetensors and no GGUF file")),
            many => {
                let names: Vec<_> = many.iter().map(|f| f.path.as_str()).collect();
                let why = format!(
                    "its repository has several GGUF files; fetch one and name it: {}",
                    names.join(", ")
                );
                Err(self.refuse(&why))
            }
        }
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
        link(&self.snapshot().join(&file.path), &Path::new("../../blobs").join(file.digest()))
    }

    fn fetch(&self, file: &Listed, blob: &Path, progress: &mut dyn Progress) -> Result<()> {
        let partial = blob.with_extension("incomplete");
        let url = format!("{}/{}/resolve/{}/{}", self.places.hub, self.repo.name, self.commit, file.path);
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

/// The address in `<...>; rel="next"`.
fn next_page(link: Option<&str>) -> Option<String> {
    let (address, rest) = link?.split_once('>')?;
    rest.contains("rel=\"next\"").then(|| address.trim_start_matches([' ', '<']).to_owned())
}

fn link(at: &Path, to: &Path) -> Result<()> {
    at.parent().map_or(Ok(()), create_folder)?;
    match std::os::unix::fs::symlink(to, at) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && at.is_file() => Ok(()),
        result => result.map_err(Error::io("link", at)),
    }
}
