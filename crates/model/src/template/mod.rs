//! Chat templates: a conversation to the text that a model was trained on.
//!
//! Templates come with models and are foreign code, so they run in minijinja, which can reach nothing
//! but its arguments, with limits on steps, depth, and text read and written. What it makes of text counts as
//! steps before there is memory for it, so that some 300 MB are the most that it takes. Settings and functions are
//! those of transformers, so that the text is the same byte for byte: scripts/template_fixtures.py makes the fixtures.

mod error;
mod find;
mod json;
mod messages;
mod methods;
mod python;
mod rewrite;
mod space;
#[cfg(test)]
mod tests;
mod time;

pub use error::TemplateError;
pub use find::{TEMPLATES, Templates, Tools};
pub use time::WallClock;

use std::io;

use json::to_jinja;
pub(crate) use messages::ROLES;
use messages::{Arguments, ContentForm, Prints, normalise, probe, probe_of_calls, probe_of_system};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Jinja;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};

use crate::error::shorten;
use crate::thoughts::Markers;
use crate::tools::ToolFormat;

/// Longest template, in bytes; published ones have some thousands.
pub const MAX_SOURCE_BYTES: usize = 1 << 18;
/// Brackets and commas in its tags at the most; published ones have some hundreds.
const NESTS: usize = 10_000;
/// Stack of a rendering. The engine prints, compares and drops values by recursion, and they may be nested as deep as there are brackets,
/// for each of some twenty macros that call each other: 200,000 at the most. Pages that nobody touches take no memory.
const STACK_BYTES: usize = 256 << 20;
/// Longest text that a template may write, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Most steps of one rendering: a few hundred instructions for each of ten thousand messages; 64 bytes of a new value are one too.
const FUEL: u64 = 5_000_000;
/// Deepest nesting of macros and blocks.
const RECURSION: usize = 128;
/// What a template makes of calls with arguments in one form.
struct Tried {
    /// Whether it leaves out a content that is null.
    null: bool,
    /// Whether it prints the call.
    shown: bool,
}

/// What probes look for in what a template prints.
const MARK: &str = "\u{2e8}probe\u{2e9}";
/// Begins the message of an error that the template raised itself.
const RAISED: &str = "raise_exception: ";

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    prints: Prints,
    tools: Option<ToolFormat>,
    thoughts: Option<Markers>,
    /// Whether it prints what the system says behind a question.
    later_system: bool,
}

/// Texts of the special tokens, for templates that print them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTexts {
    /// Begin of sequence.
    pub bos: Option<String>,
    /// End of sequence.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
    /// Unknown.
    pub unk: Option<String>,
}

/// How the rendered text ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// With the words that open an answer.
    #[default]
    GenerationPrompt,
    /// After the last message.
    Plain,
    /// Inside the last message, so that the model goes on with it.
    ContinueFinal,
}

/// What a template is given.
#[derive(Clone, Debug, Default)]
pub struct Conversation<'a> {
    /// Messages in OpenAI's shape: `role`, `content` (string, list of text parts or null), ...
    pub messages: &'a [Value],
    /// Tools in OpenAI's shape.
    pub tools: Option<&'a Value>,
    /// Documents, for templates that cite.
    pub documents: Option<&'a Value>,
    /// Further variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub extra: Option<&'a Map<String, Value>>,
    /// How the text ends.
    pub ending: Ending,
    /// Special tokens.
    pub special: SpecialTexts,
    /// What `strftime_now` says.
    pub now: WallClock,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooLong { found: source.len(), limit: MAX_SOURCE_BYTES });
        }
        let mut environment = environment()?;
        let (tools, thoughts) = (ToolFormat::of_template(source), Markers::of_template(source));
        let (compiled, nests) = rewrite::rewritten(&line_feeds(source));
        if nests > NESTS {
            return Err(TemplateError::Limit(format!("{NESTS} brackets and commas in its tags")));
        }
        guarded(|| environment.add_template_owned("chat", compiled))?;
        let source = source.to_owned();
        let developers = ["'developer'", "\"developer\""].iter().any(|name| source.contains(name));
        let prints = Prints {
            form: ContentForm::Either,
            results: ContentForm::Either,
            arguments: Arguments::Object,
            null: true,
            developers,
        };
        let mut template = ChatTemplate { environment, source, prints, tools, thoughts, later_system: false };
        let (arguments, null) = template.detect_calls();
        template.prints = Prints { arguments, null, ..template.prints };
        let form = template.detect_form();
        // Templates that print both of others' may print a tool's list as Python would.
        let results = if form == ContentForm::Either { template.detect_results(arguments) } else { form };
        template.prints = Prints { form, results, ..template.prints };
        let messages = probe_of_system(MARK);
        let text = template.render(&Conversation { messages: &messages, ..probing() });
        template.later_system = text.is_ok_and(|text| text.contains(MARK));
        Ok(template)
    }

    /// Whether the system may say something in the middle of a conversation: others leave that out, or refuse it.
    pub fn takes_system_later(&self) -> bool {
        self.later_system
    }

    /// As it was published.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How the model that it is for writes tool calls, if it says.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.tools
    }

    /// Whether it has a place for the tools of a conversation.
    pub fn shows_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// The same template for a model that writes tool calls so.
    pub fn with_tool_format(self, format: ToolFormat) -> Self {
        ChatTemplate { tools: Some(self.tools.map_or(format, |own| own.or_named(format))), ..self }
    }

    /// What stands around the thoughts of the model that it is for, if it thinks before it answers.
    pub fn thoughts(&self) -> Option<Markers> {
        self.thoughts
    }

    /// The same template for a model that marks thoughts so; without markers they stay in its text.
    pub fn with_thoughts(self, thoughts: Option<Markers>) -> Self {
        ChatTemplate { thoughts, ..self }
    }

    /// Renders a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let mut messages = normalise(conversation.messages, self.prints)?;
        if conversation.ending != Ending::ContinueFinal {
            return self.render_messages(&messages, conversation);
        }
        let continued = mark_final(&mut messages)?;
        cut_at_mark(self.render_messages(&messages, conversation)?, &continued)
            .ok_or_else(|| of_final(&messages, "the template changes the text to continue"))
    }

    fn render_messages(&self, messages: &[Value], c: &Conversation) -> Result<String, TemplateError> {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        std::thread::scope(|scope| {
            let rendering = thread.spawn_scoped(scope, || self.render_here(messages, c));
            let rendering =
                rendering.map_err(|e| TemplateError::Limit(format!("a stack of 256 MiB ({e})")))?;
            rendering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn render_here(&self, messages: &[Value], c: &Conversation) -> Result<String, TemplateError> {
        let now = c.now;
        let strftime = Jinja::from_function(move |format: &str| now.strftime(format));
        let variables = variables(messages, c).chain([("strftime_now".to_owned(), strftime)]);
        let context = Jinja::from_pairs(variables);
        let mut out = Capped(Vec::new());
        guarded(|| {
            let template = self.environment.get_template("chat")?;
            template.render_captured_to(context, &mut out).map(drop)
        })?;
        String::from_utf8(out.0).map_err(|e| TemplateError::Jinja(e.to_string()))
    }

    /// Finds out which forms of content the template prints, by trying.
    fn detect_form(&self) -> ContentForm {
        let prints = |form| self.prints_parts(&probe(MARK, form));
        match (prints(ContentForm::Text), prints(ContentForm::Parts)) {
            (true, true) => ContentForm::Either,
            (false, true) => ContentForm::Parts,
            _ => ContentForm::Text,
        }
    }

    /// The same of what tools answer.
    fn detect_results(&self, arguments: Arguments) -> ContentForm {
        let parts = json!([{"type": "text", "text": MARK}]);
        let messages = probe_of_calls("clock", &json!(""), arguments, Some(&parts));
        if self.prints_parts(&messages) { ContentForm::Either } else { ContentForm::Text }
    }

    /// Whether it prints what says [`MARK`], and not as Python or JSON prints a list.
    fn prints_parts(&self, messages: &[Value]) -> bool {
        let text = self.render_messages(messages, &probing());
        text.is_ok_and(|t| t.contains(MARK) && !t.contains("'type'") && !t.contains("\"type\""))
    }

    /// Which form of arguments it prints calls with, objects if it prints none, and whether it takes null as their content.
    fn detect_calls(&self) -> (Arguments, bool) {
        let object = self.try_calls(Arguments::Object);
        let text = (!object.shown).then(|| self.try_calls(Arguments::Text)).filter(|text| text.shown);
        text.map_or((Arguments::Object, object.null), |text| (Arguments::Text, text.null))
    }

    /// Plain templates add a null content to a text, which fails, or print it as `None`: some of the last message alone, some of
    /// all others. Clients send the null that they were answered.
    fn try_calls(&self, arguments: Arguments) -> Tried {
        let (last, takes_null) = self.try_null(arguments, true);
        let takes_null = takes_null && self.try_null(arguments, false).1;
        Tried { null: takes_null, shown: last.is_some_and(|text| text.contains(MARK)) }
    }

    /// What it makes of a call of a function that is called [`MARK`], and whether with a null as well as with an empty text. What it
    /// refuses either way is its own affair.
    fn try_null(&self, arguments: Arguments, last: bool) -> (Option<String>, bool) {
        let noon = json!("12:00");
        let result = if last { None } else { Some(&noon) };
        let said = |content| {
            let messages = probe_of_calls(MARK, &content, arguments, result);
            self.render_messages(&messages, &probing()).ok()
        };
        let nones = |text: &String| text.matches("None").count();
        let (null, empty) = (said(Value::Null), said(Value::from("")));
        let takes_null = match (&null, &empty) {
            (Some(null), Some(empty)) => nones(null) <= nones(empty),
            (null, _) => null.is_some() || empty.is_none(),
        };
        (if takes_null { null } else { empty }, takes_null)
    }
}

/// What is asked of a template to see what it prints: with all special tokens, as many add them to other texts.
fn probing() -> Conversation<'static> {
    let [bos, eos, pad, unk] = ["<s>", "</s>", "<pad>", "<unk>"].map(|text| Some(text.to_owned()));
    Conversation { special: SpecialTexts { bos, eos, pad, unk }, ..Conversation::default() }
}

/// As Jinja2 reads a template: every line ends with a line feed.
fn line_feeds(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// What transformers passes, and what the request adds (which does not win over it).
fn variables(messages: &[Value], c: &Conversation) -> impl Iterator<Item = (String, Jinja)> {
    let extra = c.extra.into_iter().flatten().map(|(k, v)| (k.clone(), to_jinja(v)));
    let generation = c.ending == Ending::GenerationPrompt;
    let fixed = [
        ("messages", Some(messages.iter().map(to_jinja).collect::<Vec<_>>().into())),
        ("tools", Some(c.tools.map_or(Jinja::from(()), to_jinja))),
        ("documents", Some(c.documents.map_or(Jinja::from(()), to_jinja))),
        ("add_generation_prompt", Some(Jinja::from(generation))),
        ("bos_token", c.special.bos.as_deref().map(Jinja::from)),
        ("eos_token", c.special.eos.as_deref().map(Jinja::from)),
        ("pad_token", c.special.pad.as_deref().map(Jinja::from)),
        ("unk_token", c.special.unk.as_deref().map(Jinja::from)),
    ];
    let fixed = fixed.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?)));
    extra.collect::<Vec<_>>().into_iter().chain(fixed)
}

/// transformers' settings.
fn environment() -> Result<Environment<'static>, TemplateError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(classify)?);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_formatter(python::format);
    env.set_unknown_method_callback(methods::method);
    env.add_test("iterable", python::iterable);
    env.add_test("sequence", python::sequence);
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", python::string);
    env.add_filter("trim", methods::trim);
    env.add_filter("int", python::int);
    env.add_filter("float", python::float);
    // They print without end, and transformers has none of them.
    ["pprint", "debug"].iter().for_each(|name| env.remove_filter(name));
    env.remove_global("debug");
    env.add_function("namespace", space::namespace);
    env.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    Ok(env)
}

/// Runs the engine over foreign code: its errors are ours, and so would be its panics.
fn guarded<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<T, TemplateError> {
    match crate::guard::guarded(run) {
        Ok(result) => result.map_err(classify),
        Err(words) => {
            Err(TemplateError::Jinja(format!("the template engine gave up on it: {}", shorten(&words))))
        }
    }
}

fn classify(error: Error) -> TemplateError {
    let detail = error.detail().unwrap_or_default().to_owned();
    if let Some(message) = detail.strip_prefix(RAISED) {
        return TemplateError::Refused(message.to_owned());
    }
    let limit = match error.kind() {
        ErrorKind::OutOfFuel => Some(format!("{FUEL} steps (64 bytes of text that it makes are one)")),
        ErrorKind::WriteFailure => Some(format!("{MAX_OUTPUT_BYTES} bytes of output")),
        _ if detail.contains("recursion limit") => Some(detail.clone()),
        _ => None,
    };
    match limit {
        Some(limit) => TemplateError::Limit(limit),
        None => TemplateError::Jinja(error.to_string()),
    }
}

/// Stands behind the text to continue while it is rendered: the text alone may be anywhere, and an empty one is. The blank at its end
/// tells whether the template keeps blanks there. It is transformers' own, which some templates know.
const GOES_ON: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the last text, as transformers does; the text.
fn mark_final(messages: &mut [Value]) -> Result<String, TemplateError> {
    let content = messages.last_mut().map(|message| &mut message["content"]);
    let text = match content {
        Some(Value::Array(parts)) => {
            parts.iter_mut().rev().find_map(|part| part.get_mut("text").filter(|text| text.is_string()))
        }
        content => content.filter(|content| content.is_string()),
    };
    let Some(Value::String(text)) = text else {
        return Err(of_final(messages, "there is no text to continue"));
    };
    let continued = text.clone();
    text.push_str(GOES_ON);
    Ok(continued)
}

/// Cuts a text where the mark is; none if that is not there, or what it stands behind is not.
fn cut_at_mark(mut text: String, continued: &str) -> Option<String> {
    let at = text.rfind(GOES_ON.trim_end()).filter(|_| text.contains(continued.trim()))?;
    let keeps_blanks = text[at..].starts_with(GOES_ON);
    text.truncate(at);
    if !keeps_blanks {
        text.truncate(text.trim_end().len());
    }
    Some(text)
}

fn of_final(messages: &[Value], why: &str) -> TemplateError {
    TemplateError::Message { index: messages.len().saturating_sub(1), why: why.to_owned() }
}

/// Output with an end.
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("too much output"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
