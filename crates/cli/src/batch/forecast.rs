//! How long it will take, and how well that was foretold.

use engine::job::Tally;

/// Below this share of the work nothing is foretold.
const LEAST: f64 = 0.02;
/// A line under way never counts as finished, however many tokens it has.
const ALMOST: f64 = 0.95;

/// Foretells the end from the work done: lines with an answer, whether it is written or waits for that of an earlier line, and
/// shares of those under way. A share is taken from how many tokens lines had so far on average; without that knowledge lines
/// under way count nothing, and where most of what is left are lines that have that many already nothing is foretold: those that
/// ended were the short ones. Lines that are answered with errors are no work: most of them take no time.
#[derive(Debug, Default)]
pub(super) struct Forecast {
    /// What was foretold of the whole time, in seconds, when half of the work was done.
    at_half: Option<f64>,
}

impl Forecast {
    /// Seconds left after `seconds` of work, if that can be told.
    pub(super) fn left(&mut self, tally: &Tally, seconds: f64) -> Option<f64> {
        let share = share(tally)?;
        if share < LEAST {
            return None;
        }
        let whole = seconds / share;
        if share >= 0.5 {
            self.at_half.get_or_insert(whole);
        }
        Some(whole - seconds)
    }

    /// By how much the time foretold at half was longer than it came to be, as a share of it.
    pub(super) fn error(&self, seconds: f64) -> Option<f64> {
        self.at_half.map(|foretold| foretold / seconds - 1.0)
    }
}

/// The share of this run's work that is done.
fn share(tally: &Tally) -> Option<f64> {
    let done = tally.answered.saturating_sub(tally.answered_badly);
    let all = (tally.lines - tally.earlier).saturating_sub(tally.answered_badly);
    let mean = if done > 0 { tally.answered_tokens as f64 / done as f64 } else { 0.0 };
    let n = tally.under_way as f64;
    let finished = if mean > 0.0 { tally.tokens_under_way as f64 / mean } else { 0.0 };
    let begun = tally.under_way + done;
    if n > 0.0 && finished >= ALMOST * n && tally.under_way > all.saturating_sub(begun) {
        return None;
    }
    let under_way = finished.min(ALMOST * n);
    (all > 0).then(|| (done as f64 + under_way) / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(done: usize, under_way: usize, tokens_under_way: u64) -> Tally {
        Tally {
            lines: 120,
            earlier: 20,
            done: 20,
            failed: 20,
            answered: done,
            answered_tokens: 10 * done as u64,
            under_way,
            tokens_under_way,
            ..Tally::default()
        }
    }

    #[test]
    fn earlier_answers_are_no_work_and_lines_that_wait_or_are_under_way_are_some() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.left(&tally(0, 50, 400), 5.0), None, "nothing is known yet");
        assert_eq!(forecast.left(&tally(10, 0, 0), 5.0), Some(45.0));
        assert_eq!(forecast.left(&tally(10, 50, 100), 5.0), Some(20.0));
        assert_eq!(forecast.left(&tally(10, 10, 1000), 39.0), Some(161.0), "none is finished before it is");
        assert_eq!(forecast.left(&tally(45, 50, 1000), 39.0), None, "the short ones have ended");
        let badly = Tally { answered: 20, answered_badly: 10, ..tally(10, 40, 200) };
        assert_eq!(forecast.left(&badly, 20.0), Some(40.0), "30 of 90");
        let only = Tally { answered: 50, answered_badly: 50, ..tally(0, 50, 400) };
        assert_eq!(forecast.left(&only, 20.0), None, "errors tell nothing of the others");
    }

    #[test]
    fn what_was_foretold_at_half_is_judged() {
        let mut forecast = Forecast::default();
        forecast.left(&tally(40, 0, 0), 10.0);
        assert_eq!(forecast.error(30.0), None);
        forecast.left(&tally(50, 0, 0), 12.0);
        forecast.left(&tally(90, 0, 0), 29.0);
        assert_eq!(forecast.error(30.0), Some(24.0 / 30.0 - 1.0));
    }
}
