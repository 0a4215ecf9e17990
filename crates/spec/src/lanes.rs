//! What ran on a lane, and when: from a run or from a timeline, to be drawn.

use crate::{Lane, Nanos, RankId};
use serde::Serialize;

/// One bar of a lane timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneSpan {
    /// Of which rank.
    pub rank: RankId,
    /// The lane that ran it there.
    pub lane: Lane,
    /// When it began.
    #[serde(rename = "start_ns")]
    pub start: Nanos,
    /// When it ended, not before it began.
    #[serde(rename = "end_ns")]
    pub end: Nanos,
    /// What it was, for people; the first word is the kind.
    pub label: String,
}
