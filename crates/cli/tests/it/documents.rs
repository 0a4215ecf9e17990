//! Manual pages and completions: every command has a page, and every flag is in both.

use std::process::Command;

use crate::common::{Folder, ballast};

/// Commands as `--help` lists them, below `path`.
fn commands(path: &[&str]) -> Vec<String> {
    let help = ballast(&[path, &["--help"]].concat()).fine();
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.trim().is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().expect("a name").to_string())
        .filter(|name| name != "help")
        .collect()
}

/// Long flags as `--help` lists them.
fn flags(path: &[&str]) -> Vec<String> {
    let help = ballast(&[path, &["--help"]].concat()).fine();
    let flag = |line: &str| {
        let at = line.trim_start();
        let begins = at.starts_with("--") || at.starts_with('-') && at.contains(", --");
        begins.then(|| {
            at[at.find("--").expect("found")..].split([' ', '=', '.']).next().expect("a flag").to_string()
        })
    };
    help.lines().filter_map(flag).collect()
}

#[test]
fn every_command_has_a_page_with_its_flags() {
    let folder = Folder::new();
    ballast(&["man", "--dir", &folder.name("man")]).fine();
    let mut seen = 0;
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let page = folder.read(&format!("man/{}.1", [&["ballast"], &words[..]].concat().join("-")));
        for flag in flags(&words) {
            assert!(page.replace("\\-", "-").contains(&flag), "{words:?} {flag}");
            seen += 1;
        }
        paths.extend(commands(&words).into_iter().map(|name| [&path[..], &[name]].concat()));
    }
    assert!(seen > 150, "{seen} flags");
    let blocked = folder.write("file", "");
    ballast(&["man", "--dir", &blocked]).refused(1, &["cannot write manual pages"]);
}

#[test]
fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let script = ballast(&["completions", shell]).fine();
        for word in ["serve", "max-num-queued-reqs", "throughput", "goodput"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    ballast(&["completions", "powershell"]).refused(2, &["bash, zsh, fish"]);
    let folder = Folder::new();
    let file = folder.write("c.bash", ballast(&["completions", "bash"]).fine());
    let test = format!(
        "source {file} && COMP_WORDS=(ballast serve --max-num-que) COMP_CWORD=2 && _ballast ballast --max-num-que serve; echo ${{COMPREPLY[@]}}"
    );
    // Completion of words is bash's: where there is none, the words above are what is known.
    let Ok(output) = Command::new("bash").args(["-c", &test]).output() else { return };
    let replies = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        replies.contains("--max-num-queued-reqs") && replies.contains("--max-num-queued-tokens"),
        "{replies} {output:?}"
    );
}
