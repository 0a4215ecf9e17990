//! Things that workers take one after the other until none is left.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a worker takes some, at the least, where several are taken at once; and how many those are at the most.
const TAKES: usize = 4;
const MOST_AT_ONCE: usize = 24;

/// `0..n` in a stretch for each worker: it begins with its own, since memory that is read on and on comes faster, and goes on
/// with what the others have left of theirs.
pub(crate) struct Stretches(Vec<Stretch>);

/// On lines of memory of its own.
#[repr(align(128))]
struct Stretch {
    /// The first that nobody has taken; beyond the end once all are.
    next: AtomicUsize,
    end: usize,
    /// How many are taken at once.
    grain: usize,
}

impl Stretches {
    /// `grain`: how many are taken at once, from multiples of it on.
    pub(crate) fn new(n: usize, grain: usize, workers: usize) -> Stretches {
        let grains = n.div_ceil(grain);
        let start = |i: usize| (i * grains / workers * grain).min(n);
        let stretch = |i: usize| Stretch { next: AtomicUsize::new(start(i)), end: start(i + 1), grain };
        Stretches((0..workers).map(stretch).collect())
    }

    /// Several at once, a multiple of `of`, and yet so few that each worker takes four times or more, where there are enough: one
    /// may be slower than another.
    pub(crate) fn several(n: usize, of: usize, workers: usize) -> Stretches {
        Stretches::new(n, (n / (TAKES * workers) / of * of).clamp(of, MOST_AT_ONCE), workers)
    }

    /// The same for each of so many times that `0..n` is done, one by one.
    pub(crate) fn times(times: usize, n: usize, workers: usize) -> Vec<Stretches> {
        (0..times).map(|_| Stretches::new(n, 1, workers)).collect()
    }

    /// How many nobody has taken yet.
    pub(crate) fn left(&self) -> usize {
        let left = |stretch: &Stretch| stretch.end.saturating_sub(stretch.next.load(Ordering::Relaxed));
        self.0.iter().map(left).sum()
    }

    /// What worker `me` gets to do, asked for when it has done what it got before, or a little earlier. Any worker may take part.
    pub(crate) fn of(&self, me: usize) -> impl Iterator<Item = Range<usize>> {
        let own = me % self.0.len();
        let order = self.0[own..].iter().chain(&self.0[..own]);
        order.flat_map(|stretch| std::iter::from_fn(move || stretch.take()))
    }
}

impl Stretch {
    fn take(&self) -> Option<Range<usize>> {
        let first = self.next.fetch_add(self.grain, Ordering::Relaxed);
        (first < self.end).then(|| first..(first + self.grain).min(self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> impl Iterator<Item = (usize, usize, usize)> {
        let grains = (1..4).flat_map(|grain| (1..5).map(move |workers| (grain, workers)));
        grains.flat_map(|(grain, workers)| (0..40).map(move |n| (n, grain, workers)))
    }

    #[test]
    fn a_worker_alone_gets_everything_once_and_its_own_first() {
        for (n, grain, workers) in sizes() {
            for me in 0..workers {
                let stretches = Stretches::new(n, grain, workers);
                assert_eq!(stretches.left(), n);
                let got: Vec<usize> = stretches.of(me).flatten().collect();
                assert_eq!(stretches.left(), 0);
                let mut sorted = got.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n).collect::<Vec<_>>(), "{n} {grain} {workers}");
                assert!(got.iter().is_sorted() || me > 0, "the first one's stretch is the first");
                assert!(n < grain * workers || got[0] == me * n.div_ceil(grain) / workers * grain);
            }
        }
    }

    #[test]
    fn several_are_taken_at_once_and_often_enough() {
        let grain = |n, of, workers| Stretches::several(n, of, workers).of(0).next().map(|first| first.len());
        assert_eq!(
            [(96, 3, 2), (352, 3, 2), (18, 3, 2), (18, 2, 2), (5, 2, 1)].map(|(n, of, w)| grain(n, of, w)),
            [12, 24, 3, 2, 2].map(Some)
        );
        assert_eq!(grain(0, 3, 2), None);
    }

    #[test]
    fn workers_share_without_gaps() {
        for (n, grain, workers) in sizes() {
            let stretches = Stretches::new(n, grain, workers);
            let mut hands: Vec<_> = (0..workers).map(|me| stretches.of(me)).collect();
            let (mut got, mut turn) = (vec![], 0);
            while got.len() < n {
                let taken: Vec<usize> = hands[turn % workers].next().into_iter().flatten().collect();
                assert!(taken.first().is_none_or(|first| first % grain == 0), "from multiples on");
                got.extend(taken);
                // The first worker is twice as fast.
                turn += if turn % (workers + 1) == 0 { workers } else { 1 };
            }
            got.sort_unstable();
            assert_eq!(got, (0..n).collect::<Vec<_>>(), "{n} {grain} {workers}");
            assert!(hands.iter_mut().all(|hand| hand.next().is_none()));
        }
    }
}
