//! The names of models of the hub: a repository, its revision, and which of its GGUF files.

use super::Places;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A repository of the hub, at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId {
    /// `org/name`.
    pub name: String,
    /// Branch, tag or commit; `main` unless said.
    pub revision: String,
    /// Which of its GGUF files, if it has several.
    pub gguf: GgufChoice,
}

/// One of several GGUF files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgufChoice {
    /// The only one.
    Only,
    /// That of this name, or any part of it.
    Named(String),
    /// That in this format (`Q4_K_M`).
    Format(String),
}

impl RepoId {
    /// Reads `org/name`, `org/name:revision`, `org/name:FORMAT` (of a GGUF file) or `org/name/file.gguf[:revision]`; each without
    /// a revision may end in `@revision`, which is never a format.
    pub fn parse(text: &str) -> Option<RepoId> {
        if let Some((rest, revision)) = text.split_once('@') {
            let repo = RepoId::parse(rest).filter(|repo| repo.revision == "main")?;
            let sound = revision.split('/').all(is_name);
            return sound.then(|| RepoId { revision: revision.into(), ..repo });
        }
        let (path, revision) = text.split_once(':').unwrap_or((text, "main"));
        let mut parts = path.splitn(3, '/');
        let (org, model, file) = (parts.next()?, parts.next()?, parts.next());
        let (gguf, revision) = match file {
            Some(file) if file.ends_with(".gguf") => (GgufChoice::Named(file.into()), revision),
            Some(_) => return None,
            None if is_format(revision) => (GgufChoice::Format(revision.into()), "main"),
            None => (GgufChoice::Only, revision),
        };
        let sound =
            [org, model].into_iter().chain(revision.split('/')).all(is_name) && file.is_none_or(is_file_name);
        sound.then(|| RepoId { name: format!("{org}/{model}"), revision: revision.into(), gguf })
    }

    pub(super) fn folder(&self, places: &Places) -> PathBuf {
        places.hub_cache.join(self.folder_name())
    }

    pub(super) fn folder_name(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

/// A part of an id: nothing that a path or an address could take for something else.
pub(super) fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !part.is_empty()
        && part.len() <= 96
        && part.chars().all(allowed)
        && !part.starts_with('.')
        && !part.contains("..")
}

/// The name of a file in a repository, or of a folder there: hardly anything is forbidden in those, but nothing may lead elsewhere.
pub(super) fn is_file_name(part: &str) -> bool {
    let forbidden = |c: char| c.is_control() || c == '/' || c == '\\';
    !part.is_empty() && part.len() <= 255 && !part.starts_with('.') && !part.contains(forbidden)
}

/// A file's name without its folder.
pub(super) fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether this is the name of a format of GGUF files, such as no branch has. Some publishers begin it with `UD-`.
fn is_format(text: &str) -> bool {
    let text = text.to_ascii_uppercase();
    let text = text.strip_prefix("UD-").unwrap_or(&text);
    let digit_after = |prefix| {
        text.strip_prefix(prefix).is_some_and(|rest: &str| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    ["F32", "F16", "BF16", "FP16"].contains(&text) || ["Q", "IQ", "TQ"].into_iter().any(digit_after)
}

/// Whether a name says that it is what a model's weights were weighed by, which lies beside it; those of models that were so made
/// say in which format.
fn is_imatrix(path: &str) -> bool {
    let name = last_part(path).to_ascii_lowercase();
    let parts = || name.split(['-', '.', '_']);
    let says = name.starts_with("imatrix") || parts().next_back() == Some("imatrix");
    says && !parts().any(is_format)
}

/// What is left of a file's name without its ending and the number of its part, and of how many parts it is.
fn stem(file: &str) -> (&str, usize) {
    let whole = file.strip_suffix(".gguf").unwrap_or(file);
    let numbered = whole.rsplit_once("-of-").and_then(|(before, parts)| {
        let (stem, part) = before.rsplit_once('-')?;
        let five = |digits: &str| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        (five(part) && five(parts)).then_some((stem, parts.parse().ok()?))
    });
    numbered.unwrap_or((whole, 1))
}

impl GgufChoice {
    /// Of these names, the parts of the one GGUF file that is meant, the first part first.
    ///
    /// # Errors
    /// The names of the GGUF files, if none or several are meant.
    pub(super) fn among<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<&'a str>, Vec<&'a str>> {
        let mut files: BTreeMap<(&str, usize), Vec<&str>> = BTreeMap::new();
        let mut all: Vec<&str> = names.filter(|name| name.ends_with(".gguf")).collect();
        all.sort_unstable();
        for name in all.iter().filter(|name| self.takes(stem(name).0)) {
            files.entry(stem(name)).or_default().push(*name);
        }
        let meant = files.into_iter().filter(|((_, parts), found)| found.len() == *parts);
        let mut meant: Vec<_> = meant.collect();
        // Of a file in one piece and the same in parts, the parts are taken. What has another name may be of another format.
        let split = meant.iter().filter(|((_, parts), _)| *parts > 1);
        let split: BTreeSet<&str> = split.map(|((stem, _), _)| last_part(stem)).collect();
        meant.retain(|((stem, parts), _)| *parts > 1 || !split.contains(last_part(stem)));
        if *self == GgufChoice::Only && meant.iter().any(|((stem, _), _)| !is_imatrix(stem)) {
            meant.retain(|((stem, _), _)| !is_imatrix(stem));
        }
        match meant.len() {
            1 => Ok(meant.remove(0).1),
            _ => Err(all),
        }
    }

    fn takes(&self, path: &str) -> bool {
        let file = last_part(path).to_ascii_lowercase();
        match self {
            GgufChoice::Named(name) => stem(name).0 == last_part(path),
            // What reads images for a model lies beside it.
            _ if file.contains("mmproj") => false,
            GgufChoice::Only => true,
            GgufChoice::Format(format) => {
                let before = file.strip_suffix(&format.to_ascii_lowercase());
                before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_name_and_format() {
        let names =
            ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m.q8_0.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"];
        let chosen = |text: &str| {
            RepoId::parse(text).expect(text).gguf.among(names.into_iter()).map_err(|names| names.len())
        };
        assert_eq!(chosen("o/n:q4_k_m"), Ok(vec!["m-Q4_K_M.gguf"]));
        assert_eq!(chosen("o/n:Q4_K"), Ok(vec!["m-Q4_K.gguf"]));
        assert_eq!(chosen("o/n:Q8_0"), Ok(vec!["m.q8_0.gguf"]));
        assert_eq!(chosen("o/n:Q5_0"), Err(5));
        assert_eq!(chosen("o/n/m.q8_0.gguf:v2"), Ok(vec!["m.q8_0.gguf"]));
        assert_eq!(chosen("o/n/b-00002-of-00002.gguf"), Ok(names[3..].to_vec()));
        assert_eq!(chosen("o/n/no.gguf"), Err(5));
        let below = ["Q8_0/b-Q8_0.gguf", "Q4_0/b-Q4_0.gguf"];
        let format = GgufChoice::Format("q8_0".into()).among(below.into_iter());
        let named = GgufChoice::Named("b-Q8_0.gguf".into()).among(below.into_iter());
        assert_eq!([format, named], [Ok(vec![below[0]]), Ok(vec![below[0]])], "a folder is not asked for");
        let seeing =
            ["imatrix_m.gguf", "m-F16.gguf", "m-imatrix.gguf", "mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"];
        let of = |choice: GgufChoice| choice.among(seeing.into_iter());
        assert_eq!(of(GgufChoice::Format("F16".into())), Ok(vec!["m-F16.gguf"]), "what sees is no model");
        assert_eq!(of(GgufChoice::Only), Ok(vec!["m-F16.gguf"]));
        assert_eq!(of(GgufChoice::Named("mmproj-m-Q8_0.gguf".into())), Ok(vec!["mmproj-m-Q8_0.gguf"]));
        assert_eq!(of(GgufChoice::Format("Q8_0".into())), Err(seeing.to_vec()));
        let among = |names: &[&'static str]| GgufChoice::Only.among(names.iter().copied());
        assert_eq!(among(&seeing[2..3]), Ok(vec![seeing[2]]), "nothing else may be meant");
        assert_eq!(
            among(&["m-Q4_K_M-imatrix.gguf", "m-Q4_K_M.gguf"]).unwrap_err().len(),
            2,
            "both are models"
        );
        // Parts are preferred to the same in one file; which of those with other names is meant, nobody can say.
        assert_eq!(chosen("o/n"), Err(5));
        let twice = ["all/b.gguf", names[3], names[4]];
        assert_eq!(GgufChoice::Only.among(twice.into_iter()), Ok(names[3..].to_vec()));
        assert_eq!(GgufChoice::Only.among(names[..2].iter().copied()), Err(vec![names[1], names[0]]));
        assert_eq!(
            GgufChoice::Only.among(names[3..4].iter().copied()),
            Err(vec![names[3]]),
            "a part is missing"
        );
    }

    #[test]
    fn revisions_are_no_formats() {
        for revision in ["main", "v1.0", "refs/pr/1", "quantized", "Qwen", "4.0bpw", "fp8", "UD-main"] {
            let repo = RepoId::parse(&format!("o/n:{revision}")).expect(revision);
            assert_eq!((repo.revision.as_str(), repo.gguf), (revision, GgufChoice::Only));
        }
        assert_eq!(RepoId::parse("o/n/x.gguf:v2").expect("sound").revision, "v2");
        let (long, spaced) = (format!("{}.gguf", "x".repeat(120)), "my model (1+2) Q4_K_M.gguf");
        for file in [&long, spaced] {
            let repo = RepoId::parse(&format!("o/n/{file}")).expect(file);
            assert_eq!(repo.gguf, GgufChoice::Named(file.into()), "files have freer names than repositories");
        }
        for format in ["UD-Q4_K_XL", "ud-iq2_m"] {
            let repo = RepoId::parse(&format!("o/n:{format}")).expect(format);
            assert_eq!((repo.revision.as_str(), repo.gguf), ("main", GgufChoice::Format(format.into())));
        }
        for wrong in ["o/n/x", "o/n/../x.gguf", "o/n/a/x.gguf", "o/n/.x.gguf", "o", "o/n:", "o o/n"] {
            assert_eq!(RepoId::parse(wrong), None, "{wrong}");
        }
    }
}
