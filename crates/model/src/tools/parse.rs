//! Reads calls out of a text as it comes: each character is looked at once, and only what may begin a marker or a
//! call is held back.

use super::body::{Body, Step, begins_name};
use super::tagged::{FUNCTION, Tagged};
use super::value::{At, Value};
use super::{ARGS, Beside, CALL_ID, Calls, NAME_BYTES, ToolFormat, is_name_char};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text to show.
    Text(String),
    /// A call begins.
    Call {
        /// Which, from 0.
        index: usize,
        /// Of the tool.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Of which call.
        index: usize,
        /// A piece of JSON.
        text: String,
    },
}

/// Where the reading is.
#[derive(Clone, Debug)]
enum Mode {
    /// In text, maybe in the beginning of a marker.
    Text,
    /// Where a call may begin.
    Opening,
    Call(Body),
    /// In the name of a call without an object around it (Mistral).
    Bare(String),
    /// In the arguments of such a call.
    BareArguments(Value),
    /// After a call.
    Between,
}

/// Reads one text.
#[derive(Clone, Debug)]
pub struct CallParser {
    calls: Calls,
    mode: Mode,
    /// What is text again if no call comes of it.
    held: String,
    /// White space at the end of the text, which is dropped beside calls.
    space: String,
    shown: Shown,
    /// What stood between the text before the first call and that call: it stands before the text behind, too.
    gap: String,
    /// Inside a list of calls.
    list: bool,
    n_calls: usize,
    /// The last of them has begun and not ended.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Text,
    Call,
}

const PYTHON: &str = "<|python_tag|>";

impl CallParser {
    pub(super) fn new(calls: Calls) -> Self {
        let mode = if calls.format == ToolFormat::Llama3 { Mode::Opening } else { Mode::Text };
        CallParser {
            calls,
            mode,
            held: String::new(),
            space: String::new(),
            shown: Shown::Nothing,
            gap: String::new(),
            list: false,
            n_calls: 0,
            is_open: false,
        }
    }

    /// Calls so far.
    pub fn n_calls(&self) -> usize {
        self.n_calls.min(self.calls.most)
    }

    /// Whether a call has begun and not ended: a text that ends here has cut it.
    pub fn is_within_call(&self) -> bool {
        self.is_open
    }

    /// Reads on.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let mut out = Vec::new();
        text.chars().for_each(|c| self.step(c, &mut out));
        out
    }

    /// The text has ended: what was held back is text after all, unless it ended where no text can be.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut out = Vec::new();
        let mode = std::mem::replace(&mut self.mode, Mode::Text);
        if self.calls.beside == Beside::Nothing {
            self.held.clear();
            self.space.clear();
            return out;
        }
        match mode {
            // Within what closes a call, or before the next of a list.
            Mode::Between => self.held.clear(),
            Mode::Opening if self.list && self.n_calls > 0 => self.held.clear(),
            Mode::Call(call) => self.held.push_str(&call.into_raw()),
            Mode::Bare(name) => self.held.push_str(&name),
            _ => (),
        }
        self.give_back(&mut out);
        if self.shown != Shown::Call {
            let space = std::mem::take(&mut self.space);
            add_text(&mut out, &space);
        }
        out
    }

    fn step(&mut self, c: char, out: &mut Vec<Part>) {
        match &mut self.mode {
            Mode::Text => self.text(c, out),
            Mode::Opening => self.opening(c, out),
            Mode::Call(_) => self.call(c, out),
            Mode::Bare(_) => self.bare(c, out),
            Mode::BareArguments(_) => self.bare_argument(c, out),
            Mode::Between => self.between(c, out),
        }
    }

    /// The first character of a marker occurs in it once, so that a beginning that fails holds no other one.
    fn text(&mut self, c: char, out: &mut Vec<Part>) {
        if !self.may_be_marker(c) {
            self.give_back(out);
        }
        if !self.may_be_marker(c) {
            return self.show(c, out);
        }
        self.held.push(c);
        let format = self.calls.format;
        if format.frame().contains(&&*self.held) {
            self.held.clear();
        } else if format.marks().opens.contains(&&*self.held) {
            let is_call = format.is_tagged() && self.held == FUNCTION;
            self.mode = if is_call { self.within_tag() } else { Mode::Opening };
        }
    }

    /// Whether what is held and another character begin something that is not shown.
    fn may_be_marker(&self, c: char) -> bool {
        let (marks, frame) = (self.calls.format.marks(), self.calls.format.frame());
        let rest = |marker: &&str| marker.strip_prefix(&self.held).is_some_and(|rest| rest.starts_with(c));
        marks.opens.iter().any(rest) || frame.iter().any(rest)
    }

    /// In a call without the marker before it, of which what is held begins the first tag.
    fn within_tag(&mut self) -> Mode {
        self.held.clear();
        Mode::Call(Body::Tagged(Tagged::named()))
    }

    fn opening(&mut self, c: char, out: &mut Vec<Part>) {
        match (self.calls.format, c) {
            (_, c) if c.is_whitespace() => self.held.push(c),
            (format, '[') if format.is_list() && !self.list => {
                self.list = true;
                self.held.push(c);
            }
            (format, c) if format.is_mistral() && !self.list && c != '{' && c != '[' => {
                self.mode = Mode::Bare(c.to_string());
            }
            // Of none, or with a comma behind the last.
            (format, ']') if format.is_list() && self.list => {
                self.held.clear();
                self.list_ended();
            }
            (ToolFormat::Llama3, c) if self.goes_on_with_tag(c) => self.held.push(c),
            (_, c) => match Body::begun_by(c, &self.calls) {
                Some(body) => {
                    self.mode = Mode::Call(body);
                    self.call(c, out);
                }
                None => self.not_a_call(c, out),
            },
        }
    }

    /// Whether what is held, but for what may stand before it, and a character begin the tag.
    fn goes_on_with_tag(&self, c: char) -> bool {
        let tag = self.held.trim_start_matches(|c: char| c.is_whitespace() || ",;".contains(c));
        PYTHON.strip_prefix(tag).is_some_and(|rest| rest.starts_with(c))
    }

    /// A list of calls is over.
    fn list_ended(&mut self) {
        self.list = false;
        let closes = self.calls.format.marks().closes.unwrap_or_default();
        self.mode = if closes.is_empty() { Mode::Text } else { Mode::Between };
    }

    fn call(&mut self, c: char, out: &mut Vec<Part>) {
        let Mode::Call(call) = &mut self.mode else { return };
        match call.push(c, &self.calls) {
            Step::Going => (),
            Step::Argument(c) => self.argument(c.encode_utf8(&mut [0; 4]), out),
            Step::Arguments(more) => self.argument(&more, out),
            Step::Begun(name, arguments) => self.begin(name, &arguments, out),
            Step::Done => self.ended(Mode::Between),
            Step::Last(arguments) => {
                self.argument(&arguments, out);
                self.ended(Mode::Between);
            }
            Step::Early(instead) => {
                self.argument("}", out);
                self.ended(Mode::Between);
                instead.chars().for_each(|c| self.step(c, out));
            }
            Step::Whole(name, arguments) => {
                self.begin(name, &arguments, out);
                self.ended(Mode::Between);
            }
            Step::Broken => self.broken(c, out),
        }
    }

    /// A call that goes wrong after it began ends there, with the arguments that it has. What it goes wrong with may begin another.
    fn broken(&mut self, c: char, out: &mut Vec<Part>) {
        let Mode::Call(mut call) = std::mem::replace(&mut self.mode, Mode::Text) else { return };
        let Some((closes, behind)) = call.mended() else { return self.text_again(&call.into_raw(), c, out) };
        self.argument(closes, out);
        self.ended(Mode::Between);
        if behind.is_empty() {
            return self.step(c, out);
        }
        self.mode = Mode::Text;
        self.text_again(&behind, c, out);
    }

    /// What was read is text, up to what may begin a call; with nothing read, the character that came last.
    fn text_again(&mut self, raw: &str, c: char, out: &mut Vec<Part>) {
        let opens = self.calls.format.marks().opens;
        let begins = |at: &usize| opens.iter().any(|marker| marker.starts_with(&raw[*at..]));
        let first = opens.first().and_then(|marker| raw.rfind(&marker[..1])).filter(begins);
        let (text, next) = raw.split_at(first.unwrap_or(raw.len()));
        self.held.push_str(text);
        self.list = false;
        self.give_back(out);
        let is_lost = raw.is_empty();
        next.chars().chain(is_lost.then_some(c)).for_each(|c| self.text(c, out));
    }

    /// `name{..}`, `name[ARGS]{..}` or `name[CALL_ID]..[ARGS]{..}`
    fn bare(&mut self, c: char, out: &mut Vec<Part>) {
        let Mode::Bare(name) = &mut self.mode else { return };
        if c != '{' {
            name.push(c);
            let rest = name.trim_start_matches(is_name_char);
            let is_any =
                |known: &str| known.starts_with(&**name) || name.strip_prefix(known).is_some_and(is_between);
            let sound = rest.len() < name.len() && is_between(rest)
                || self.calls.tools.iter().any(|tool| is_any(&tool.name));
            if !sound || name.len() > NAME_BYTES {
                let name = std::mem::take(name);
                self.mode = Mode::Text;
                self.text_again(&name, c, out);
            }
            return;
        }
        let name = name.split('[').next().unwrap_or_default().trim().to_owned();
        self.mode = Mode::BareArguments(Value::default());
        self.begin(name, "", out);
        self.bare_argument(c, out);
    }

    fn bare_argument(&mut self, c: char, out: &mut Vec<Part>) {
        let Mode::BareArguments(value) = &mut self.mode else { return };
        let at = value.push(c);
        self.argument(c.encode_utf8(&mut [0; 4]), out);
        if at == At::Last {
            self.ended(Mode::Text);
        }
    }

    fn ended(&mut self, next: Mode) {
        self.mode = next;
        self.is_open = false;
    }

    fn between(&mut self, c: char, out: &mut Vec<Part>) {
        let format = self.calls.format;
        let closes = format.marks().closes.unwrap_or_default();
        match c {
            c if closes.strip_prefix(&*self.held).is_some_and(|rest| rest.starts_with(c)) => {
                self.held.push(c);
                if self.held == closes {
                    self.held.clear();
                    self.list = false;
                    self.mode = Mode::Text;
                }
            }
            c if c.is_whitespace() && self.held.is_empty() => (),
            ';' | ',' if format == ToolFormat::Llama3 => {
                self.held.push(c);
                self.mode = Mode::Opening;
            }
            '{' if format == ToolFormat::Llama3 => self.opening(c, out),
            ',' if self.list && self.held.is_empty() => {
                self.held.push(c);
                self.mode = Mode::Opening;
            }
            ']' if self.list && self.held.is_empty() => self.list_ended(),
            c if format == ToolFormat::Olmo && self.held.is_empty() && begins_name(c, &self.calls) => {
                self.opening(c, out)
            }
            _ => {
                // What was held may begin the next marker: another call after one that was not closed.
                self.mode = Mode::Text;
                self.list = false;
                let held = std::mem::take(&mut self.held);
                held.chars().chain([c]).for_each(|c| self.text(c, out));
            }
        }
    }

    fn not_a_call(&mut self, c: char, out: &mut Vec<Part>) {
        self.mode = Mode::Text;
        self.list = false;
        self.give_back(out);
        self.text(c, out);
    }

    fn begin(&mut self, name: String, arguments: &str, out: &mut Vec<Part>) {
        self.held.clear();
        let space = std::mem::take(&mut self.space);
        if self.shown == Shown::Text {
            self.gap = if space.is_empty() { "\n".to_owned() } else { space };
        }
        self.shown = Shown::Call;
        self.n_calls += 1;
        self.is_open = true;
        if self.n_calls <= self.calls.most {
            out.push(Part::Call { index: self.n_calls - 1, name });
        }
        self.argument(arguments, out);
    }

    fn argument(&mut self, more: &str, out: &mut Vec<Part>) {
        if more.is_empty() || self.n_calls > self.calls.most {
            return;
        }
        match out.last_mut() {
            Some(Part::Arguments { text, .. }) => text.push_str(more),
            _ => out.push(Part::Arguments { index: self.n_calls - 1, text: more.to_owned() }),
        }
    }

    fn give_back(&mut self, out: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.show(c, out));
    }

    fn show(&mut self, c: char, out: &mut Vec<Part>) {
        if c.is_whitespace() {
            return self.space.push(c);
        }
        let space = std::mem::take(&mut self.space);
        let space = if self.shown == Shown::Call { std::mem::take(&mut self.gap) } else { space };
        add_text(out, &space);
        self.shown = Shown::Text;
        add_text(out, c.encode_utf8(&mut [0; 4]));
    }
}

/// Whether that may stand behind a name, or what does begins so: the id of the call, which has a new one here, and what opens its
/// arguments.
fn is_between(rest: &str) -> bool {
    let opens = |rest: &str| rest.trim().is_empty() || ARGS.starts_with(rest) || rest.trim_end() == ARGS;
    let id = rest.strip_prefix(CALL_ID).map(|id| id.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
    opens(rest) || CALL_ID.starts_with(rest) || id.is_some_and(opens)
}

fn add_text(out: &mut Vec<Part>, more: &str) {
    match out.last_mut() {
        _ if more.is_empty() => (),
        Some(Part::Text(text)) => text.push_str(more),
        _ => out.push(Part::Text(more.to_owned())),
    }
}
