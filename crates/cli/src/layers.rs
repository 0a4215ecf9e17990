//! Flags that are not typed: from `BALLAST_*` variables and a TOML file. Whatever is typed wins, then the environment,
//! then the file, then the default; so does a flag over its opposite in a layer below. What the layers add is put into the command line before it is parsed, so that
//! values are checked, and conflicts found, as if they had been typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::console::Misuse;
use crate::run::is_a_prompt;

/// Before the names of variables.
const PREFIX: &str = "BALLAST_";
/// The flag that names the file; no layer sets it but the environment.
const CONFIG: &str = "config";

/// A command line with what the layers add.
#[derive(Debug)]
pub(crate) struct Layered {
    pub(crate) argv: Vec<OsString>,
    /// What was added, and from where.
    added: Vec<Setting>,
}

/// A value for a flag.
#[derive(Clone, Debug)]
struct Setting {
    flag: String,
    value: Value,
    source: String,
}

impl Setting {
    /// Whether it sets anything: a switch may be set to off, which is no flag.
    fn is_on(&self) -> bool {
        self.value != Value::Boolean(false)
    }
}

impl Layered {
    /// Where the flag of an error message came from, if it was not typed.
    pub(crate) fn source(&self, of: &str) -> Option<String> {
        let named = of.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
        let named = named.trim_matches(['<', '>']).to_ascii_lowercase();
        let setting = self.added.iter().find(|setting| setting.flag == named)?;
        Some(format!("{} is set by {}", setting.flag, setting.source))
    }
}

/// Adds to `typed` (the program's name first) what `env` and the file of `--config` say and the person did not.
///
/// # Errors
/// A file that cannot be read, is no TOML, or has keys that are no flags; values of the wrong kind.
pub(crate) fn layered(
    command: &Command,
    typed: Vec<OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Layered> {
    let mut command = command.clone();
    command.build();
    let (path, leaf, rest) = leaf(&command, &typed);
    let file = config_file(&typed, env);
    let of_file = match &file {
        Some(file) => of_file(&command, &path, leaf, file)?,
        None => Vec::new(),
    };
    let of_env = of_env(leaf, env)?;
    let names_a_model = of_env.iter().chain(&of_file).any(|setting| setting.flag == "model");
    let explicit = explicit(leaf, &typed[rest..], names_a_model);
    let mut settings = below(leaf, of_env, &explicit);
    let above: Vec<String> = settings.iter().map(|setting| setting.flag.clone()).collect();
    let on = settings.iter().filter(|setting| setting.is_on()).map(|setting| setting.flag.clone());
    let opposes: Vec<String> = explicit.iter().cloned().chain(on).collect();
    let of_file = of_file.into_iter().filter(|setting| !above.contains(&setting.flag)).collect();
    settings.extend(below(leaf, of_file, &opposes));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for arg in settable(leaf) {
        let Some(setting) = settings.iter().find(|setting| setting.flag == key(arg)) else { continue };
        let words = words(arg, setting)?;
        // What has a place follows what was typed before it.
        let is_before = |a: &Arg| a.is_positional() && a.get_index() < arg.get_index();
        let follows =
            arg.is_positional() && settable(leaf).any(|a| is_before(a) && explicit.contains(&key(a)));
        if follows { after.extend(words) } else { before.extend(words) }
    }
    if !after.is_empty() && !typed.iter().any(|word| word == "--") {
        after.insert(0, "--".into());
    }
    let argv = [&typed[..rest], &before, &typed[rest..], &after].concat();
    Ok(Layered { argv, added: settings })
}

/// What variables say. One that is empty says nothing, as where nothing was put into `${VAR}`.
fn of_env(leaf: &Command, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    for arg in settable(leaf).filter(|arg| shares_its_name(arg)) {
        let says = |name: &String, value: &OsString| {
            !is_service_link(name, value) && (!value.is_empty() || is_guard(arg))
        };
        let found = names(arg).map(|name| variable(&name)).find_map(|name| {
            let value = env(&name).filter(|value| says(&name, value))?;
            Some((name, value))
        });
        if let Some((name, value)) = found {
            settings.push(Setting { flag: key(arg), value: of_variable(arg, &name, value)?, source: name });
        }
    }
    Ok(settings)
}

/// Whether its absence opens a server to all: a mistake must not come to the same.
fn is_guard(arg: &Arg) -> bool {
    ["api-key", "api-key-file"].contains(&key(arg).as_str())
}

/// A flag's name, and others that mean the same.
fn names(arg: &Arg) -> impl Iterator<Item = String> {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    [key(arg)].into_iter().chain(aliases.into_iter().map(String::from))
}

/// Settings that no flag of a layer above sets or excludes.
fn below(leaf: &Command, settings: Vec<Setting>, above: &[String]) -> Vec<Setting> {
    let excluded = |setting: &Setting| {
        let arg = settable(leaf).find(|arg| key(arg) == setting.flag);
        let over = leaf.get_arguments().filter(|arg| above.contains(&key(arg)));
        arg.is_some_and(|arg| over.into_iter().any(|over| key(over) == key(arg) || exclude(leaf, over, arg)))
    };
    settings.into_iter().filter(|setting| !excluded(setting)).collect()
}

/// Whether two flags cannot be given together.
fn exclude(leaf: &Command, one: &Arg, other: &Arg) -> bool {
    let excludes = |one: &Arg, other: &Arg| {
        leaf.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    excludes(one, other) || excludes(other, one)
}

/// The command that is meant: its path, itself, and where its own words begin.
pub(crate) fn leaf<'a>(command: &'a Command, typed: &[OsString]) -> (Vec<String>, &'a Command, usize) {
    let (mut path, mut leaf, mut at, mut rest) = (Vec::new(), command, 1, 1);
    while let Some(word) = typed.get(at) {
        if word == "--config" {
            at += 2;
        } else if config_of(word).is_some() {
            at += 1;
        } else if let Some(next) = leaf.find_subcommand(word) {
            path.push(next.get_name().to_string());
            (leaf, at) = (next, at + 1);
            rest = at;
        } else {
            break;
        }
    }
    (path, leaf, rest)
}

fn config_file(typed: &[OsString], env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let words = || typed.iter().take_while(|word| *word != "--");
    let mut found = None;
    for (word, next) in words().zip(typed.iter().skip(1).map(Some).chain([None])) {
        let apart = next.filter(|_| word == "--config").map(OsString::as_os_str);
        found = config_of(word).or(apart).map(PathBuf::from).or(found);
    }
    let of_env = || env(&variable(CONFIG)).filter(|path| !path.is_empty());
    found.or_else(|| of_env().map(PathBuf::from))
}

/// The path of `--config=PATH`, whatever bytes it has.
fn config_of(word: &OsStr) -> Option<&OsStr> {
    word.as_bytes().strip_prefix(b"--config=").map(OsStr::from_bytes)
}

/// Flags that a layer may set.
fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |arg: &&Arg| {
        let asks = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !asks && arg.get_id() != CONFIG
    };
    command.get_arguments().filter(own).filter(|arg| !is_another_spelling(command, arg))
}

/// Whether a flag says what a value with a place says too: `--model`, beside MODEL.
fn is_another_spelling(command: &Command, arg: &Arg) -> bool {
    !arg.is_positional() && command.get_positionals().any(|place| key(place) == key(arg))
}

/// A flag's name without dashes before it, or that of a value with a place.
fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_string)
}

/// Whether what is said for all commands is meant for this flag too. Most commands take the model to load as MODEL; an
/// option called --model is another thing there (a name in requests, a published model), and is set in its own section.
fn shares_its_name(arg: &Arg) -> bool {
    key(arg) != "model" || arg.is_positional()
}

/// Kubernetes tells each pod the address of a service called `ballast` as `BALLAST_PORT=tcp://...`.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    let link = value.to_str().is_some_and(|value| value.starts_with("tcp://") || value.starts_with("udp://"));
    name == "BALLAST_PORT" && link
}

/// `BALLAST_MAX_NUM_SEQS`
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('-', "_").to_ascii_uppercase())
}

fn named<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let name = name.replace('_', "-");
    settable(command).find(|arg| names(arg).any(|known| known == name))
}

/// Flags that were typed. Where a layer names a model, the one value of `run` may be the prompt for it.
fn explicit(leaf: &Command, words: &[OsString], names_a_model: bool) -> Vec<String> {
    let forgiving = leaf.clone().ignore_errors(true).no_binary_name(true);
    let Ok(matches) = forgiving.try_get_matches_from(words) else { return Vec::new() };
    let typed = |arg: &&Arg| {
        matches.try_contains_id(arg.get_id().as_str()).unwrap_or(false)
            && matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let mut typed: Vec<String> = leaf.get_arguments().filter(typed).map(key).collect();
    let takes_a_prompt = leaf.get_positionals().any(|arg| key(arg) == "prompt");
    if names_a_model && takes_a_prompt && !typed.iter().any(|flag| flag == "prompt") {
        let value = matches.try_get_one::<String>("model").ok().flatten();
        if value.is_some_and(|words| is_a_prompt(words)) {
            let model = typed.iter_mut().find(|flag| *flag == "model");
            *model.expect("it has a value") = "prompt".to_string();
        }
    }
    typed
}

/// What a file says for a command: keys at the top hold for every command that has such a flag, those in a section for
/// its command alone, where they win.
fn of_file(command: &Command, path: &[String], leaf: &Command, file: &Path) -> Result<Vec<Setting>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| Misuse(format!("cannot read the configuration {}", file.display())))?;
    let table: Table =
        text.parse().map_err(|error| Misuse(format!("{} is no TOML: {error}", file.display())))?;
    let mut settings: Vec<Setting> = Vec::new();
    section(command, command, &[], &table, file, &mut |place, name, value| {
        let of_this = place.is_empty() || place == path;
        let meant = |arg: &&Arg| of_this && (!place.is_empty() || shares_its_name(arg));
        let Some(arg) = named(leaf, name).filter(meant) else { return };
        let section = if place.is_empty() { String::new() } else { format!(" [{}]", place.join(".")) };
        let source = format!("{}{section}", file.display());
        settings.retain(|setting| setting.flag != key(arg));
        settings.push(Setting { flag: key(arg), value: value.clone(), source });
    })?;
    Ok(settings)
}

/// Hears of a key's section, the key and its value.
type Take<'t> = dyn FnMut(&[String], &str, &Value) + 't;

/// Goes through the section of command `of`, keys before sections.
fn section(
    root: &Command,
    of: &Command,
    place: &[String],
    table: &Table,
    file: &Path,
    take: &mut Take,
) -> Result<()> {
    let at_top = std::ptr::eq(root, of);
    for (name, value) in table.iter().filter(|(_, value)| !value.is_table()) {
        let known = if at_top { anywhere(root, name) } else { named(of, name).is_some() };
        if !known {
            let section = if at_top { String::new() } else { format!(" in [{}]", place.join(".")) };
            let flags = flags(of, at_top);
            let hint = match (flags.is_empty(), nearest(name, flags)) {
                (true, _) => ": this command takes none; those below it have sections of their own".into(),
                (false, nearest) => did_you_mean(nearest.map(|nearest| format!("`{nearest}`"))),
            };
            bail!(Misuse(format!("{}: `{name}`{section} is no flag{hint}", file.display())));
        }
        take(place, name, value);
    }
    for (name, inner) in table.iter().filter_map(|(name, value)| Some((name, value.as_table()?))) {
        let Some(next) = of.find_subcommand(name) else {
            let nearest = nearest(name, of.get_subcommands().map(|c| c.get_name().to_string()).collect());
            let hint = did_you_mean(nearest.map(|nearest| format!("[{nearest}]")));
            bail!(Misuse(format!("{}: [{name}] is no command{hint}", file.display())));
        };
        let place = [place, &[next.get_name().to_string()]].concat();
        section(root, next, &place, inner, file, take)?;
    }
    Ok(())
}

/// Whether any command has such a flag.
fn anywhere(command: &Command, name: &str) -> bool {
    named(command, name).is_some() || command.get_subcommands().any(|command| anywhere(command, name))
}

/// Keys of a command, or of it and all below it.
fn flags(command: &Command, below: bool) -> Vec<String> {
    let mut all: Vec<String> = settable(command).map(key).collect();
    if below {
        all.extend(command.get_subcommands().flat_map(|command| flags(command, true)));
    }
    all
}

/// The nearest, unless half of the name would have to be another.
fn nearest(name: &str, of: Vec<String>) -> Option<String> {
    let name = name.replace('_', "-");
    let distance = |other: &String| strsim::damerau_levenshtein(&name, other);
    of.into_iter().min_by_key(distance).filter(|nearest| 2 * distance(nearest) < name.chars().count())
}

fn did_you_mean(what: Option<String>) -> String {
    what.map_or(String::new(), |what| format!(": did you mean {what}?"))
}

/// A variable's value: a list may be written as TOML does, and several values of one flag apart.
fn of_variable(arg: &Arg, name: &str, value: OsString) -> Result<Value> {
    let text = value.into_string().map_err(|_| Misuse(format!("{name} is not UTF-8")))?;
    if !takes_value(arg) {
        return match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Value::Boolean(true)),
            "" | "0" | "false" | "no" | "off" => Ok(Value::Boolean(false)),
            _ => bail!(Misuse(format!("{name}={text}: expected true or false"))),
        };
    }
    if text.starts_with('[')
        && let Ok(table) = format!("list = {text}").parse::<Table>()
    {
        return Ok(table["list"].clone());
    }
    let at_once = arg.get_num_args().map_or(1, |range| range.min_values());
    if at_once > 1 {
        return Ok(Value::Array(text.split_whitespace().map(|word| word.into()).collect()));
    }
    Ok(Value::String(text))
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// A setting as it would be typed.
fn words(arg: &Arg, setting: &Setting) -> Result<Vec<OsString>> {
    let wrong = |expected: &str| {
        // Values are not repeated: keys are among them.
        let Setting { flag, source, .. } = setting;
        Misuse(format!("{source}: {flag}: expected {expected}"))
    };
    let flag = format!("--{}", key(arg));
    if !takes_value(arg) {
        let on = setting.value.as_bool().ok_or_else(|| wrong("true or false"))?;
        return Ok(on.then(|| flag.into()).into_iter().collect());
    }
    let list = match &setting.value {
        Value::Array(values) => values.iter().map(plain).collect(),
        value => plain(value).map(|text| vec![text]),
    };
    let mut values: Vec<String> = list.ok_or_else(|| wrong("text or numbers"))?;
    let several = matches!(arg.get_action(), ArgAction::Append);
    if arg.get_id() == "api_key" && !several {
        // A server takes several, of which a client shows one.
        values.truncate(1);
    }
    if values.len() != 1 && !several {
        return Err(wrong("one value").into());
    }
    let at_once = arg.get_num_args().map_or(1, |range| range.min_values());
    if at_once > 1 {
        if values.len() != at_once {
            return Err(wrong(&format!("{at_once} values")).into());
        }
        return Ok([flag].into_iter().chain(values).map(OsString::from).collect());
    }
    let word = |value: String| if arg.is_positional() { value } else { format!("{flag}={value}") };
    Ok(values.into_iter().map(|value| word(value).into()).collect())
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
