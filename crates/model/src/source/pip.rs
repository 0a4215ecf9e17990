//! pip: the command, and the package indexes that its configuration names.

use super::places::Variable;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const INDEX_DEFAULT: &str = "https://pypi.org/simple";

/// The commands that may be pip, best first.
pub(super) fn commands() -> Vec<Vec<String>> {
    [&["python3", "-m", "pip"][..], &["pip3"], &["pip"]]
        .map(|c| c.iter().map(|w| (*w).to_owned()).collect())
        .into()
}

/// Downloads the wheel of `package==version` into `folder` by the first pip there is.
/// `Ok(None)` if there is none.
pub(super) fn download(
    commands: &[Vec<String>],
    requirement: &str,
    folder: &Path,
) -> Result<Option<PathBuf>> {
    for command in commands {
        let Some((program, words)) = command.split_first() else { continue };
        let output = Command::new(program)
            .args(words)
            .args([
                "download",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--no-input",
                "--disable-pip-version-check",
            ])
            .args(["--progress-bar", "off", "--quiet", "--dest"])
            .arg(folder)
            .arg(requirement)
            .output();
        let Ok(output) = output else { continue };
        if output.status.success() {
            return wheel_in(folder).map(Some);
        }
        let why = String::from_utf8_lossy(&output.stderr);
        if !why.contains("No module named") {
            let last = why.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no reason given").to_owned();
            return Err(Error::Fetch {
                url: requirement.into(),
                why: format!("{} says: {last}", command.join(" ")),
            });
        }
    }
    Ok(None)
}

fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let listing = std::fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut paths = listing.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|p| p.extension().is_some_and(|e| e == "whl")).ok_or_else(|| Error::Fetch {
        url: folder.display().to_string(),
        why: "pip succeeded but left no wheel".into(),
    })
}

/// The indexes of `PIP_INDEX_URL` and `PIP_EXTRA_INDEX_URL`, or of pip's configuration files, or pip's own.
pub(super) fn indexes(variable: Variable, home: &Path) -> Vec<String> {
    let mut settings = Settings::default();
    for file in config_files(variable, home) {
        settings.read(&std::fs::read_to_string(file).unwrap_or_default());
    }
    settings.set("index-url", variable("PIP_INDEX_URL"));
    settings.set("extra-index-url", variable("PIP_EXTRA_INDEX_URL"));
    let first = settings.index.unwrap_or_else(|| INDEX_DEFAULT.into());
    let extra = settings.extra.unwrap_or_default();
    std::iter::once(first.as_str())
        .chain(extra.split_whitespace())
        .map(|u| u.trim_end_matches('/').into())
        .collect()
}

/// Later files win over earlier ones.
fn config_files(variable: Variable, home: &Path) -> Vec<PathBuf> {
    let config = variable("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
    let shared = variable("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".into());
    let mut files: Vec<_> = shared.split(':').map(|d| Path::new(d).join("pip/pip.conf")).collect();
    files.push("/etc/pip.conf".into());
    files.push(home.join(".pip/pip.conf"));
    files.push(config.join("pip/pip.conf"));
    files.extend(variable("VIRTUAL_ENV").map(|v| Path::new(&v).join("pip.conf")));
    files.extend(variable("PIP_CONFIG_FILE").map(PathBuf::from));
    files
}

#[derive(Debug, Default)]
struct Settings {
    index: Option<String>,
    extra: Option<String>,
}

impl Settings {
    fn set(&mut self, key: &str, value: Option<String>) {
        let Some(value) = value.filter(|v| !v.trim().is_empty()) else { return };
        match key.replace('_', "-").as_str() {
            "index-url" => self.index = Some(value.trim().into()),
            "extra-index-url" => self.extra = Some(value),
            _ => {}
        }
    }

    /// Reads `[global]` and `[download]` of an INI file; indented lines go on with the value before.
    fn read(&mut self, text: &str) {
        let (mut ours, mut last) = (false, None::<(String, String)>);
        for line in text.lines().filter(|l| !l.trim_start().starts_with(['#', ';'])) {
            if let (true, Some((_, value))) = (line.starts_with([' ', '\t']), &mut last) {
                *value += &format!(" {}", line.trim());
                continue;
            }
            self.take(&mut last);
            if line.starts_with('[') {
                ours = matches!(line.trim(), "[global]" | "[download]");
            } else if let (true, Some((key, value))) = (ours, line.split_once(['=', ':'])) {
                last = Some((key.trim().to_ascii_lowercase(), value.trim().into()));
            }
        }
        self.take(&mut last);
    }

    fn take(&mut self, entry: &mut Option<(String, String)>) {
        if let Some((key, value)) = entry.take() {
            self.set(&key, Some(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environment: &[(&str, &str)], file: &str, indexes_: &[&str]) {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(home.path().join(".config/pip")).expect("created");
        std::fs::write(home.path().join(".config/pip/pip.conf"), file).expect("written");
        let own = home.path().join("none").display().to_string();
        let variable = |name: &str| match name {
            "XDG_CONFIG_DIRS" => Some(own.clone()),
            _ => environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()),
        };
        let found: Vec<_> = indexes(&variable, home.path()).into_iter().filter(|i| !i.is_empty()).collect();
        assert_eq!(found, indexes_);
    }

    #[test]
    fn configuration_names_indexes() {
        check(
            &[("PIP_INDEX_URL", "https://a/simple/")],
            "[global]\nindex-url = https://b/simple",
            &["https://a/simple"],
        );
        check(&[], "[install]\nindex-url = https://no\n[global]\nindex_url: https://b/\n", &["https://b"]);
        let several = "[global]\ntimeout = 3\nextra-index-url =\n  https://c\n  # not this\n  https://d\nindex-url=https://b";
        check(&[], several, &["https://b", "https://c", "https://d"]);
        check(
            &[("PIP_EXTRA_INDEX_URL", "https://e https://f")],
            "[global]\nindex-url=x",
            &["x", "https://e", "https://f"],
        );
    }

    #[test]
    fn a_machine_without_pip() {
        let folder = tempfile::tempdir().expect("a folder");
        let absent = vec![vec!["no-such-program-here".to_owned()], vec![]];
        assert!(matches!(download(&absent, "x", folder.path()), Ok(None)));
        let module = vec!["sh".to_owned(), "-c".into(), "echo No module named pip >&2; exit 1".into()];
        assert!(matches!(download(&[module], "x", folder.path()), Ok(None)));
        let failing = vec!["sh".to_owned(), "-c".into(), "echo ERROR: no network >&2; exit 1".into()];
        let error = download(&[failing], "x", folder.path()).expect_err("failed").to_string();
        assert!(error.contains("ERROR: no network"), "{error}");
        let empty = vec!["true".to_owned()];
        assert!(download(&[empty], "x", folder.path()).is_err());
    }
}
