//! What a job writes down about itself before its first answer, so that whoever goes on knows what it was.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::order::OutputOrder;

/// Format of the record.
const VERSION: u32 = 2;

/// A job, as its state file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub(super) version: u32,
    /// SHA-256 of the whole input.
    pub input_sha256: String,
    /// Lines of the whole input that are not blank.
    pub lines: usize,
    /// Which of them are this job's.
    pub shard: Shard,
    /// How answers are ordered.
    pub order: OutputOrder,
    /// Where failed lines go, if not among the answers: a file name if it lies beside them.
    pub error_file: Option<String>,
    /// When the job was begun, in Unix seconds: what every answer carries.
    pub created: u64,
    /// Whatever else decides about the answers, by name: the model, its length, ...
    pub settings: BTreeMap<String, String>,
}

/// Every `of`-th line, from line `index` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Counted from 0.
    pub index: usize,
    /// Shards in all.
    pub of: usize,
}

impl Shard {
    /// All lines.
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };

    /// Whether the line at this position is in it.
    pub fn owns(self, position: usize) -> bool {
        position % self.of == self.index
    }

    /// How many of so many lines are in it.
    pub(super) fn lines(self, all: usize) -> usize {
        all / self.of + usize::from(all % self.of > self.index)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts =
            text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((index, of)) if index < of => Ok(Shard { index, of }),
            Some((index, of)) => {
                Err(format!("shard {index} of {of}: they count from 0 to {}", of.saturating_sub(1)))
            }
            None => Err("expected i/N, such as 0/4 for the first of four".into()),
        }
    }
}

impl Record {
    /// A job on a whole input, begun now.
    pub fn new(input: &super::Input, created: u64, settings: BTreeMap<String, String>) -> Record {
        Record {
            version: VERSION,
            input_sha256: input.digest().to_string(),
            lines: input.len(),
            shard: Shard::WHOLE,
            order: OutputOrder::Input,
            error_file: None,
            created,
            settings,
        }
    }

    /// What makes `other` another job than this one, in words. When each was begun does not.
    pub fn differences(&self, other: &Record) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |name: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{name} was {a}, now is {b}"));
            }
        };
        compare("the format of its state", self.version.to_string(), other.version.to_string());
        compare("the input's SHA-256", self.input_sha256.clone(), other.input_sha256.clone());
        compare("the shard", format!("{}", self.shard), format!("{}", other.shard));
        compare("the order", format!("{:?}", self.order), format!("{:?}", other.order));
        let errors = |record: &Record| record.error_file.clone().unwrap_or_else(|| "none".into());
        compare("the error file", errors(self), errors(other));
        let names: std::collections::BTreeSet<_> =
            self.settings.keys().chain(other.settings.keys()).collect();
        let setting =
            |record: &Record, name: &str| record.settings.get(name).cloned().unwrap_or_else(|| "none".into());
        names.into_iter().for_each(|name| compare(name, setting(self, name), setting(other, name)));
        found
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Input;

    #[test]
    fn shards_share_all_lines() {
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, of: 3 }));
        for wrong in ["3/3", "0/0", "1", "/", "-1/3", "a/b"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
        for position in 0..20 {
            let owners = (0..3).filter(|&index| Shard { index, of: 3 }.owns(position)).count();
            assert_eq!(owners, 1);
            let shares = (0..3).map(|index| Shard { index, of: 3 }.lines(position));
            assert_eq!(shares.sum::<usize>(), position);
        }
    }

    #[test]
    fn differences_are_named_and_time_is_none() {
        let settings = |model: &str| BTreeMap::from([("the model".to_string(), model.to_string())]);
        let (a, b) = (Input::new(b"a".to_vec()), Input::new(b"b".to_vec()));
        let record = Record::new(&a, 1, settings("x"));
        assert_eq!(record.differences(&Record::new(&a, 2, settings("x"))), Vec::<String>::new());
        assert_eq!(record.differences(&Record::new(&a, 1, settings("y"))), ["the model was x, now is y"]);
        assert!(record.differences(&Record::new(&b, 1, settings("x")))[0].contains("the input's SHA-256"));
        assert_eq!(record.differences(&Record { error_file: Some("e".into()), ..record.clone() }).len(), 1);
    }
}
