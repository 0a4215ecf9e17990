//! What a repository of the hub says that it has.

use super::http::{self, Http, json};
use super::repo::is_file_name;
use crate::error::{Error, Result};
use crate::template::TEMPLATES;
use serde::Deserialize;
use sha1::Sha1;
use std::path::Path;

/// Pages of a listing, each of up to 1,000 files.
const PAGES_MAX: usize = 20;

/// A line of a repository's listing.
#[derive(Deserialize)]
pub(super) struct Listed {
    pub(super) path: String,
    #[serde(default, rename = "type")]
    pub(super) kind: String,
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
    pub(super) fn digest(&self) -> &str {
        self.lfs.as_ref().map_or(&self.oid, |lfs| &lfs.oid)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lfs.as_ref().map_or(self.size, |lfs| lfs.size)
    }

    /// Whether it is where files are looked for. Names and digests become file names: they may hold nothing else.
    pub(super) fn is_read(&self) -> bool {
        let digits = if self.lfs.is_some() { 64 } else { 40 };
        let digest = self.digest();
        let sound = match self.path.split_once('/') {
            None => is_file_name(&self.path),
            Some((folder, file)) => is_file_name(folder) && is_file_name(file) && is_looked_for(folder, file),
        };
        digest.len() == digits && digest.bytes().all(|b| b.is_ascii_hexdigit()) && sound
    }

    pub(super) fn check(&self, file: &Path) -> Result<()> {
        let found = match self.lfs {
            Some(_) => http::sha256_of(file)?,
            None => http::digest_of::<Sha1>(file, format!("blob {}\0", self.size).as_bytes())?,
        };
        http::check_digest(file, self.digest(), found)
    }
}

/// What is looked for in folders: further templates, and GGUF files.
fn is_looked_for(folder: &str, file: &str) -> bool {
    folder == TEMPLATES && file.ends_with(".jinja") || file.ends_with(".gguf")
}

/// All pages of a listing.
pub(super) fn pages(http: &Http, hub: &str, first: String) -> Result<Vec<Listed>> {
    let (mut url, mut all) = (first, vec![]);
    for _ in 0..PAGES_MAX {
        let page = http.text(&url, "application/json")?;
        all.extend(json::<Vec<Listed>>(&url, &page.body)?);
        let Some(link) = next_page(page.headers.get("link").and_then(|v| v.to_str().ok())) else {
            return Ok(all);
        };
        url = on_hub(hub, link).ok_or_else(|| {
            let found = format!("the next page at {}", http::without_credentials(link));
            Error::malformed(&http::without_credentials(&url), found, "an address with /api/models/")
        })?;
    }
    let found = format!("more than {PAGES_MAX} pages of files");
    Err(Error::malformed(&http::without_credentials(&url), found, "a repository of a model"))
}

/// The address in `<...>; rel="next"`.
fn next_page(link: Option<&str>) -> Option<&str> {
    let (address, rest) = link?.split_once('>')?;
    rest.contains("rel=\"next\"").then(|| address.trim_start_matches([' ', '<']))
}

/// A page's address on the hub that is asked: a mirror may pass on those of the hub that it mirrors. The token goes nowhere else.
fn on_hub(hub: &str, link: &str) -> Option<String> {
    Some(format!("{hub}{}", &link[link.find("/api/models/")?..]))
}
