//! How many blocks sequences will need at most, if each grows by a position a step until it ends.

use spec::{BLOCK_TOKENS, Tokens};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A sequence as it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Positions now.
    pub now: Tokens,
    /// Steps that it still grows for; then it ends.
    pub steps: Tokens,
}

impl Growth {
    /// Steps that it is there for, this one with them.
    pub fn life(self) -> u64 {
        u64::from(self.steps.0) + 1
    }

    /// Blocks that it holds from now to its end, summed over steps: its share of the hold.
    pub fn block_steps(self) -> u64 {
        // Blocks of 1 to n positions, summed: full rows of 32, then the rest.
        let upto = |n: u64| {
            let (rows, rest, row) =
                (n / u64::from(BLOCK_TOKENS.0), n % u64::from(BLOCK_TOKENS.0), u64::from(BLOCK_TOKENS.0));
            row * rows * (rows + 1) / 2 + rest * (rows + 1)
        };
        let (now, end) = (u64::from(self.now.0), u64::from((self.now + self.steps).0));
        upto(end) - upto(now.saturating_sub(1))
    }
}

/// Sequences that share a hold, as they will be. Those that are alike are counted together: of a thousand that differ by how
/// far they are there are few.
#[derive(Clone, Debug, Default)]
pub struct Growths {
    /// How many there are with so many steps left and so many positions, the longest lives first.
    alike: BTreeMap<(Reverse<Tokens>, Tokens), usize>,
}

impl Growths {
    /// One more.
    pub fn add(&mut self, growth: Growth) {
        *self.alike.entry((Reverse(growth.steps), growth.now)).or_default() += 1;
    }

    /// Takes away one that was added; nothing if there is none like it.
    pub fn remove(&mut self, growth: Growth) {
        let key = (Reverse(growth.steps), growth.now);
        if let Some(count) = self.alike.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.alike.remove(&key);
            }
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.alike.is_empty()
    }

    /// The most blocks that they hold together at any time from now on. It is reached just before one of them ends.
    pub fn peak_blocks(&self) -> usize {
        let row = BLOCK_TOKENS.0 as usize;
        // Whole blocks now, and how many have so many positions beyond them.
        let (mut whole, mut beyond) = (0, [0_usize; BLOCK_TOKENS.0 as usize]);
        let (mut peak, mut alike) = (0, self.alike.iter().peekable());
        while let Some((&(steps, now), &count)) = alike.next() {
            whole += count * now.full_blocks();
            beyond[now.0 as usize % row] += count;
            let ends_with_next = alike.peek().is_some_and(|((next, _), _)| *next == steps);
            if !ends_with_next {
                let steps = steps.0.0 as usize;
                let blocks = |(rest, count): (usize, &usize)| count * (rest + steps).div_ceil(row);
                peak = peak.max(whole + beyond.iter().enumerate().map(blocks).sum::<usize>());
            }
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(now: u32, steps: u32) -> Growth {
        Growth { now: Tokens(now), steps: Tokens(steps) }
    }

    #[test]
    fn the_peak_is_that_of_a_simulation() {
        // A small generator of numbers: any sequence will do.
        let mut state = 7_u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        for _ in 0..200 {
            let growths: Vec<_> = (0..1 + below(9)).map(|_| growth(below(150), below(100))).collect();
            let at = |t: u32| -> usize {
                let alive = growths.iter().filter(|g| g.steps.0 >= t);
                alive.map(|g| (g.now + Tokens(t)).blocks()).sum()
            };
            let simulated = (0..100).map(at).max();
            let mut all = Growths::default();
            growths.iter().for_each(|&growth| all.add(growth));
            assert_eq!(Some(all.peak_blocks()), simulated);
            let more = growth(below(150), below(100));
            all.add(more);
            assert!(Some(all.peak_blocks()) >= simulated);
            all.remove(more);
            assert_eq!(Some(all.peak_blocks()), simulated);
            growths.iter().for_each(|&growth| all.remove(growth));
            assert!(all.is_empty() && all.peak_blocks() == 0);
        }
    }

    #[test]
    fn block_steps_are_summed_over_its_life() {
        for (now, steps) in [(1, 0), (31, 3), (32, 0), (33, 100), (0, 5), (640, 1000)] {
            let summed: usize = (0..=steps).map(|t| Tokens(now + t).blocks()).sum();
            assert_eq!(growth(now, steps).block_steps(), summed as u64, "{now} and {steps}");
        }
    }
}
