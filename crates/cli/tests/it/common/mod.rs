//! The built binary on the tiny checkpoints of crate `model`.

pub(crate) mod pipes;
pub(crate) mod serving;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What came of a command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// It ended well; its standard output.
    #[track_caller]
    pub(crate) fn fine(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// It ended with this code and a message, once, that says all of these.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, says: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked") && !self.err.contains("backtrace"), "{}", self.err);
        for words in says {
            assert!(self.err.contains(words), "expected {words:?} in:\n{}", self.err);
        }
    }
}

/// A command of the binary, away from whatever flags are set around the tests. One thread, for tests run together.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast"));
    command.args(args).stdin(Stdio::null());
    let set = std::env::vars_os().map(|(name, _)| name);
    set.filter(|name| name.to_string_lossy().starts_with("BALLAST_") && name != "BALLAST_CACHE").for_each(
        |name| {
            command.env_remove(name);
        },
    );
    command.env("HF_HUB_OFFLINE", "1").env("BALLAST_THREADS", "1");
    command
}

/// The same command, whose files may have so many bytes each, in whole blocks of 512, as the shell counts them: writes beyond
/// fail, as on a full disk.
pub(crate) fn limited(command: &Command, bytes: usize) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -c 0; ulimit -f {}; exec \"$0\" \"$@\"", bytes / 512)]);
    behind(shell, command)
}

/// The same command, for which `folder` is a disk of so many bytes; none where the system gives this user no such thing.
pub(crate) fn on_a_disk(command: &Command, folder: &str, bytes: usize) -> Option<Command> {
    let script = format!("mount -t tmpfs -o size={bytes} none \"$0\" && exec \"$@\"");
    let mounted = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &script, folder]);
        unshare
    };
    let given = mounted().arg("true").output().is_ok_and(|tried| tried.status.success());
    given.then(|| behind(mounted(), command))
}

/// `outer` with the whole of `command` as its last arguments, and its environment.
pub(crate) fn behind(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

pub(crate) fn ballast(args: &[&str]) -> Ran {
    Ran::of(command(args).output().expect("the binary starts"))
}

/// With this on standard input.
pub(crate) fn ballast_reading(args: &[&str], input: &[u8]) -> Ran {
    let mut command = command(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // It may refuse its arguments before it reads.
    let _ = child.stdin.take().expect("piped").write_all(input);
    Ran::of(child.wait_with_output().expect("it ends"))
}

/// A committed checkpoint.
pub(crate) fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
    folder.canonicalize().expect("a committed checkpoint").display().to_string()
}

/// A model that writes more than a pipe holds: who answers with it is not done before somebody reads.
pub(crate) fn longwinded() -> Folder {
    let folder = Folder::copy_of("llama");
    let mut config = folder.json("config.json");
    config["max_position_embeddings"] = 200_000.into();
    folder.write("config.json", config.to_string());
    folder
}

/// A folder that goes when the test ends.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    /// A copy of a committed checkpoint that can be spoilt.
    pub(crate) fn copy_of(name: &str) -> Folder {
        let folder = Folder::new();
        for entry in fs::read_dir(golden(name)).expect("a checkpoint") {
            let from = entry.expect("an entry").path();
            fs::copy(&from, folder.path(from.file_name().expect("a name").to_str().expect("UTF-8")))
                .expect("copied");
        }
        folder
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(crate) fn name(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    /// The one file of this name, however deep.
    pub(crate) fn find(&self, file: &str) -> PathBuf {
        let mut folders = vec![self.path("")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("readable") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.ends_with(file) => return path,
                    false => {}
                }
            }
        }
        panic!("no {file}")
    }

    pub(crate) fn whole(&self) -> String {
        self.0.path().display().to_string()
    }

    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(file), bytes).expect("written");
        self.name(file)
    }

    pub(crate) fn read(&self, file: &str) -> String {
        String::from_utf8(fs::read(self.path(file)).expect("readable")).expect("UTF-8")
    }

    pub(crate) fn json(&self, file: &str) -> serde_json::Value {
        serde_json::from_str(&self.read(file)).expect("JSON")
    }
}
