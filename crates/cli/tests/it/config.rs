//! Flags from a file and the environment, through the built binary.

use crate::common::{Folder, Ran, ballast, command, golden};

fn with_env(args: &[&str], env: &[(&str, &str)]) -> Ran {
    Ran::of(command(args).envs(env.iter().copied()).output().expect("the binary starts"))
}

#[test]
fn a_file_and_the_environment_set_flags() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let file = folder.write(
        "b.toml",
        format!(
            "quiet = true\n[run]\nmodel = '{model}'\ntemperature = 0\nmax-tokens = 3\nignore-eos = true\n"
        ),
    );
    let flags = ["-q", "--temperature", "0", "--max-tokens", "3", "--ignore-eos"];
    let typed = ballast(&[&["run", &model, "hello"], &flags[..]].concat()).fine();
    let asked = |env: &[(&str, &str)], more: &[&str]| {
        with_env(&[&["run", &model, "hello"], more].concat(), env).fine()
    };
    assert_eq!(asked(&[], &["--config", &file]), typed);
    assert_eq!(asked(&[("BALLAST_CONFIG", &file)], &[]), typed);
    let longer = asked(&[("BALLAST_MAX_TOKENS", "9")], &["--config", &file]);
    // The third token may be the beginning of a character.
    let begun = typed.trim_end().trim_end_matches('\u{fffd}').trim_end();
    assert!(longer.len() > typed.len() && longer.starts_with(begun), "{longer:?}");
    assert_eq!(asked(&[("BALLAST_MAX_TOKENS", "9")], &["--config", &file, "--max-tokens", "3"]), typed);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let folder = Folder::new();
    ballast(&["run", "--config", "/no/such.toml"])
        .refused(2, &["cannot read the configuration /no/such.toml"]);
    let file = folder.write("b.toml", "[serve]\nprot = 1\n");
    ballast(&["serve", "m", "--config", &file]).refused(2, &["b.toml", "`prot`", "`port`"]);
    ballast(&["bench", "disk", "--config", &file]).refused(2, &["`prot`"]);
    let file = folder.write("b.toml", "[serve]\nport = 70000\n");
    ballast(&["--config", &file, "serve", "m"]).refused(2, &["70000", "port is set by", "b.toml [serve]"]);
    with_env(&["serve", "m"], &[("BALLAST_PORT", "x")]).refused(2, &["port is set by BALLAST_PORT"]);
    // Who looks for the right name finds it.
    let file = folder.write("b.toml", "prot = 1\n");
    with_env(&["serve", "--help"], &[("BALLAST_CONFIG", &file)]).fine();
    with_env(&["--version"], &[("BALLAST_CONFIG", &file)]).fine();
    with_env(&["serve", "m"], &[("BALLAST_CONFIG", &file)]).refused(2, &["`prot`"]);
}
