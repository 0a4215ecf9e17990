//! How much a grammar comes to, before anything is made of it. What follows from a few lines may be endless: a definition
//! that names another twice, which names a third twice; and the compiler follows definitions down, on a stack that ends.

mod outline;
mod schema;
mod words;

use std::collections::HashMap;

use super::GrammarError;
use outline::{Definition, Grammar, outline};
pub(super) use schema::fits as schema;

/// Most definitions of a grammar.
const DEFINITIONS: usize = 2000;
/// Most definitions of which each names the next.
const CHAIN: usize = 200;
/// Most parts that a terminal comes to, when each name is replaced by what it stands for: names, parts that may be there or be
/// repeated, and every fourth byte of expressions. A lexer's first step over n parts that may all be left out takes n * n bytes.
const EXPANDED: u64 = 5000;
/// Most bytes of an expression, for the same reason: some 20 MB.
const EXPRESSION_BYTES: usize = 16 << 10;
/// Most of their squares' sum: of two as long as may be.
const SQUARES: usize = 2 * EXPRESSION_BYTES * EXPRESSION_BYTES;
/// Most intersections and complements: each multiplies what a lexer has to tell apart.
const PRODUCTS: usize = 64;
/// Most groups in one another. Whoever decodes follows conditions down too, on a smaller stack.
const GROUPS: usize = 100;
/// Most levels of a grammar: its definitions and the groups in them, as if all were one path. Which of them are depends on
/// the order in which the compiler comes to them. Each takes about 2 KiB of stack.
const LEVELS: usize = 8000;

/// Whether compiling a grammar in Lark's syntax will end, soon and without running out of stack.
///
/// # Errors
/// [`GrammarError::Invalid`], saying what is too much.
pub(super) fn lark(text: &str) -> Result<(), GrammarError> {
    let outline = outline(text)?;
    let definitions: usize = outline.grammars.iter().map(Vec::len).sum();
    if definitions > DEFINITIONS {
        return Err(too_much(format!("{definitions} definitions; at most {DEFINITIONS}")));
    }
    if outline.products > PRODUCTS {
        return Err(too_much(format!("{} of & and ~; at most {PRODUCTS}", outline.products)));
    }
    expressions(outline.expressions)?;
    outline.schemas.iter().try_for_each(schema)?;
    outline.grammars.iter().try_for_each(|grammar| levels(grammar).and_then(|()| sizes(grammar)))
}

/// The same for a regular expression.
///
/// # Errors
/// [`GrammarError::Invalid`].
pub(super) fn expression(text: &str) -> Result<(), GrammarError> {
    expressions([text.len()])
}

/// Of so many bytes each.
fn expressions(lengths: impl IntoIterator<Item = usize>) -> Result<(), GrammarError> {
    let mut squares = 0;
    for bytes in lengths {
        if bytes > EXPRESSION_BYTES {
            return Err(too_much(format!("an expression of {bytes} bytes; at most {EXPRESSION_BYTES}")));
        }
        squares += bytes * bytes;
    }
    if squares > SQUARES {
        return Err(too_much("its expressions are too long together".to_owned()));
    }
    Ok(())
}

/// The same for a grammar that was made from one in another syntax, whose sizes were measured there: whether the stack is
/// enough for it.
///
/// # Errors
/// [`GrammarError::Invalid`].
pub(super) fn made_lark(text: &str) -> Result<(), GrammarError> {
    outline(text)?.grammars.iter().try_for_each(levels)
}

fn too_much(what: String) -> GrammarError {
    GrammarError::Invalid(what)
}

fn levels(grammar: &Grammar) -> Result<(), GrammarError> {
    let groups = grammar.iter().map(|one| one.groups).max().unwrap_or(0);
    if groups > GROUPS {
        return Err(too_much(format!("groups in more than {GROUPS} others")));
    }
    // One that names nothing ends the path.
    let inner = grammar.iter().filter(|one| !one.names.is_empty());
    let levels: usize = inner.map(|one| 1 + one.groups).sum();
    if levels > LEVELS {
        return Err(too_much(format!("its rules and the groups in them have more than {LEVELS} levels")));
    }
    Ok(())
}

fn sizes(grammar: &Grammar) -> Result<(), GrammarError> {
    let numbers: HashMap<&str, usize> = (0..).zip(grammar).map(|(at, one)| (one.name, at)).collect();
    let mut sizes = Sizes { all: grammar, numbers: &numbers, known: vec![None; grammar.len()] };
    for (at, one) in grammar.iter().enumerate() {
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
        let (all, mut size) = (self.all, Size { chain: 0, expanded: 1 + self.all[at].parts });
        for name in &all[at].names {
            // A terminal has terminals only: another name in it leads nowhere.
            let leads = is_terminal(name) || !is_terminal(all[at].name);
            let Some(&next) = self.numbers.get(name).filter(|_| leads) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: usize, step: impl Fn(usize) -> String) -> String {
        (1..=n).map(step).collect()
    }

    fn refused(text: &str) -> String {
        lark(text).unwrap_err().to_string()
    }

    #[test]
    fn what_doubles_or_goes_on_and_on_is_refused() {
        let doubling = |name: &str, n: usize| {
            let text = format!("start: {name}{n}\n{name}0: \"a\"\n");
            text + &chain(n, |i| format!("{name}{i}: {name}{p} {name}{p}\n", p = i - 1))
        };
        assert_eq!(lark(&doubling("A", 11)), Ok(()));
        assert!(refused(&doubling("A", 13)).contains("more than 5000 parts"));
        assert_eq!(lark(&doubling("a", 150)), Ok(()), "rules are not replaced by what they stand for");
        assert!(refused(&doubling("a", 201)).contains("each names the next"));
        // The other way round, so that what is named is measured first.
        assert!(refused(&chain(300, |i| format!("a{i}: a{}\n", i - 1))).contains("each names the next"));
        assert_eq!(lark("start: a\na: \"(\" a \")\" | b\nb: a b"), Ok(()), "rules name themselves");
        assert!(refused(&chain(2001, |i| format!("a{i}: \"x\"\n"))).contains("2001"));
        assert!(lark(&format!("start: A\nA: {}/b/", "/a/ & ".repeat(65))).is_err());
    }

    #[test]
    fn nothing_hides_what_doubles() {
        let doubling = chain(40, |i| format!("A{i}: A{p} A{p}\n", p = i - 1));
        for text in [
            format!("start: A40\nA0: \"a\"\n{doubling}"),
            // Names of a grammar in braces are not those outside.
            format!(
                "start: A40 | z\nA0: \"a\"\n{doubling}z: %lark {{ {} }}",
                chain(40, |i| format!("A{i}: \"a\"\n"))
            ),
            // Rules lead back to what is being measured, by the names of alternatives.
            format!(
                "A0: \"a\" -> f0\nf0: A1\n{}start: A40",
                chain(40, |i| format!("A{i}: A{p} A{p} -> f{i}\nf{i}: A{n}\n", p = i - 1, n = i + 1))
            ),
            // A quote is no string in a special token, nor in an expression of an attribute.
            format!("x: <\">\nA0: /a/\n{doubling}y: <\">\nstart: A40"),
            format!("start: A40\nA0: /a/\nx[stop=/\"/]: \"y\"\n{doubling}y: \"]: z\""),
            // Two names.
            format!("start: A40z\nz: \"x\"\nA0: \"a\"\n{doubling}"),
        ] {
            assert!(refused(&text).contains("more than 5000 parts"), "{text:.200}");
        }
    }

    #[test]
    fn what_may_be_left_out_is_not_endless() {
        let optional = |n: usize| format!("start: A\nA: {}", "\"a\"? ".repeat(n));
        assert_eq!(lark(&optional(4000)), Ok(()));
        assert!(refused(&optional(5000)).contains("more than 5000 parts"));
        assert_eq!(lark(&format!("start: {}", "\"a\"? ".repeat(5000))), Ok(()), "rules are no expressions");
        let long = |n: usize| "[ab]?".repeat(n);
        assert_eq!(lark(&format!("start: /{}/", long(3000))), Ok(()));
        assert!(refused(&format!("start: /{}/", long(4000))).contains("20000 bytes"));
        assert!(refused(&format!("start: {}", format!("/{}/ ", long(3000)).repeat(3))).contains("together"));
        assert!(refused(&format!("start: A\nA: {}", "/[ab]?[ab]?/ ".repeat(2600))).contains("5000 parts"));
        assert!(expression(&long(3000)).is_ok() && expression(&long(4000)).is_err());
    }

    #[test]
    fn levels_are_all_definitions_and_their_groups() {
        let rules = |n: usize, groups: usize| {
            let group = |i: usize| format!("a{i}: {}a{i}{}\n", "(".repeat(groups), ")".repeat(groups));
            chain(n, group)
        };
        assert_eq!(lark(&rules(1999, 3)), Ok(()));
        assert!(refused(&rules(1999, 4)).contains("8000 levels"));
        assert!(made_lark(&rules(1999, 4)).is_err());
        assert!(refused(&rules(1, 101)).contains("more than 100 others"));
        let leaves = chain(1999, |i| format!("a{i}: {}\"x\"{}\n", "(".repeat(20), ")".repeat(20)));
        assert_eq!(lark(&leaves), Ok(()), "one ends the path");
        let conditions = format!("a::_: \"x\" %if {}true{}", "not(".repeat(101), ")".repeat(101));
        assert!(refused(&conditions).contains("more than 100 others"));
    }

    #[test]
    fn schemas_in_a_grammar_are_measured() {
        let deep = |n: usize| {
            let all = chain(n, |i| format!("\"a{i}\": {{\"items\": {{\"$ref\": \"#/b/a{}\"}}}}, ", i + 1));
            format!("start: %lark {{ start: %json {{\"b\": {{{all} \"c\": 1}}}} }}")
        };
        assert_eq!(lark(&deep(900)), Ok(()));
        assert!(refused(&deep(1100)).contains("2000 levels"));
        assert!(refused("start: %json {\"a\": ").contains("JSON"));
    }
}
