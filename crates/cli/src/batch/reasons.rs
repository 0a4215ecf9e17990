//! Why lines failed: the first reasons, each once.

use std::fmt;

/// Reasons that are kept; lines for others are counted together.
const MOST: usize = 3;
/// Characters of a reason that are shown.
const MOST_CHARS: usize = 160;

/// Reasons of errors, and how many lines each of them had.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    first: Vec<(String, usize)>,
    others: usize,
}

impl Reasons {
    /// One line more.
    pub(super) fn add(&mut self, reason: &str) {
        let reason = shown(reason);
        let known = self.first.iter().position(|(known, _)| *known == reason);
        match known {
            Some(at) => self.first[at].1 += 1,
            None if self.first.len() < MOST => self.first.push((reason, 1)),
            None => self.others += 1,
        }
    }

    /// Whether nothing failed.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

/// A reason a line.
impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.first.iter().map(|(reason, lines)| format!("  {lines} failed: {reason}"));
        let others = (self.others > 0)
            .then(|| format!("  {} failed for other reasons: each error says which", self.others));
        f.write_str(&all.chain(others).collect::<Vec<_>>().join("\n"))
    }
}

/// On one line, and not longer than people read.
fn shown(reason: &str) -> String {
    let mut chars = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = chars.by_ref().take(MOST_CHARS).collect();
    if chars.next().is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_no_more_than_people_read() {
        let mut reasons = Reasons::default();
        assert!(reasons.is_empty());
        ["no model `x`", "a\nb", "no model `x`", &"c".repeat(500), "d", "e"]
            .iter()
            .for_each(|r| reasons.add(r));
        let told = reasons.to_string();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[..2], ["  2 failed: no model `x`", "  1 failed: a b"]);
        assert_eq!(lines[2], format!("  1 failed: {}...", "c".repeat(160)));
        assert_eq!(lines[3], "  2 failed for other reasons: each error says which");
    }
}
