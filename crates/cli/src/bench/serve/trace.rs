//! Recorded request lengths and arrivals, as CSV with a header.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::counted;

use crate::console::{note, text_of};

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    /// Since the first, if the trace has times.
    pub(super) at: Option<Duration>,
    pub(super) input_len: usize,
    pub(super) output_len: usize,
}

/// Names of columns, in lower case: Azure's, Vidur's, and plain ones.
pub(super) const TIMES: [&str; 4] = ["timestamp", "arrival", "arrived_at", "time"];
const INPUTS: [&str; 4] = ["contexttokens", "prompt_tokens", "num_prefill_tokens", "input_length"];
const OUTPUTS: [&str; 4] = ["generatedtokens", "output_tokens", "num_decode_tokens", "output_length"];

/// Reads a trace; its rows are in order of arrival. Those that ask for nothing are left out.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    let text = text_of(path)?;
    let (rows, empty) = parse(&text).with_context(|| format!("{} is no trace", path.display()))?;
    if empty > 0 {
        let all = counted(rows.len() + empty, "request");
        note!("{empty} of {all} of the trace left out, of 0 tokens in or out");
    }
    Ok(rows)
}

/// The rows of a trace, and how many more have a length of 0: recorded requests may have failed, or have been broken off.
fn parse(text: &str) -> Result<(Vec<Row>, usize)> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let header = lines.next().map_or("", |(_, line)| line).to_ascii_lowercase();
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let column = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
    let (Some(input), Some(output)) = (column(&INPUTS), column(&OUTPUTS)) else {
        bail!(
            "expected a header that names {} and {}, found `{header}`",
            INPUTS.join(" or "),
            OUTPUTS.join(" or ")
        );
    };
    let time = column(&TIMES);
    let (mut rows, mut empty) = (Vec::<(f64, usize, usize)>::new(), 0);
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or_default();
        let count = |at| field(at).parse::<usize>().ok();
        let at = time.map_or(Some(0.0), |at| seconds(field(at)));
        let (Some(at), Some(input), Some(output)) = (at, count(input), count(output)) else {
            bail!("line {number}: expected a time and lengths, found `{line}`");
        };
        match input.min(output) {
            0 => empty += 1,
            _ => rows.push((at, input, output)),
        }
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let first = rows.first().map_or(0.0, |row| row.0);
    let since = |at: f64| time.map(|_| Duration::from_secs_f64((at - first).min(1e9)));
    let row = |(at, input_len, output_len)| Row { at: since(at), input_len, output_len };
    Ok((rows.into_iter().map(row).collect(), empty))
}

/// Plain seconds, or `2023-11-16 18:17:03.9799600`, maybe with a zone (`+00:00`), as seconds since some moment.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let (date, clock) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, ahead) = zoned(clock)?;
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(0..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // A year that begins in March ends with the leap day.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second - ahead)
}

/// A time of day without its zone, and by how many seconds that is ahead of UTC: `Z` and none are not.
fn zoned(clock: &str) -> Option<(&str, f64)> {
    let clock = clock.trim_end_matches('Z');
    let Some(at) = clock.rfind(['+', '-']) else { return Some((clock, 0.0)) };
    let (clock, zone) = clock.split_at(at);
    let (hours, minutes) = zone[1..].split_once(':')?;
    let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
    let ahead = f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0;
    (hours < 24 && minutes < 60).then_some((clock, if zone.starts_with('-') { -ahead } else { ahead }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_lengths_are_read() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-28 23:59:59.5,10,2\n2024-03-01 00:00:01.0,20,3\n";
        let at = |ms| Some(Duration::from_millis(ms));
        let (rows, _) = parse(azure).unwrap();
        assert_eq!(rows[0], Row { at: at(0), input_len: 10, output_len: 2 });
        assert_eq!(
            rows[1],
            Row { at: at(86_400_000 + 1500), input_len: 20, output_len: 3 },
            "over a leap day"
        );
        let (plain, _) = parse("prompt_tokens,output_tokens\r\n5,6\r\n").unwrap();
        assert_eq!(plain, [Row { at: None, input_len: 5, output_len: 6 }]);
        let (sorted, _) =
            parse("arrived_at,num_prefill_tokens,num_decode_tokens\n3.5,1,1\n1.5,2,2\n").unwrap();
        assert_eq!((sorted[0].at, sorted[1].at, sorted[0].input_len), (at(0), at(2000), 2));
    }

    #[test]
    fn zones_are_understood_and_rows_of_nothing_left_out() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                     2024-05-12 00:00:00.001163+00:00,9,0\n\
                     2024-05-12 00:00:01.500000+00:00,10,2\n\
                     2024-05-12 00:00:02Z,0,4\n\
                     2024-05-12T02:00:02+02:00,20,3\n\
                     2024-05-11 22:30:03-01:30,30,4\n";
        let (rows, empty) = parse(azure).unwrap();
        let at: Vec<_> = rows.iter().map(|row| (row.at.unwrap().as_millis(), row.input_len)).collect();
        assert_eq!((at, empty), (vec![(0, 10), (500, 20), (1500, 30)], 2));
        assert_eq!(parse("prompt_tokens,output_tokens\n0,5\n").unwrap(), (vec![], 1));
        for wrong in ["+2", "+aa:00", "+24:00", "-00:60", "+00:00:00"] {
            assert_eq!(seconds(&format!("2024-05-12 00:00:01{wrong}")), None, "{wrong}");
        }
    }

    #[test]
    fn the_traces_that_come_along_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/traces");
        for (name, rows, timed) in [
            ("azure-conv-2023.csv", 2000, true),
            ("azure-code-2023.csv", 1000, true),
            ("osc.csv", 2000, false),
        ] {
            let trace = read(&folder.join(name)).unwrap();
            assert_eq!((trace.len(), trace.iter().all(|row| row.at.is_some())), (rows, timed), "{name}");
        }
    }

    #[test]
    fn what_is_no_trace_is_named() {
        for (text, says) in [
            ("", "expected a header"),
            ("a,b\n1,2\n", "found `a,b`"),
            ("prompt_tokens,output_tokens\n-1,5\n", "line 2"),
            ("prompt_tokens,output_tokens\n5\n", "line 2"),
            ("timestamp,prompt_tokens,output_tokens\nyesterday,5,5\n", "yesterday"),
            ("timestamp,prompt_tokens,output_tokens\nnan,5,5\n", "nan"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
