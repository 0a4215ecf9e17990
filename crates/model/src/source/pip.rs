//! pip: the command, and the package indexes that its configuration names.

use super::Progress;
use super::places::Variable;
use crate::error::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

const INDEX_DEFAULT: &str = "https://pypi.org/simple";

/// The commands that may be pip, best first.
pub(super) fn commands() -> Vec<Vec<String>> {
    [&["python3", "-m", "pip"][..], &["pip3"], &["pip"]]
        .map(|c| c.iter().map(|w| (*w).to_owned()).collect())
        .into()
}

/// How often a download is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Downloads the wheel of `package==version` into `folder` by the first pip there is.
/// `Ok(None)` if there is none.
pub(super) fn download(
    commands: &[Vec<String>],
    requirement: &str,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<Option<PathBuf>> {
    // What pip has not finished lies here, where its growth is seen.
    let partial = folder.join("partial");
    std::fs::create_dir_all(&partial).map_err(Error::io("create", &partial))?;
    let wheel = by_the_first(commands, requirement, folder, &partial, progress);
    std::fs::remove_dir_all(&partial).map_err(Error::io("remove", &partial))?;
    wheel
}

fn by_the_first(
    commands: &[Vec<String>],
    requirement: &str,
    folder: &Path,
    partial: &Path,
    progress: &mut dyn Progress,
) -> Result<Option<PathBuf>> {
    for command in commands {
        let Some((program, words)) = command.split_first() else { continue };
        let child = Command::new(program)
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
            .env("TMPDIR", partial)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(child) = child else { continue };
        let (status, why) = watched(child, partial, progress).map_err(Error::io("run pip for", folder))?;
        if status.success() {
            return wheel_in(folder).map(Some);
        }
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

/// Waits for a command's end, telling how the files in `partial` grow; with what it says on standard error.
fn watched(
    mut child: Child,
    partial: &Path,
    progress: &mut dyn Progress,
) -> std::io::Result<(ExitStatus, String)> {
    let mut said = child.stderr.take();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = said.as_mut().map_or(Ok(0), |said| said.read_to_end(&mut bytes));
        let _ = tell.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    let mut most = 0;
    loop {
        match told.recv_timeout(LOOK) {
            Ok(said) => return Ok((child.wait()?, said?)),
            Err(RecvTimeoutError::Disconnected) => return Ok((child.wait()?, String::new())),
            Err(RecvTimeoutError::Timeout) => {
                let now = bytes_below(partial);
                if now > most {
                    most = now;
                    progress.bytes(most, None);
                }
            }
        }
    }
}

/// Bytes of all files below a folder. Files come and go meanwhile: what cannot be read counts nothing.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
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
    use crate::source::Silent;

    /// Lets a download go on once it was told of.
    struct Seen<'a> {
        bytes: u64,
        go_on: &'a Path,
    }

    impl Progress for Seen<'_> {
        fn stage(&mut self, _: &str) {}
        fn bytes(&mut self, done: u64, _: Option<u64>) {
            self.bytes = done;
            std::fs::write(self.go_on, "").expect("written");
        }
        fn waits(&mut self, _: &str, _: std::time::Duration) {}
    }

    #[test]
    fn a_download_is_seen_to_grow() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dest, go_on) = (folder.path().join("dest"), folder.path().join("go-on"));
        // A pip that has 1000 bytes, waits until somebody saw them (not forever), and ends with a wheel.
        let script = format!(
            "mkdir $TMPDIR/a; head -c 1000 /dev/zero > $TMPDIR/a/x; n=0; \
             until [ -e {0} ]; do n=$((n+1)); [ $n -lt 600 ] || exit 3; sleep 0.1; done; touch {1}/p.whl",
            go_on.display(),
            dest.display(),
        );
        let pip = vec!["sh".into(), "-c".into(), script];
        let mut seen = Seen { bytes: 0, go_on: &go_on };
        let wheel = download(&[pip], "x", &dest, &mut seen).expect("downloaded");
        assert_eq!((wheel, seen.bytes), (Some(dest.join("p.whl")), 1000));
        assert!(!dest.join("partial").exists());
    }

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
        assert!(matches!(download(&absent, "x", folder.path(), &mut Silent), Ok(None)));
        let module = vec!["sh".to_owned(), "-c".into(), "echo No module named pip >&2; exit 1".into()];
        assert!(matches!(download(&[module], "x", folder.path(), &mut Silent), Ok(None)));
        let failing = vec!["sh".to_owned(), "-c".into(), "echo ERROR: no network >&2; exit 1".into()];
        let error = download(&[failing], "x", folder.path(), &mut Silent).expect_err("failed").to_string();
        assert!(error.contains("ERROR: no network"), "{error}");
        let empty = vec!["true".to_owned()];
        assert!(download(&[empty], "x", folder.path(), &mut Silent).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 0, "nothing partial is left");
    }
}
