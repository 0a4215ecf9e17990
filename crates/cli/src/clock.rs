//! The time of day, for those who tell it.

use std::time::{SystemTime, UNIX_EPOCH};

use model::template::WallClock;

/// Now, in UTC.
pub(crate) fn now() -> WallClock {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    WallClock { unix_s: since.map_or(0, |since| since.as_secs()) as i64, utc_offset_s: 0 }
}
