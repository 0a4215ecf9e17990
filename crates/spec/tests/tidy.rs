//! Holds the invariants of the house: which crate may know which, what the pure crates must not touch, where unsafe may
//! be, and how long files and functions get. `cargo test -p spec --test tidy -- --nocapture` prints the lengths.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates, and those of ours that each may depend on.
const MAY_DEPEND: [(&str, &[&str]); 9] = [
    ("spec", &[]),
    ("policy", &["spec"]),
    ("sim", &["spec", "policy"]),
    ("kernels", &["spec"]),
    ("cuda", &["kernels"]),
    ("model", &["spec", "kernels"]),
    ("engine", &["spec", "policy", "kernels", "cuda", "model"]),
    ("server", &["spec", "model", "engine"]),
    ("cli", &["spec", "policy", "sim", "kernels", "cuda", "model", "engine", "server"]),
];

/// Crates that decide or describe.
const PURE: [&str; 3] = ["spec", "policy", "sim"];

/// What these may use of others: shapes of data, errors, and the solver of the placement's linear program.
const PURE_MAY_USE: [&str; 4] = ["serde", "serde_json", "thiserror", "microlp"];

/// What a pure crate has no use for: clocks, threads, files, sockets, environment, output, globals, seeds of its own. (Words of
/// `std::io` that read what they are given are none of these.)
const IMPURE: [&str; 41] = [
    "std::time",
    "std::thread",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "static mut",
    "thread_local",
    "OnceLock",
    "OnceCell",
    "LazyLock",
    "LazyCell",
    "lazy_static",
    "RefCell",
    "Atomic",
    "Mutex",
    "RwLock",
    "Condvar",
    "mpsc",
    "DefaultHasher",
    "available_parallelism",
    "print!",
    "println!",
    "eprint",
    "dbg!",
    "stdin",
    "stdout",
    "stderr",
    "File::",
    "std::os",
    // Names that a list would take out of sight.
    "std::{",
    "thread::",
    "cell::Cell",
    "Rc<",
    "rand::",
    "getrandom",
];

/// What the crate that decides never sees: numbers of tensors, bytes, tokens and texts of requests.
const CONTENTS: [&str; 13] = [
    "f32",
    "f16",
    "bf16",
    "half::",
    "bytemuck",
    "u8]",
    "Vec<u8>",
    "u8>",
    "from_utf8",
    "as_bytes",
    "token_id",
    "TokenId",
    "logprob",
];

/// What a step says is said in counts, ids and hashes: these files of `spec` hold neither tokens nor texts.
const CROSSING: [&str; 4] = ["src/step.rs", "src/request.rs", "src/done.rs", "src/shape.rs"];

/// Files that know one architecture from another; everything else goes by what a `ModelSpec` says.
const KNOW_ARCHITECTURES: [&str; 4] =
    ["model/src/config/", "model/src/config.rs", "model/src/gguf/", "model/src/tensor/"];

/// Crates that may hold unsafe code.
const UNSAFE: [&str; 2] = ["kernels", "cuda"];

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MEDIAN_MAX: usize = 10;
const LONG_FUNCTION_LINES: usize = 70;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A source file: its crate, its path from the crate, its text.
struct Source {
    of: String,
    path: String,
    text: String,
}

impl Source {
    /// Whether it is part of the crate itself, not of its tests, examples or benches.
    fn ships(&self) -> bool {
        self.path.starts_with("src")
    }

    /// Lines without comments, numbered from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..)
            .zip(self.text.lines())
            .map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }

    fn at(&self, line: usize) -> String {
        format!("crates/{}/{}:{line}", self.of, self.path)
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn crates() -> Vec<String> {
    let paths =
        folders(&workspace().join("crates")).into_iter().filter(|path| path.join("Cargo.toml").exists());
    paths.map(|path| path.file_name().expect("a folder").to_string_lossy().into_owned()).collect()
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for of in crates() {
        let root = workspace().join("crates").join(&of);
        let mut left = vec![root.clone()];
        while let Some(path) = left.pop() {
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                left.extend(folders(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                let path = path.strip_prefix(&root).expect("below its crate").to_string_lossy().into_owned();
                found.push(Source { of: of.clone(), path, text });
            }
        }
    }
    assert!(found.len() > 30, "the workspace was not found: {} files", found.len());
    found
}

/// Names under `[dependencies]` and `[build-dependencies]`.
fn dependencies(of: &str) -> Vec<String> {
    let manifest =
        fs::read_to_string(workspace().join("crates").join(of).join("Cargo.toml")).expect("a manifest");
    let mut section = String::new();
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.to_string();
        } else if section.ends_with("dependencies]") && !section.contains("dev-") && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            names.extend(Some(name.to_string()).filter(|name| !name.is_empty()));
        }
    }
    names
}

fn none(found: Vec<String>, what: &str) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn crates_know_only_those_below_them() {
    let may: BTreeMap<_, _> = MAY_DEPEND.into_iter().collect();
    for of in crates() {
        let allowed =
            may.get(of.as_str()).unwrap_or_else(|| panic!("crate {of} has no place in the house yet"));
        for name in dependencies(&of) {
            let ours = may.contains_key(name.as_str());
            assert!(!ours || allowed.contains(&name.as_str()), "{of} must not depend on {name}");
        }
    }
}

#[test]
fn pure_crates_touch_nothing_but_their_arguments() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| PURE.contains(&source.of.as_str()) && source.ships()) {
        for (line, code) in source.code() {
            let words = IMPURE.iter().filter(|word| code.contains(**word));
            found.extend(words.map(|word| format!("{} {word}", source.at(line))));
        }
    }
    none(found, "clocks, threads, files and the like in crates that decide");
    for of in PURE {
        let root =
            fs::read_to_string(workspace().join("crates").join(of).join("src/lib.rs")).expect("a library");
        assert!(root.contains("#![forbid(unsafe_code)]"), "{of} forbids unsafe code");
        for name in dependencies(of) {
            let ours = MAY_DEPEND.iter().any(|(known, _)| *known == name);
            assert!(
                ours || PURE_MAY_USE.contains(&name.as_str()),
                "{of} decides or describes: not with {name}"
            );
        }
    }
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why() {
    let (mut elsewhere, mut silent) = (Vec::new(), Vec::new());
    for source in sources().iter().filter(|source| source.path != "tests/tidy.rs") {
        let lines: Vec<&str> = source.text.lines().collect();
        let begins = |code: &str| ["unsafe {", "unsafe impl"].iter().any(|word| code.contains(word));
        for (line, _) in source.code().filter(|(_, code)| begins(code)) {
            elsewhere.extend((!UNSAFE.contains(&source.of.as_str())).then(|| source.at(line)));
            silent.extend((!says_why(&lines, line - 1)).then(|| source.at(line)));
        }
    }
    none(elsewhere, "unsafe code elsewhere");
    none(silent, "unsafe code without `SAFETY:`");
}

/// Whether the statement that holds this line, or the comment before it, says why it is sound.
fn says_why(lines: &[&str], at: usize) -> bool {
    let before = lines[..at].iter().rev().map(|line| line.trim_start());
    let statement = before.take(12).take_while(|line| line.starts_with("//") || !line.ends_with([';', '}']));
    std::iter::once(lines[at]).chain(statement).any(|line| line.contains("SAFETY:"))
}

/// Words found in the code of some files.
fn found_in<'a>(files: impl Iterator<Item = &'a Source>, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for source in files {
        for (line, code) in source.code() {
            found.extend(
                words
                    .iter()
                    .filter(|word| code.contains(**word))
                    .map(|word| format!("{} {word}", source.at(line))),
            );
        }
    }
    found
}

#[test]
fn what_decides_sees_counts_and_hashes_alone() {
    let all = sources();
    let policy = all.iter().filter(|source| source.of == "policy" && source.ships());
    none(found_in(policy, &CONTENTS), "contents of requests or tensors in the crate that decides");
    let crossing: Vec<_> =
        all.iter().filter(|source| source.of == "spec" && CROSSING.contains(&source.path.as_str())).collect();
    assert_eq!(crossing.len(), CROSSING.len(), "files of spec");
    let words = [&CONTENTS[..], &["Vec<u32>", "[u32]", "String", "&str"]].concat();
    none(found_in(crossing.into_iter(), &words), "contents in what crosses between deciding and doing");
}

#[test]
fn architectures_are_told_apart_where_files_are_read() {
    let all = sources();
    let elsewhere = all.iter().filter(|source| {
        let path = format!("{}/{}", source.of, source.path);
        source.ships() && !KNOW_ARCHITECTURES.iter().any(|known| path.starts_with(known))
    });
    let asks = [
        "architecture ==",
        "architecture !=",
        "architecture.as_str()",
        "architecture.starts_with",
        "architecture.contains",
        "match spec.architecture",
        "Family::",
        "pairs_rows",
    ];
    // The checkpoint asks for the order of rows in the file that it reads.
    let found = found_in(elsewhere.filter(|source| source.path != "src/checkpoint.rs"), &asks);
    none(found, "branches on a model's architecture");
}

#[test]
fn nothing_is_left_for_later_or_hidden() {
    // Put together here, so that this file does not find itself.
    let words = [
        ["to", "do!("],
        ["TO", "DO"],
        ["FIX", "ME"],
        ["unimple", "mented!("],
        ["#[ig", "nore"],
        ["thread::sl", "eep"],
    ];
    let paths = [["/ro", "ot/"], ["/wo", "rk/"]];
    let (words, paths) = (words.map(|parts| parts.concat()), paths.map(|parts| parts.concat()));
    // Inside an address the same letters are no path of a machine.
    let begins = |text: &str, path: &str| {
        text.match_indices(path).any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric()))
    };
    let mut found = Vec::new();
    for source in sources() {
        for (line, text) in (1..).zip(source.text.lines()) {
            let left = words.iter().filter(|word| text.contains(word.as_str()));
            let hits = left.chain(paths.iter().filter(|path| begins(text, path)));
            found.extend(hits.map(|word| format!("{} {word}", source.at(line))));
        }
    }
    none(found, "things left for later, skipped tests, sleeps or paths of one machine");
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let quoted = text.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("/src/"));
    let paths: Vec<&str> = quoted.collect();
    assert!(paths.len() > 10, "the table of files");
    let missing = paths.into_iter().filter(|path| !workspace().join("crates").join(path).exists());
    none(missing.map(str::to_string).collect(), "no such file, which ARCHITECTURE.md names");
}

#[test]
fn one_binary_has_every_device() {
    let all = sources();
    let asked = found_in(all.iter().filter(|source| source.path != "tests/tidy.rs"), &["feature = \"cuda\""]);
    none(asked, "CUDA is looked for when it is asked for, not when the binary is built");
}

#[test]
fn async_is_known_to_the_server_alone() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.of != "server" && source.path != "tests/tidy.rs") {
        let lines = source.code().filter(|(_, code)| code.contains("async fn") || code.contains("tokio::"));
        found.extend(lines.map(|(line, _)| source.at(line)));
    }
    none(found, "async code outside the server");
}

/// Lines of each function: from its `fn` to the brace that closes it, found by indentation.
fn functions(text: &str) -> Vec<usize> {
    let lines: Vec<_> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lengths = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let bare = line.trim_start();
        let begins = bare.starts_with("fn ")
            || (bare.starts_with("pub") || bare.starts_with("unsafe")) && bare.contains(" fn ");
        if begins && !bare.ends_with(';') {
            let closes = |other: &&str| other.trim_start().starts_with('}') && indent(other) == indent(line);
            let end = lines[at..].iter().position(closes);
            lengths.extend(if bare.ends_with('}') { Some(1) } else { end.map(|end| end + 1) });
        }
    }
    lengths
}

fn quantile(sorted: &[usize], of_100: usize) -> usize {
    sorted.get(sorted.len() * of_100 / 100).copied().unwrap_or_default()
}

#[test]
fn files_and_functions_stay_short() {
    let sources = sources();
    let mut files: Vec<_> = sources.iter().map(|source| (source.text.lines().count(), source)).collect();
    files.sort_by_key(|(lines, _)| *lines);
    let lines: Vec<_> = files.iter().map(|(lines, _)| *lines).collect();
    let shipped = sources.iter().filter(|source| source.ships());
    let mut functions: Vec<_> = shipped.flat_map(|source| functions(&source.text)).collect();
    functions.sort_unstable();
    let long = functions.iter().filter(|lines| **lines > LONG_FUNCTION_LINES).count();
    println!("files: {}, median {} lines, 90 % {}", lines.len(), quantile(&lines, 50), quantile(&lines, 90));
    files.iter().rev().take(5).for_each(|(lines, source)| println!("  {lines} {}", source.at(1)));
    println!(
        "functions: {}, median {} lines, 90 % {}, longest {}, {long} above {LONG_FUNCTION_LINES}",
        functions.len(),
        quantile(&functions, 50),
        quantile(&functions, 90),
        functions.last().copied().unwrap_or_default(),
    );
    let over = files
        .iter()
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, s)| format!("{} {lines}", s.at(1)));
    none(over.collect(), "files longer than they should be");
    assert!(quantile(&functions, 50) <= FUNCTION_LINES_MEDIAN_MAX, "the median function is too long");
    assert!(
        long * 25 <= functions.len(),
        "{long} of {} functions are above {LONG_FUNCTION_LINES} lines",
        functions.len()
    );
}
