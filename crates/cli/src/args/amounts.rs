//! Amounts as they are typed.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use spec::Split;

use super::DeviceName;

/// `512MiB`, `2GiB`, `1.5GB`, `800M` (powers of ten without an i), or plain bytes.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1u64,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(format!("`{unit}` is no unit of memory: write something like 2GiB or 800MB")),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number and a unit, such as 2GiB".to_string())?;
    let bytes = number * factor as f64;
    if bytes.is_finite() && (1.0..1e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err("not a sensible amount of memory".into())
    }
}

/// A share in percent, of up to four decimals: as fine as placements are, so that a plan that is written down is the same
/// plan where it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(u32);

impl Percent {
    /// Parts of [`Split::WHOLE`].
    pub(crate) fn of_parts(parts: u32) -> Percent {
        Percent(parts)
    }

    /// The same in parts of [`Split::WHOLE`].
    pub(crate) fn parts(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Percent {
    /// As it is typed: `43.2581`, `100`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / PERCENT, self.0 % PERCENT);
        let decimals = format!("{rest:04}");
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{whole}"),
            decimals => write!(f, "{whole}.{decimals}"),
        }
    }
}

/// A number above zero that is one: of seconds, of watts, of money.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above zero".into())
}

/// Parts of a whole in one percent.
const PERCENT: u32 = Split::WHOLE / 100;

/// See [`Percent`].
pub(super) fn percent(text: &str) -> Result<Percent, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    let share = share.ok_or_else(|| "expected a share in percent, 0..=100".to_string())?;
    Ok(Percent((share * f64::from(PERCENT)).round() as u32))
}

/// Gigabytes (10^9) in a second, as bytes in a second.
pub(super) fn link_gbps(text: &str) -> Result<u64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=10_000.0).contains(rate));
    let rate =
        rate.ok_or_else(|| "expected gigabytes a second from 0.001 to 10000, such as 12.5".to_string())?;
    Ok((rate * 1e9) as u64)
}

/// Some or all of something.
pub(super) fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "expected a share above 0 and up to 1, such as 0.1 for a tenth".into())
}

/// `cpu`, `cuda`, or `cpu*N`: N processors that stand for as many devices.
pub(super) fn device(text: &str) -> Result<DeviceName, String> {
    match text.split_once('*') {
        None | Some(("cpu", "1")) => {
            DeviceName::from_str(text, false).map_err(|_| "expected cpu, cpu*1 or cuda".to_string())
        }
        Some(("cpu", count)) if count.parse::<u16>().is_ok_and(|n| n > 1) => {
            Err("several devices are not built yet: one is cpu or cpu*1".into())
        }
        Some(_) => Err("expected cpu, cpu*1 or cuda".into()),
    }
}

/// Most of anything that is counted here: sums and products of two of them stay far from overflow.
const COUNT_MAX: usize = 1 << 24;
/// More threads than any machine has; each costs a stack, and waits for all others.
const THREADS_MAX: usize = 1024;

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    within(text, 1..=COUNT_MAX)
}

/// Maybe none at all.
pub(super) fn any_count(text: &str) -> Result<usize, String> {
    within(text, 0..=COUNT_MAX)
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    within(text, 1..=THREADS_MAX)
}

fn within(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| range.contains(count));
    count.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
}

/// No time is longer, some thirty years: moments that far from now are still moments.
const SECONDS_MAX: f64 = 1e9;

/// A time limit; none is said by leaving it out.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s <= SECONDS_MAX);
    let seconds = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    let seconds = seconds.filter(|s| !s.is_zero());
    seconds.ok_or_else(|| format!("expected seconds, more than 0 and at most {SECONDS_MAX}"))
}

/// A time, maybe none at all.
pub(super) fn whole_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse::<u64>().ok().filter(|s| *s <= SECONDS_MAX as u64);
    seconds.ok_or_else(|| format!("expected whole seconds, at most {SECONDS_MAX}"))
}

/// `4096` or `32k` (vLLM's way of writing 32768 is 32K, of 32000 is 32k).
pub(super) fn parse_count(text: &str) -> Result<usize, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) if text.ends_with('K') => (number, 1024),
        Some(number) => (number, 1000),
        None => (text, 1),
    };
    let count: usize = number.parse().map_err(|_| "expected a number such as 4096 or 32k".to_string())?;
    let count = count.checked_mul(factor).filter(|n| (1..=COUNT_MAX).contains(n));
    count.ok_or_else(|| format!("expected a number from 1 to {COUNT_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("1.5GB"), Ok(1_500_000_000));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for bad in ["", "GiB", "2XB", "-1GiB", "1e3GB", "0"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn devices_and_links() {
        assert_eq!((device("cpu"), device("cpu*1")), (Ok(DeviceName::Cpu), Ok(DeviceName::CpuApart)));
        assert!(device("cpu*4").unwrap_err().contains("not built"));
        for bad in ["gpu", "cpu*", "cuda*1", "cpu*0", "cpu*x"] {
            assert!(device(bad).unwrap_err().contains("expected"), "{bad}");
        }
        assert_eq!(link_gbps("12.5"), Ok(12_500_000_000));
        for bad in ["0", "-1", "nan", "inf", "fast"] {
            assert!(link_gbps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_that_end() {
        assert_eq!(
            (seconds("0.5"), seconds("1e9")),
            (Ok(Duration::from_millis(500)), Ok(Duration::from_secs(1_000_000_000)))
        );
        assert_eq!((whole_seconds("0"), whole_seconds("1000000000")), (Ok(0), Ok(1_000_000_000)));
        for bad in ["0", "-1", "nan", "inf", "1e10", "1e19", "soon"] {
            assert!(seconds(bad).unwrap_err().contains("1000000000"), "{bad}");
        }
        for bad in ["-1", "1.5", "1000000001", "18446744073709551615", ""] {
            assert!(whole_seconds(bad).unwrap_err().contains("1000000000"), "{bad}");
        }
    }

    #[test]
    fn counts_with_k() {
        assert_eq!((parse_count("32k"), parse_count("4K"), parse_count("7")), (Ok(32000), Ok(4096), Ok(7)));
        assert!(parse_count("0").is_err() && parse_count("k").is_err());
    }
}
