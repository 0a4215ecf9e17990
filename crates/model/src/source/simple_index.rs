//! Package indexes: the simple API, as HTML (PEP 503) or JSON (PEP 691).

use super::http::{Http, without_credentials};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.2";

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) url: String,
    /// Announced SHA-256, in hexadecimal.
    pub(super) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    files: Vec<PageFile>,
}

#[derive(Deserialize)]
struct PageFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

/// Looks a file up in an index.
pub(super) fn find(http: &Http, index: &str, package: &str, filename: &str) -> Result<File> {
    let url = format!("{index}/{package}/");
    let answer = http.text(&url, ACCEPT)?;
    let is_json = answer.headers.get("content-type").is_some_and(|t| t.as_bytes().ends_with(b"json"));
    let found =
        if is_json { in_json(&url, &answer.body, filename)? } else { in_html(&url, &answer.body, filename) };
    found.ok_or_else(|| Error::Fetch {
        url: without_credentials(&url),
        why: format!("it does not list {filename}"),
    })
}

fn in_json(page: &str, body: &str, filename: &str) -> Result<Option<File>> {
    let listed: Page =
        serde_json::from_str(body).map_err(|e| Error::malformed(page, e.to_string(), "the index's JSON"))?;
    let found = listed.files.into_iter().find(|f| f.filename == filename);
    Ok(found.map(|f| File { url: join(page, &f.url), sha256: f.hashes.get("sha256").cloned() }))
}

/// Anchors are all that PEP 503 promises: `<a href="address#sha256=digest" ...>name</a>`.
fn in_html(page: &str, body: &str, filename: &str) -> Option<File> {
    let anchors = body.split("<a ").skip(1).filter_map(|rest| {
        let (tag, text) = rest.split_once('>')?;
        let quoted = tag.split_once("href=")?.1;
        let quote = quoted.chars().next().filter(|c| "\"'".contains(*c))?;
        Some((quoted[1..].split_once(quote)?.0, text.split_once('<')?.0))
    });
    let (address, _) = anchors.into_iter().find(|(_, text)| text.trim() == filename)?;
    let address = address.replace("&amp;", "&");
    let (url, fragment) = address.split_once('#').unwrap_or((&address, ""));
    Some(File { url: join(page, url), sha256: fragment.strip_prefix("sha256=").map(Into::into) })
}

/// An address as seen from a page.
fn join(page: &str, address: &str) -> String {
    if address.contains("://") {
        return address.to_owned();
    }
    let (scheme, rest) = page.split_once("://").unwrap_or(("https", page));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if let Some(other) = address.strip_prefix("//") {
        return format!("{scheme}://{other}");
    }
    if address.starts_with('/') {
        return format!("{scheme}://{host}{address}");
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in address.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("{scheme}://{host}/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_relative_to_their_page() {
        let page = "https://host:8/root/simple/name/";
        assert_eq!(join(page, "https://other/x"), "https://other/x");
        assert_eq!(join(page, "//other/x"), "https://other/x");
        assert_eq!(join(page, "/x"), "https://host:8/x");
        assert_eq!(join(page, "x.whl"), "https://host:8/root/simple/name/x.whl");
        assert_eq!(join(page, "../../files/x.whl"), "https://host:8/root/files/x.whl");
        assert_eq!(join(page, "../../../../../../x"), "https://host:8/x");
    }

    #[test]
    fn anchors() {
        let body = r#"<html><a data-x="1" href='../a-1.whl?k=1&amp;l=2#sha256=0a' >a-1.whl</a><br/>
            <A href="no">no</A><a href="b.whl"> b.whl </a><a>c</a>"#;
        let find = |name| in_html("https://h/simple/p/", body, name);
        let first = File { url: "https://h/simple/a-1.whl?k=1&l=2".into(), sha256: Some("0a".into()) };
        assert_eq!(find("a-1.whl"), Some(first));
        assert_eq!(find("b.whl").map(|f| f.sha256), Some(None));
        assert_eq!(find("c"), None);
    }

    #[test]
    fn json_pages() {
        let body =
            r#"{"meta":{},"files":[{"filename":"a.whl","url":"/a.whl","hashes":{"sha256":"0a"},"x":1}]}"#;
        let found = in_json("https://h/simple/p/", body, "a.whl").expect("sound").expect("listed");
        assert_eq!(found, File { url: "https://h/a.whl".into(), sha256: Some("0a".into()) });
        assert_eq!(in_json("https://h/", body, "b.whl").expect("sound"), None);
        assert!(in_json("https://h/", "{}", "b.whl").is_err());
    }
}
