//! Grammars as llama.cpp (GBNF) and vLLM's clients write them, `root ::= "a" | [0-9]+ root`, made into Lark's.
//!
//! A lexer cuts a text before the grammar sees it: were every literal a terminal of its own, the longest would win, and texts
//! that the grammar allows could not be said. So whatever is regular becomes one expression, rules that do not come back to
//! themselves written out where they are used; terminals end only where rules that do begin.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::Write;

use super::GrammarError;
use parse::Expr;

/// Longest expression; what would be longer stays apart.
const EXPRESSION_BYTES: usize = 4096;
/// How deep rules and groups may lie in each other, a rule in all that refer to it: each takes stack.
const DEPTH: usize = 2000;
/// Bytes of all terminals together: what is read of them is many times as large.
const TERMINAL_BYTES: usize = 1 << 20;

/// Whether a grammar is written like this, by its first rule; Lark's have a colon alone.
pub(super) fn is_meant(text: &str) -> bool {
    let mut rest = text.trim_start();
    while rest.starts_with('#') || rest.starts_with("//") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    let after = rest.trim_start_matches(|c: char| c.is_alphanumeric() || "-_".contains(c));
    after.len() < rest.len() && after.trim_start().starts_with("::=")
}

/// The same in Lark's syntax.
///
/// # Errors
/// [`GrammarError::Invalid`], naming the line.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::rules(text)?;
    let mut writer = Writer { known: vec![Known::Not; rules.len()], rules, ..Writer::default() };
    let start = writer.refer(0)?;
    let mut lark = format!("start: {start}\n");
    while let Some(rule) = writer.pending.pop() {
        let body = writer.rule(rule)?;
        let _ = writeln!(lark, "r{rule}: {body}");
    }
    let mut terminals: Vec<(&Regular, usize)> = writer.terminals.iter().map(|(r, &n)| (r, n)).collect();
    terminals.sort_by_key(|&(_, n)| n);
    for (regular, n) in terminals {
        // A terminal has text: where there may be none, it is optional where it stands.
        let some = if regular.nullable { " & /(?s:.)+/" } else { "" };
        let _ = writeln!(lark, "T{n}: /{}/{some}", regular.expression);
    }
    Ok(lark)
}

/// What a regular part of a grammar says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Regular {
    expression: String,
    nullable: bool,
}

/// What is known of a rule.
#[derive(Clone, Debug, Default)]
enum Known {
    /// Nobody looked.
    #[default]
    Not,
    /// Somebody looks: who comes here again has come round.
    BeingFound,
    Regular(Regular),
    /// It comes back to itself, or would be too long.
    Apart,
}

#[derive(Default)]
struct Writer {
    rules: Vec<Expr>,
    known: Vec<Known>,
    terminals: HashMap<Regular, usize>,
    /// Rules that are referred to, and not written yet; each once.
    pending: Vec<usize>,
    terminal_bytes: usize,
    referred: std::collections::HashSet<usize>,
}

impl Writer {
    /// What a rule comes to, if that is regular.
    fn of_rule(&mut self, rule: usize, depth: usize) -> Result<Option<Regular>, GrammarError> {
        match &self.known[rule] {
            Known::Regular(regular) => return Ok(Some(regular.clone())),
            Known::Apart | Known::BeingFound => return Ok(None),
            Known::Not => self.known[rule] = Known::BeingFound,
        }
        let body = std::mem::take(&mut self.rules[rule]);
        let found = self.regular(&body, depth + 1);
        self.rules[rule] = body;
        let found = found?;
        self.known[rule] = found.clone().map_or(Known::Apart, Known::Regular);
        Ok(found)
    }

    fn regular(&mut self, expr: &Expr, depth: usize) -> Result<Option<Regular>, GrammarError> {
        if depth > DEPTH {
            return Err(invalid("its rules and groups lie in each other too deep"));
        }
        let found = match expr {
            Expr::Text(text) => {
                let expression = text.chars().map(parse::escaped).collect();
                Some(Regular { expression, nullable: text.is_empty() })
            }
            Expr::Class(class) => Some(Regular { expression: class.clone(), nullable: false }),
            Expr::Rule(rule) => self.of_rule(*rule, depth)?,
            Expr::Sequence(parts) => self.joined(parts, "", depth)?.map(|parts| Regular {
                expression: parts.iter().map(|part| part.expression.as_str()).collect(),
                nullable: parts.iter().all(|part| part.nullable),
            }),
            Expr::Choice(parts) => self.joined(parts, "|", depth)?.map(|parts| {
                let all: Vec<&str> = parts.iter().map(|part| part.expression.as_str()).collect();
                let nullable = parts.iter().any(|part| part.nullable);
                Regular { expression: format!("(?:{})", all.join("|")), nullable }
            }),
            Expr::Repeat(part, least, most) => self.regular(part, depth + 1)?.map(|part| Regular {
                expression: format!("(?:{}){}", part.expression, times(*least, *most)),
                nullable: *least == 0 || part.nullable,
            }),
        };
        Ok(found.filter(|found| found.expression.len() <= EXPRESSION_BYTES))
    }

    /// All of them, if all are regular and they are not too long together.
    fn joined(
        &mut self,
        parts: &[Expr],
        between: &str,
        depth: usize,
    ) -> Result<Option<Vec<Regular>>, GrammarError> {
        let (mut all, mut bytes) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            let Some(regular) = self.regular(part, depth + 1)? else { return Ok(None) };
            bytes += regular.expression.len() + between.len();
            if bytes > EXPRESSION_BYTES {
                return Ok(None);
            }
            all.push(regular);
        }
        Ok(Some(all))
    }

    /// How a rule is said where it is used.
    fn refer(&mut self, rule: usize) -> Result<String, GrammarError> {
        if let Some(regular) = self.of_rule(rule, 0)? {
            return Ok(self.terminal(regular));
        }
        if self.referred.insert(rule) {
            self.pending.push(rule);
        }
        Ok(format!("r{rule}"))
    }

    fn terminal(&mut self, regular: Regular) -> String {
        if regular.expression.is_empty() {
            return "\"\"".to_owned();
        }
        let optional = if regular.nullable { "?" } else { "" };
        let (next, bytes) = (self.terminals.len(), regular.expression.len());
        let n = *self.terminals.entry(regular).or_insert(next);
        if n == next {
            self.terminal_bytes += bytes;
        }
        format!("T{n}{optional}")
    }

    fn rule(&mut self, rule: usize) -> Result<String, GrammarError> {
        let body = std::mem::take(&mut self.rules[rule]);
        let written = self.write(&body);
        self.rules[rule] = body;
        written
    }

    fn write(&mut self, expr: &Expr) -> Result<String, GrammarError> {
        if self.terminal_bytes > TERMINAL_BYTES {
            return Err(invalid("what is regular in it is too long where it is used"));
        }
        if let Some(regular) = self.regular(expr, 0)? {
            return Ok(self.terminal(regular));
        }
        match expr {
            Expr::Rule(rule) => self.refer(*rule),
            Expr::Sequence(parts) => self.sequence(parts),
            Expr::Choice(parts) => {
                let all: Vec<String> = parts.iter().map(|part| self.write(part)).collect::<Result<_, _>>()?;
                Ok(format!("({})", all.join(" | ")))
            }
            Expr::Repeat(part, least, most) => Ok(format!("({}){}", self.write(part)?, times(*least, *most))),
            // They are longer than an expression may be.
            Expr::Text(_) | Expr::Class(_) => Err(invalid("a literal or a class in it is too long")),
        }
    }

    /// Neighbours that are regular are one expression.
    fn sequence(&mut self, parts: &[Expr]) -> Result<String, GrammarError> {
        let mut words = Vec::new();
        let mut run: Option<Regular> = None;
        for part in parts {
            let regular = self.regular(part, 0)?;
            let joined = match (&run, &regular) {
                (Some(a), Some(b)) if a.expression.len() + b.expression.len() <= EXPRESSION_BYTES => {
                    Some(Regular {
                        expression: format!("{}{}", a.expression, b.expression),
                        nullable: a.nullable && b.nullable,
                    })
                }
                _ => None,
            };
            if joined.is_some() {
                run = joined;
                continue;
            }
            words.extend(run.take().map(|run| self.terminal(run)));
            match regular {
                Some(_) => run = regular,
                None => words.push(self.write(part)?),
            }
        }
        words.extend(run.map(|run| self.terminal(run)));
        Ok(words.join(" "))
    }
}

/// `?`, `*`, `+`, or how often.
fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, Some(1)) => "?".to_owned(),
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn invalid(why: &str) -> GrammarError {
    GrammarError::Invalid(why.to_owned())
}
