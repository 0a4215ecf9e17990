//! What the engine cannot do, in words that it can: texts that go on behind a backslash and the end of a line are put together;
//! `{% generation %}` blocks, which mark the assistant's words for training and
//! are no-ops for us, but whose white-space control counts, become blocks that do nothing; assignments to a namespace
//! become calls of a method of ours ([`super::space`]).

use std::borrow::Cow;

use super::space::HOLD;

/// Holds the text of a block until it is assigned.
const BLOCK: &str = "__block";

/// The template with other words in those tags; comments, strings and raw text stay as they are. And how many brackets are opened in
/// its tags, or commas stand there: values are nested by these.
pub(super) fn rewritten(source: &str) -> (String, usize) {
    let mut out = String::with_capacity(source.len());
    let (mut rest, mut blocks, mut nests) = (source, Vec::new(), 0);
    while let Some(at) = next_tag(rest) {
        out.push_str(&rest[..at]);
        let tag = &rest[at..at + tag_len(&rest[at..])];
        if !tag.starts_with("{#") {
            nests += tag[2..].matches(['(', '[', '{', ',']).count();
        }
        let joined = joined_lines(tag);
        match Tag::of(&joined).and_then(|tag| tag.rewritten(&mut blocks)) {
            Some(words) => out.push_str(&words),
            None if is_raw(&joined) => out.push_str(&with_first_line_end(&joined)),
            None => out.push_str(&joined),
        }
        rest = &rest[at + tag.len()..];
    }
    out.push_str(rest);
    (out, nests)
}

fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{%" | b"{{" | b"{#"))
}

/// Length of the tag at the start of `text`, to its end marker or to the end of the text; of a raw block, to its end.
fn tag_len(text: &str) -> usize {
    let close = match &text[..2] {
        "{%" => "%}",
        "{{" => "}}",
        _ => return text[2..].find("#}").map_or(text.len(), |at| at + 4),
    };
    let (mut quote, mut escaped, mut open) = (None, false, 0);
    for (at, c) in text.char_indices().skip(2) {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => (),
            (None, '\'' | '"') => quote = Some(c),
            (None, _) if open == 0 && text[at..].starts_with(close) => return whole(text, at + 2),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open -= 1,
            (None, _) => (),
        }
    }
    text.len()
}

/// A tag without what Python leaves out of texts: a backslash at the end of a line, and the end.
fn joined_lines(tag: &str) -> Cow<'_, str> {
    if !tag.contains("\\\n") || tag.starts_with("{#") || is_raw(tag) {
        return tag.into();
    }
    let (mut quote, mut chars, mut out) = (None, tag.chars(), String::new());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => match chars.next() {
                Some('\n') | None => (),
                Some(escaped) => out.extend([c, escaped]),
            },
            (q, '\'' | '"') if q.is_none_or(|q| q == c) => {
                quote = q.is_none().then_some(c);
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out.into()
}

/// A raw block whose first line end is there twice: Jinja2 cuts none off there, and the engine the first.
fn with_first_line_end(block: &str) -> Cow<'_, str> {
    match block.find("%}") {
        Some(at) if !block[..at].ends_with(['-', '+']) && block[at + 2..].starts_with('\n') => {
            format!("{}\n{}", &block[..at + 2], &block[at + 2..]).into()
        }
        _ => block.into(),
    }
}

/// Whether a raw block begins so.
fn is_raw(tag: &str) -> bool {
    let inner = tag.strip_prefix("{%").map(|text| text.trim_start_matches(['-', '+']).trim_start());
    inner.and_then(|inner| inner.strip_prefix("raw")).is_some_and(|rest| !rest.starts_with(is_word))
}

/// `end`, or the end of the raw block that begins with the tag which ends there.
fn whole(text: &str, end: usize) -> usize {
    if Tag::of(&text[..end]).is_none_or(|tag| tag.inner != "raw") {
        return end;
    }
    let mut from = end;
    while let Some(at) = text[from..].find("{%").map(|at| from + at + 2) {
        let inner = text[at..].trim_start_matches(['-', '+']).trim_start();
        if let Some(rest) = inner.strip_prefix("endraw") {
            return rest.find("%}").map_or(text.len(), |len| text.len() - rest.len() + len + 2);
        }
        from = at;
    }
    text.len()
}

/// A block tag in its parts.
struct Tag<'a> {
    /// `-`, `+` or nothing.
    before: &'a str,
    /// What stands between, without white space around it.
    inner: &'a str,
    after: &'a str,
}

/// What a block of text is assigned to, if it is an attribute.
type Target = Option<(String, String)>;

impl<'a> Tag<'a> {
    fn of(tag: &'a str) -> Option<Tag<'a>> {
        let text = tag.strip_prefix("{%")?.strip_suffix("%}")?;
        let inner = text.strip_prefix(['-', '+']).unwrap_or(text);
        let before = &text[..text.len() - inner.len()];
        let cut = inner.strip_suffix(['-', '+']).unwrap_or(inner);
        Some(Tag { before, inner: cut.trim(), after: &inner[cut.len()..] })
    }

    /// The tag with other words, if it needs them. `blocks`: what the blocks of text are for that are open.
    fn rewritten(&self, blocks: &mut Vec<Target>) -> Option<String> {
        match self.inner {
            // Whose names are its own, too.
            "generation" => return Some(self.with("with")),
            "endgeneration" => return Some(self.with("endwith")),
            "endset" => {
                let (object, name) = blocks.pop()??;
                let Tag { before, after, .. } = self;
                let call = hold(&object, &name, BLOCK);
                return Some(format!("{{%{before} endset %}}{{% {call} {after}%}}"));
            }
            _ => (),
        }
        let words = self.inner.strip_prefix("set").filter(|words| !words.starts_with(is_word))?;
        let at = words.find(['=', '|']).unwrap_or(words.len());
        let target = attribute(words[..at].trim());
        if let Some(value) = words[at..].strip_prefix('=') {
            // Without a value the engine says what is wrong.
            let (object, name) = target.filter(|_| !value.trim().is_empty())?;
            return Some(self.with(&hold(&object, &name, &format!("({value})"))));
        }
        let filters = &words[at..];
        let words = target.is_some().then(|| self.with(&format!("set {BLOCK} {filters}")));
        blocks.push(target);
        words
    }

    fn with(&self, inner: &str) -> String {
        let Tag { before, after, .. } = self;
        format!("{{%{before} {inner} {after}%}}")
    }
}

fn hold(object: &str, name: &str, value: &str) -> String {
    format!("do {object}.{HOLD}('{name}', {value})")
}

/// `a.b.c` in two: the object, and its attribute.
fn attribute(target: &str) -> Target {
    let (object, name) = target.rsplit_once('.')?;
    let (object, name) = (object.trim(), name.trim());
    let word = |text: &str| !text.is_empty() && text.chars().all(is_word);
    (object.split('.').all(|part| word(part.trim())) && word(name)).then(|| (object.into(), name.into()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    fn rewritten(source: &str) -> String {
        super::rewritten(source).0
    }

    #[test]
    fn tags_keep_their_white_space_control() {
        let source = "{%- generation -%}a{% endgeneration %}{# {% generation %} #}{{ '{% generation %}' }}";
        let expected = "{%- with -%}a{% endwith %}{# {% generation %} #}{{ '{% generation %}' }}";
        assert_eq!(rewritten(source), expected);
        for same in [
            "{% set add_generation_prompt = 1 %}{",
            "generation {% generation",
            "generation {{ 'é\\'}}' }} {%",
            "{% set x %}a.b = 1{% endset %}{% settle.x = 1 %}",
            "{% raw -%}{{ ' {% generation %}{% set a.b = 1 %}{%- endraw %}",
            "{#} {{ ' #}{% set a = 1 %}{% set a.b = %}",
            "{{ {'a': {'b': '}}'}}}}{{ \"{% set a.b = 1 %}\" }}",
        ] {
            assert_eq!(rewritten(same), same);
        }
    }

    #[test]
    fn texts_go_on_behind_a_backslash_and_the_end_of_a_line() {
        assert_eq!(rewritten("{{ 'a\\\nb' ~ \"'c\\\n\\\\\" }}"), "{{ 'ab' ~ \"'c\\\\\" }}");
        assert_eq!(rewritten("{% set a.b = 'c\\\nd' %}"), "{% do a.__hold('b', ( 'cd')) %}");
        for same in
            ["a\\\nb{{ 1 }}", "{# 'a\\\nb' #}", "{% raw %}{{ 'a\\\nb' }}{% endraw %}", "{{ 'a\\\\\nb' }}"]
        {
            assert_eq!(rewritten(same), same);
        }
    }

    #[test]
    fn attributes_are_set_by_a_call() {
        assert_eq!(rewritten("{%- set ns.x = 1, {'a': 2}-%}"), "{%- do ns.__hold('x', ( 1, {'a': 2})) -%}");
        assert_eq!(rewritten("{% set a.b . c=d == '%}' %}"), "{% do a.b.__hold('c', (d == '%}')) %}");
        assert_eq!(
            rewritten("{% set ns.x | f(a=1) -%}{% set y %}b{% endset %}{%+ endset -%}"),
            "{% set __block | f(a=1) -%}{% set y %}b{% endset %}{%+ endset %}{% do ns.__hold('x', __block) -%}"
        );
    }
}
