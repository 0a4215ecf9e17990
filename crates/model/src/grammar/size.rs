//! How much a grammar comes to, before anything is made of it. What follows from a few lines may be endless: a definition
//! that names another twice, which names a third twice; and the compiler follows definitions down, on a stack that ends.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::{GrammarError, Kind, Source};

/// Most definitions of a grammar.
const DEFINITIONS: usize = 2000;
/// Most definitions of which each names the next.
const CHAIN: usize = 200;
/// Most names that a terminal comes to, when each is replaced by what it stands for.
const EXPANDED: u64 = 50_000;
/// Most intersections and complements: each multiplies what a lexer has to tell apart.
const PRODUCTS: usize = 64;
/// Most levels of a schema, those of everything that it refers to added up.
const LEVELS: usize = 2000;

/// Whether compiling it will end, soon and without running out of stack.
///
/// # Errors
/// [`GrammarError::Invalid`], saying what is too much.
pub(super) fn fits(source: &Source) -> Result<(), GrammarError> {
    match source.kind {
        Kind::Schema => schema(&source.text),
        Kind::Lark => lark(&source.text),
        Kind::Regex => Ok(()),
    }
}

fn too_much(what: String) -> GrammarError {
    GrammarError::Invalid(what)
}

/// What a schema refers to is followed down once, wherever it is named: all of it may be one path.
fn schema(text: &str) -> Result<(), GrammarError> {
    let Ok(root) = serde_json::from_str::<Value>(text) else { return Ok(()) };
    let (mut targets, mut levels) = (BTreeSet::new(), measure(&root, &mut BTreeSet::new()));
    measure(&root, &mut targets);
    for target in &targets {
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        levels += found.map_or(1, |value| measure(value, &mut BTreeSet::new()));
        if levels > LEVELS {
            return Err(too_much(format!("the schema and what it refers to have more than {LEVELS} levels")));
        }
    }
    Ok(())
}

/// Levels of a value; what it refers to is added. The parser bounds how deep values are.
fn measure(value: &Value, targets: &mut BTreeSet<String>) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(|value| measure(value, targets)).max().unwrap_or(0),
        Value::Object(all) => {
            targets.extend(all.get("$ref").and_then(Value::as_str).map(str::to_owned));
            1 + all.values().map(|value| measure(value, targets)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// A definition: what it is called, and what it names, as often as it does.
#[derive(Debug, Default, PartialEq)]
struct Definition<'a> {
    name: &'a str,
    names: Vec<&'a str>,
}

fn lark(text: &str) -> Result<(), GrammarError> {
    let (all, products) = definitions(text);
    if all.len() > DEFINITIONS {
        return Err(too_much(format!("{} definitions; at most {DEFINITIONS}", all.len())));
    }
    if products > PRODUCTS {
        return Err(too_much(format!("{products} of & and ~; at most {PRODUCTS}")));
    }
    let numbers: HashMap<&str, usize> = (0..).zip(&all).map(|(at, one)| (one.name, at)).collect();
    let mut sizes = Sizes { all: &all, numbers: &numbers, known: vec![None; all.len()] };
    for (at, one) in all.iter().enumerate() {
        let size = sizes.of(at, 0)?;
        if is_terminal(one.name) && size.expanded > EXPANDED {
            return Err(too_much(format!("{} comes to more than {EXPANDED} parts", one.name)));
        }
    }
    Ok(())
}

fn is_terminal(name: &str) -> bool {
    name.chars().any(char::is_uppercase)
}

/// What a definition comes to.
#[derive(Clone, Copy, Default)]
struct Size {
    chain: usize,
    expanded: u64,
}

struct Sizes<'a> {
    all: &'a [Definition<'a>],
    numbers: &'a HashMap<&'a str, usize>,
    /// Those that are being measured have a size of nothing: rules may name themselves.
    known: Vec<Option<Size>>,
}

impl Sizes<'_> {
    fn of(&mut self, at: usize, above: usize) -> Result<Size, GrammarError> {
        if let Some(size) = self.known[at] {
            return Ok(size);
        }
        if above > CHAIN {
            return Err(too_much(format!("more than {CHAIN} definitions of which each names the next")));
        }
        self.known[at] = Some(Size::default());
        let (all, mut size) = (self.all, Size { chain: 0, expanded: 1 });
        for name in &all[at].names {
            let Some(&next) = self.numbers.get(name) else { continue };
            let inner = self.of(next, above + 1)?;
            size.chain = size.chain.max(inner.chain);
            size.expanded = size.expanded.saturating_add(inner.expanded);
        }
        size.chain += 1;
        if size.chain > CHAIN {
            return Err(too_much(format!("more than {CHAIN} definitions of which each names the next")));
        }
        self.known[at] = Some(size);
        Ok(size)
    }
}

/// All definitions of a grammar in Lark's syntax, and how many intersections and complements it has. What is no grammar
/// gives something, which the compiler refuses.
fn definitions(text: &str) -> (Vec<Definition<'_>>, usize) {
    let (mut all, mut products): (Vec<Definition<'_>>, usize) = (Vec::new(), 0);
    for word in Words(text) {
        match (word, all.last_mut()) {
            (Word::Defined(name), _) => all.push(Definition { name, names: Vec::new() }),
            (Word::Named(name), Some(definition)) => definition.names.push(name),
            (Word::Named(_), None) => {}
            (Word::Product, _) => products += 1,
        }
    }
    (all, products)
}

/// What is of interest in a grammar's text.
enum Word<'a> {
    /// A name that a definition begins with.
    Defined(&'a str),
    Named(&'a str),
    /// `&` or `~`
    Product,
}

/// The rest of a text.
struct Words<'a>(&'a str);

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        loop {
            let first = self.0.chars().next()?;
            let rest = &self.0[first.len_utf8()..];
            match first {
                '"' => self.0 = after(rest, '"'),
                '/' if rest.starts_with('/') => self.0 = after_line(rest),
                '/' => self.0 = after(rest, '/'),
                '#' => self.0 = after_line(rest),
                '&' | '~' => return self.word(rest, Word::Product),
                c if c.is_alphabetic() || c == '_' => {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
                    let end = first.len_utf8() + end.unwrap_or(rest.len());
                    let (name, rest) = self.0.split_at(end);
                    let after = body(rest);
                    return self.word(
                        after.unwrap_or(rest),
                        after.map_or(Word::Named(name), |_| Word::Defined(name)),
                    );
                }
                _ => self.0 = rest,
            }
        }
    }
}

impl<'a> Words<'a> {
    fn word(&mut self, rest: &'a str, word: Word<'a>) -> Option<Word<'a>> {
        self.0 = rest;
        Some(word)
    }
}

/// What follows the colon of a definition, if `rest` of a text, after a name, is that: there may be a parameter, a priority
/// and attributes before it.
fn body(rest: &str) -> Option<&str> {
    let mut rest = rest.strip_prefix("::_").unwrap_or(rest).trim_start();
    loop {
        rest = match rest.chars().next()? {
            '.' => rest[1..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '-').trim_start(),
            '[' => attributes(&rest[1..]).trim_start(),
            ':' if !rest.starts_with("::") => return Some(&rest[1..]),
            _ => return None,
        };
    }
}

/// After the bracket that ends them.
fn attributes(mut rest: &str) -> &str {
    while let Some(at) = rest.find(['"', ']']) {
        let inside = &rest[at + 1..];
        if rest[at..].starts_with(']') {
            return inside;
        }
        rest = after(inside, '"');
    }
    ""
}

/// After the next `end` that has no backslash before it.
fn after(text: &str, end: char) -> &str {
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == end {
            return &text[at + 1..];
        }
    }
    ""
}

fn after_line(text: &str) -> &str {
    text.find('\n').map_or("", |at| &text[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(text: &str) -> Result<(), GrammarError> {
        fits(&Source { kind: Kind::Lark, text: text.to_owned() })
    }

    #[test]
    fn definitions_are_found_wherever_they_stand() {
        let text = "start: a B \"c: d\" /e: \\/ f/ // g: h\n# i: j\n  | a\na.3: B{2,3} B\n?B [x=1, y=\"]:\"] : ~/x/ & /y/\n%ignore /z/";
        let (all, products) = definitions(text);
        let shown: Vec<String> =
            all.iter().map(|one| format!("{}: {}", one.name, one.names.join(" "))).collect();
        assert_eq!((shown.join("; "), products), ("start: a B a; a: B B; B: ignore".to_owned(), 2));
    }

    #[test]
    fn what_doubles_or_goes_on_and_on_is_refused() {
        let chain = |n: usize, step: &dyn Fn(usize) -> String| -> String { (1..=n).map(step).collect() };
        let doubling = |name: &str, n: usize| {
            let text = format!("start: {name}{n}\n{name}0: \"a\"\n");
            text + &chain(n, &|i| format!("{name}{i}: {name}{p} {name}{p}\n", p = i - 1))
        };
        assert_eq!(lark(&doubling("A", 14)), Ok(()));
        assert!(lark(&doubling("A", 16)).unwrap_err().to_string().contains("more than 50000 parts"));
        assert_eq!(lark(&doubling("a", 150)), Ok(()), "rules are not replaced by what they stand for");
        assert!(lark(&doubling("a", 201)).unwrap_err().to_string().contains("each names the next"));
        // The other way round, so that what is named is measured first.
        let backwards = chain(300, &|i| format!("a{i}: a{}\n", i - 1));
        assert!(lark(&backwards).unwrap_err().to_string().contains("each names the next"));
        assert_eq!(lark("start: a\na: \"(\" a \")\" | b\nb: a b"), Ok(()), "rules name themselves");
        assert!(lark(&chain(2001, &|i| format!("a{i}: \"x\"\n"))).unwrap_err().to_string().contains("2001"));
        assert!(lark(&format!("start: A\nA: {}/b/", "/a/ & ".repeat(65))).is_err());
    }

    #[test]
    fn a_schema_is_as_deep_as_all_that_it_refers_to() {
        let schema = |n: usize| {
            let one = |i: usize| format!("\"a{i}\": {{\"items\": {{\"$ref\": \"#/$defs/a{}\"}}}}", i + 1);
            let defs: Vec<String> = (0..n).map(one).collect();
            let text = format!("{{\"$ref\": \"#/$defs/a0\", \"$defs\": {{{}}}}}", defs.join(", "));
            fits(&Source { kind: Kind::Schema, text })
        };
        assert_eq!(schema(900), Ok(()));
        assert!(schema(1100).unwrap_err().to_string().contains("2000 levels"));
        let own = "{\"properties\": {\"x\": {\"$ref\": \"#\"}}}";
        assert_eq!(fits(&Source { kind: Kind::Schema, text: own.to_owned() }), Ok(()));
    }
}
