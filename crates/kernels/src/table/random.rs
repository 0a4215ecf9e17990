//! Cases of shapes that are drawn: what nobody thought of. A seed draws the same ones everywhere.

use super::data::noise;

/// Numbers out of a seed, one after the other.
pub(super) struct Draw {
    seed: u64,
    drawn: usize,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Draw {
        Draw { seed, drawn: 0 }
    }

    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        (f64::from(noise(self.seed, self.drawn)) + 1.0) / 2.0
    }

    /// From `least` to `most`.
    pub(super) fn within(&mut self, least: usize, most: usize) -> usize {
        least + (self.unit() * (most - least + 1) as f64) as usize
    }

    /// The same, small numbers as often as large ones: each doubling is as likely.
    pub(super) fn by_size(&mut self, least: usize, most: usize) -> usize {
        let (least, most) = (least as f64, most as f64 + 1.0);
        ((least.ln() + self.unit() * (most / least).ln()).exp() as usize)
            .clamp(least as usize, most as usize - 1)
    }

    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_lies_within_and_reaches_both_ends() {
        let mut draw = Draw::new(3);
        let drawn: Vec<usize> = (0..200).map(|_| draw.within(2, 5)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&2), Some(&5)));
        let drawn: Vec<usize> = (0..2000).map(|_| draw.by_size(1, 600)).collect();
        assert_eq!(drawn.iter().min(), Some(&1));
        assert!(drawn.iter().any(|n| *n > 500) && drawn.iter().all(|n| *n <= 600));
        let small = drawn.iter().filter(|n| **n < 25).count();
        assert!((800..1200).contains(&small), "{small} of 2000 are in the lower half of doublings");
        assert_eq!(Draw::new(8).within(0, 1 << 20), Draw::new(8).within(0, 1 << 20));
    }
}
