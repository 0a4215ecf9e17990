//! The text of a grammar, read.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use crate::grammar::GrammarError;

/// How deep groups may be in each other.
const NESTING: usize = 100;
/// Most rules.
const RULES: usize = 2000;
/// Where a grammar begins.
const ROOT: &str = "root";

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// A literal.
    Text(String),
    /// One character, as a regular expression says which.
    Class(String),
    /// By its number.
    Rule(usize),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    /// At least, and at most so often.
    Repeat(Box<Expr>, u32, Option<u32>),
}

impl Default for Expr {
    fn default() -> Expr {
        Expr::Text(String::new())
    }
}

/// All rules; the first is the root.
///
/// # Errors
/// [`GrammarError::Invalid`], naming the line.
pub(super) fn rules(text: &str) -> Result<Vec<Expr>, GrammarError> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1, names: HashMap::new(), depth: 0 };
    let root = reader.number(ROOT)?;
    let mut rules: HashMap<usize, Expr> = HashMap::new();
    reader.space();
    while reader.rest.peek().is_some() {
        let name = reader.name().ok_or_else(|| reader.wrong("expected the name of a rule"))?;
        let number = reader.number(&name)?;
        reader.space();
        if !reader.takes("::=") {
            return Err(reader.wrong(&format!("expected ::= after `{name}`")));
        }
        let body = reader.choice()?;
        if rules.insert(number, body).is_some() {
            return Err(reader.wrong(&format!("there are two rules `{name}`")));
        }
    }
    let missing = reader.names.iter().filter(|(_, number)| !rules.contains_key(number)).min();
    if let Some((name, _)) = missing {
        return Err(GrammarError::Invalid(format!("there is no rule `{name}`")));
    }
    Ok((root..rules.len()).filter_map(|number| rules.remove(&number)).collect())
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    names: HashMap<String, usize>,
    depth: usize,
}

impl Reader<'_> {
    fn wrong(&self, why: &str) -> GrammarError {
        GrammarError::Invalid(format!("line {}: {why}", self.line))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn number(&mut self, name: &str) -> Result<usize, GrammarError> {
        let next = self.names.len();
        if next >= RULES && !self.names.contains_key(name) {
            return Err(self.wrong(&format!("more than {RULES} rules")));
        }
        Ok(*self.names.entry(name.to_owned()).or_insert(next))
    }

    /// White space, ends of lines and comments.
    fn space(&mut self) {
        while let Some(&c) = self.rest.peek() {
            if c == '#' {
                while self.rest.peek().is_some_and(|&c| c != '\n') {
                    self.next();
                }
            } else if !c.is_whitespace() {
                return;
            }
            self.next();
        }
    }

    fn takes(&mut self, word: &str) -> bool {
        let mut ahead = self.rest.clone();
        if !word.chars().all(|c| ahead.next() == Some(c)) {
            return false;
        }
        self.rest = ahead;
        true
    }

    fn name(&mut self) -> Option<String> {
        let begins = |c: &char| c.is_ascii_alphabetic() || *c == '_';
        self.rest.peek().filter(|c| begins(c))?;
        let mut name = String::new();
        while let Some(&c) = self.rest.peek().filter(|c| c.is_ascii_alphanumeric() || "_-.".contains(**c)) {
            name.push(c);
            self.next();
        }
        Some(name)
    }

    /// Whether a new rule begins here, rather than a name in this one.
    fn rule_begins(&self) -> bool {
        let mut ahead = Reader { rest: self.rest.clone(), line: 0, names: HashMap::new(), depth: 0 };
        ahead.name().is_some() && {
            ahead.space();
            ahead.takes("::=")
        }
    }

    fn choice(&mut self) -> Result<Expr, GrammarError> {
        let mut all = vec![self.sequence()?];
        while self.takes("|") {
            all.push(self.sequence()?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expr::Choice(all) })
    }

    fn sequence(&mut self) -> Result<Expr, GrammarError> {
        let mut all = Vec::new();
        loop {
            self.space();
            match self.rest.peek().copied() {
                None | Some('|' | ')') => break,
                Some(_) if self.rule_begins() => break,
                Some(_) => {
                    let one = self.one()?;
                    all.push(self.repeated(one)?);
                }
            }
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expr::Sequence(all) })
    }

    fn one(&mut self) -> Result<Expr, GrammarError> {
        if let Some(name) = self.name() {
            return Ok(Expr::Rule(self.number(&name)?));
        }
        match self.next() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => Ok(Expr::Class("(?s:.)".to_owned())),
            Some('(') => self.group(),
            Some(c) => {
                Err(self.wrong(&format!("expected a literal, a class, a rule or a group, found `{c}`")))
            }
            None => Err(self.wrong("the rule ends too early")),
        }
    }

    fn group(&mut self) -> Result<Expr, GrammarError> {
        self.depth += 1;
        if self.depth > NESTING {
            return Err(self.wrong(&format!("groups in more than {NESTING} others")));
        }
        let inside = self.choice()?;
        self.depth -= 1;
        if self.takes(")") { Ok(inside) } else { Err(self.wrong("expected `)`")) }
    }

    fn repeated(&mut self, one: Expr) -> Result<Expr, GrammarError> {
        let (least, most) = match self.rest.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => return self.counted(one),
            _ => return Ok(one),
        };
        self.next();
        Ok(Expr::Repeat(Box::new(one), least, most))
    }

    /// `{2}`, `{2,}`, `{,3}`, `{2,3}`
    fn counted(&mut self, one: Expr) -> Result<Expr, GrammarError> {
        self.next();
        let least = self.count()?;
        let most = if self.takes(",") { self.count()? } else { least };
        let sound = most.is_none_or(|most| least.unwrap_or(0) <= most);
        if !self.takes("}") || !sound || (least, most) == (None, None) {
            return Err(self.wrong("expected {n}, {n,}, {,n} or {m,n} with m no more than n"));
        }
        if most == Some(0) {
            return Ok(Expr::Text(String::new()));
        }
        Ok(Expr::Repeat(Box::new(one), least.unwrap_or(0), most))
    }

    fn count(&mut self) -> Result<Option<u32>, GrammarError> {
        let mut digits = String::new();
        while let Some(&c) = self.rest.peek().filter(|c| c.is_ascii_digit()) {
            digits.push(c);
            self.next();
        }
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| self.wrong("a number of times is too large"))
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(Expr::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some('\n') | None => return Err(self.wrong("a literal has no end")),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        let mut class = String::from(if self.takes("^") { "[^" } else { "[" });
        let bare = class.len();
        loop {
            let from = match self.next() {
                Some(']') if class.len() > bare => return Ok(Expr::Class(class + "]")),
                Some(']') | None => return Err(self.wrong("a class is empty, or has no end")),
                Some('\\') => self.escape()?,
                Some(c) => c,
            };
            class.push_str(&escaped(from));
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.peek().is_some_and(|&c| c != ']');
            if is_range {
                self.next();
                let to = match self.next() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return Err(self.wrong("a class has no end")),
                };
                if to < from {
                    return Err(self.wrong(&format!("the range {from}-{to} goes backwards")));
                }
                class.push('-');
                class.push_str(&escaped(to));
            }
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        match self.next() {
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('x') => self.hex(2),
            Some('u') => self.hex(4),
            Some('U') => self.hex(8),
            Some(c) if !c.is_alphanumeric() => Ok(c),
            _ => Err(self.wrong(r#"expected one of \n \r \t \x.. \u.... \U........, or a sign after `\`"#)),
        }
    }

    fn hex(&mut self, digits: usize) -> Result<char, GrammarError> {
        let text: String = (0..digits).filter_map(|_| self.next()).collect();
        let number = u32::from_str_radix(&text, 16).ok().filter(|_| text.len() == digits);
        number
            .and_then(char::from_u32)
            .ok_or_else(|| self.wrong(&format!("`{text}` is no character's number")))
    }
}

/// A character in a regular expression, in a class or outside.
pub(super) fn escaped(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", c as u32) }
}
