//! The costs that an engine was planned with, and what its runs make of them.

use std::sync::Arc;

use policy::cost::{Correction, Pace, Tables};

/// Called once when the engine ends, with all that was learned.
pub type Keep = Arc<dyn Fn(&Correction) + Send + Sync>;

/// What steps are foreseen with.
#[derive(Clone)]
pub struct Foresight {
    /// As they were measured.
    pub tables: Tables,
    /// What earlier runs found out about them.
    pub correction: Correction,
    /// How fast this run learns.
    pub pace: Pace,
    /// Keeps what it learned, if it ran for long enough.
    pub keep: Option<Keep>,
}

impl Foresight {
    /// The tables as runs have corrected them: what plans are made with.
    pub fn costs(&self) -> Tables {
        self.correction.of(self.tables.clone())
    }
}

impl From<Tables> for Foresight {
    /// Nothing was learned before, and nothing is kept.
    fn from(tables: Tables) -> Foresight {
        Foresight { tables, correction: Correction::default(), pace: Pace::default(), keep: None }
    }
}
