//! How many threads a job is worth, where other processes use the processors too.
//!
//! All threads of a team wait for the slowest at every barrier. One that the system lets wait for a processor, for
//! milliseconds, thus holds up hundreds of jobs: two threads beside one busy process on two processors are four times
//! slower than one. So threads are taken back while that lasts.

use std::time::Duration;

/// After the first sign of a crowd, threads are taken back for so long.
const SHORTEST_REST: Duration = Duration::from_millis(250);
/// A crowd that stays is looked for this often.
const LONGEST_REST: Duration = Duration::from_secs(4);

/// How many threads take part, and when more are tried again.
#[derive(Debug)]
pub(super) struct Crowd {
    size: usize,
    threads: usize,
    /// The last number that nothing held up.
    calm: usize,
    /// Whether `threads` are a try.
    climbs: bool,
    rest: Duration,
    until: Duration,
}

impl Crowd {
    /// Of a team of so many.
    pub(super) fn new(size: usize) -> Crowd {
        let rest = SHORTEST_REST;
        Crowd { size, threads: size, calm: size, climbs: false, rest, until: Duration::ZERO }
    }

    /// Takes in how long threads waited for a processor since the last time, all of them together, as a share of the
    /// time. `now`: since some start. How many threads take part from now on.
    pub(super) fn judge(&mut self, now: Duration, waited: f64) -> usize {
        // As if no two of them ever waited at once. Fewer threads that nothing holds up would be faster; than one there are none.
        let works = (1.0 - waited).max(0.0) * self.threads as f64;
        let crowded = self.threads > 1 && works < fewer(self.threads) as f64;
        match (crowded, self.climbs) {
            (true, true) => {
                self.rest = (2 * self.rest).min(LONGEST_REST);
                self.settle(now, self.calm);
            }
            (true, false) => {
                self.rest = SHORTEST_REST;
                self.settle(now, fewer(self.threads));
            }
            (false, _) if self.threads == self.size => {
                (self.calm, self.climbs) = (self.size, false);
            }
            (false, climbs) => {
                self.calm = self.threads;
                if climbs || now >= self.until {
                    (self.threads, self.climbs) = (more(self.threads).min(self.size), true);
                }
            }
        }
        self.threads
    }

    fn settle(&mut self, now: Duration, threads: usize) {
        (self.threads, self.climbs, self.until) = (threads, false, now + self.rest);
    }
}

fn fewer(threads: usize) -> usize {
    (threads * 3 / 4).max(1)
}

fn more(threads: usize) -> usize {
    (threads * 4 / 3).max(threads + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a team of `size` fares for so many looks, 32 ms apart, where so many processors are free for it.
    fn looks(crowd: &mut Crowd, now: &mut Duration, looks: usize, free: usize) -> Vec<usize> {
        let look = |_| {
            *now += Duration::from_millis(32);
            let waited = crowd.threads.saturating_sub(free) as f64;
            crowd.judge(*now, waited)
        };
        (0..looks).map(look).collect()
    }

    #[test]
    fn a_team_alone_stays_whole() {
        let (mut crowd, mut now) = (Crowd::new(8), Duration::ZERO);
        assert_eq!(looks(&mut crowd, &mut now, 100, 8), [8; 100]);
        // One of eight a fifth of its time is less than what two threads fewer cost.
        assert_eq!(crowd.judge(now, 0.2), 8);
        assert_eq!(crowd.judge(now, 0.3), 6);
        let mut one = Crowd::new(1);
        assert_eq!(one.judge(now, 9.0), 1);
    }

    #[test]
    fn it_shrinks_to_what_is_free_and_grows_back() {
        for (size, free) in [(2, 1), (16, 15), (16, 3), (1000, 2)] {
            let (mut crowd, mut now) = (Crowd::new(size), Duration::ZERO);
            let shrinks = looks(&mut crowd, &mut now, 40, free);
            let least = *shrinks.iter().min().unwrap();
            assert!(least <= free && least > free / 2, "{size} where {free} are free: {shrinks:?}");
            looks(&mut crowd, &mut now, 1000, free);
            let later = looks(&mut crowd, &mut now, 1000, free);
            let held_up = later.iter().filter(|&&threads| threads > free).count();
            assert!(held_up < 20, "{size} where {free} are free: {held_up} looks of a thousand with more");
            let back = looks(&mut crowd, &mut now, 300, size);
            assert_eq!(back.last(), Some(&size), "{back:?}");
        }
    }

    /// A thread that sleeps is woken a little late each time, whatever else runs.
    #[test]
    fn one_thread_that_waits_a_little_is_no_crowd() {
        for (size, waited) in [(2, 1e-6), (2, 0.1), (16, 1e-3)] {
            let (mut crowd, mut now) = (Crowd::new(size), Duration::ZERO);
            let looks = |crowd: &mut Crowd, now: &mut Duration, looks: usize, waited: f64| {
                let look = |_| {
                    *now += Duration::from_millis(32);
                    crowd.judge(*now, waited)
                };
                (0..looks).map(look).collect::<Vec<usize>>()
            };
            assert_eq!(looks(&mut crowd, &mut now, 40, 0.9).iter().min(), Some(&1), "{size}");
            assert_eq!(looks(&mut crowd, &mut now, 200, waited).last(), Some(&size), "{size}, {waited}");
        }
    }

    #[test]
    fn more_are_used_when_more_are_free() {
        let (mut crowd, mut now) = (Crowd::new(16), Duration::ZERO);
        looks(&mut crowd, &mut now, 1000, 3);
        let later = looks(&mut crowd, &mut now, 1000, 9);
        assert!(
            later[200..].iter().filter(|&&threads| (7..=9).contains(&threads)).count() > 700,
            "{later:?}"
        );
    }
}
