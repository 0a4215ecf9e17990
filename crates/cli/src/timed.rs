//! Cases of the kernels' table: which were asked for, and what is told of those that were timed.

use std::fmt;

use anyhow::{Result, bail};
use kernels::table::Case;
use serde::Serialize;

/// Whether `--only` means this case.
pub(crate) fn is_wanted(case: &Case, only: Option<&str>) -> bool {
    only.is_none_or(|only| case.name.contains(only))
}

/// Those that `--only` means.
///
/// # Errors
/// If there are none: it names all.
pub(crate) fn wanted(cases: Vec<Case>, only: Option<&str>) -> Result<Vec<Case>> {
    let (wanted, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| is_wanted(case, only));
    if wanted.is_empty() {
        let names: Vec<String> = others.into_iter().map(|case| case.name).collect();
        let only = only.unwrap_or_default();
        bail!("no kernel's name contains `{only}`; there are:\n  {}", names.join("\n  "));
    }
    Ok(wanted)
}

/// A case's time, and what that comes to.
#[derive(Serialize)]
pub(crate) struct Timed {
    case: String,
    seconds: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) flops: f64,
}

impl Timed {
    pub(crate) fn new(case: &Case, seconds: f64) -> Timed {
        let (bytes_per_s, flops) = (case.floor.bytes / seconds, case.floor.flops / seconds);
        Timed { case: case.name.clone(), seconds, bytes_per_s, flops }
    }

    /// What stands above lines of these.
    pub(crate) fn heading() -> String {
        format!("{:56} {:>10} {:>8} {:>9}", "case", "ms", "GB/s", "TFLOP/s")
    }
}

impl fmt::Display for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timed { case, seconds, bytes_per_s, flops } = self;
        write!(f, "{case:56} {:10.4} {:8.1} {:9.3}", seconds * 1e3, bytes_per_s / 1e9, flops / 1e12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::table::timed;

    #[test]
    fn a_name_that_nothing_has_is_told() {
        assert!(
            wanted(timed(), Some("attend/int4")).unwrap().iter().all(|case| is_wanted(case, Some("int4")))
        );
        assert_eq!(wanted(timed(), None).unwrap().len(), timed().len());
        let told = wanted(timed(), Some("fish")).err().unwrap().to_string();
        assert!(told.contains("fish") && told.contains(&timed()[0].name), "{told}");
    }
}
