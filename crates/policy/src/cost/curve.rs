//! Times that were measured at some sizes, and what lies between them.

use serde::{Deserialize, Serialize};

/// Seconds over a size (rows, bytes, positions). Between two measured sizes it is a straight line, below the smallest it
/// is that one's time, beyond the largest it grows in proportion. It never falls: a smaller size that was measured to be
/// slower takes as long as the larger one, for noise only ever adds to a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(f64, f64)>", into = "Vec<(f64, f64)>")]
pub struct Curve(Vec<(f64, f64)>);

impl From<Vec<(f64, f64)>> for Curve {
    fn from(points: Vec<(f64, f64)>) -> Self {
        Curve::new(points)
    }
}

impl From<Curve> for Vec<(f64, f64)> {
    fn from(curve: Curve) -> Self {
        curve.0
    }
}

impl Curve {
    /// Through these points of (size, seconds), in any order. Points that are not finite, or whose size is not above zero,
    /// are left out.
    pub fn new(mut points: Vec<(f64, f64)>) -> Self {
        points.retain(|(size, seconds)| size.is_finite() && *size > 0.0 && seconds.is_finite());
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|later, kept| later.0 == kept.0);
        let mut shortest = f64::INFINITY;
        for (_, seconds) in points.iter_mut().rev() {
            shortest = shortest.min(seconds.max(0.0));
            *seconds = shortest;
        }
        Curve(points)
    }

    /// A time that is proportional to the size: `per_second` of it in each.
    pub fn rate(per_second: f64) -> Self {
        Curve::new(vec![(1e-9, 1e-9 / per_second)])
    }

    /// Seconds for a size; none for nothing, or where nothing was measured.
    pub fn at(&self, size: f64) -> f64 {
        let (Some(&first), Some(&last)) = (self.0.first(), self.0.last()) else { return 0.0 };
        if size <= 0.0 {
            return 0.0;
        }
        if size <= first.0 {
            return first.1;
        }
        if size >= last.0 {
            return last.1 * size / last.0;
        }
        let above = self.0.partition_point(|point| point.0 <= size);
        let ((x0, y0), (x1, y1)) = (self.0[above - 1], self.0[above]);
        y0 + (y1 - y0) * (size - x0) / (x1 - x0)
    }

    /// The same where everything takes `factor` times as long.
    pub fn times(self, factor: f64) -> Self {
        Curve::new(self.0.into_iter().map(|(size, seconds)| (size, seconds * factor)).collect())
    }

    /// The same where work can be done in pieces: no size takes longer than as many of a smaller one as come to it. What
    /// was measured to take longer was disturbed.
    pub fn in_pieces(self) -> Self {
        let mut points = self.0;
        for i in 1..points.len() {
            let (smaller, this) = points.split_at_mut(i);
            let (size, seconds) = &mut this[0];
            let in_pieces = smaller.iter().map(|(piece, seconds)| (*size / piece).ceil() * seconds);
            *seconds = in_pieces.fold(*seconds, f64::min);
        }
        Curve::new(points)
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was measured, smallest first.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Size per second at the largest that was measured.
    pub fn best_rate(&self) -> f64 {
        self.0.iter().map(|(size, seconds)| size / seconds.max(1e-12)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straight_between_clamped_below_proportional_beyond() {
        let curve = Curve::new(vec![(4.0, 2.0), (1.0, 1.0), (8.0, 6.0)]);
        let at = [0.0, 0.5, 1.0, 2.5, 4.0, 6.0, 8.0, 16.0].map(|size| curve.at(size));
        assert_eq!(at, [0.0, 1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 12.0]);
    }

    #[test]
    fn noise_does_not_make_more_work_faster() {
        let curve = Curve::new(vec![(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 5.0)]);
        assert_eq!((curve.at(1.5), curve.at(2.5), curve.at(3.5)), (1.5, 2.0, 3.5));
        let disturbed = Curve::new(vec![(1.0, 50.0), (2.0, 1.0), (4.0, -1.0)]);
        assert_eq!(disturbed.points(), [(1.0, 0.0), (2.0, 0.0), (4.0, 0.0)]);
        let sizes = (0..100).map(|i| curve.at(f64::from(i) / 10.0)).collect::<Vec<_>>();
        assert!(sizes.is_sorted());
    }

    #[test]
    fn what_can_be_done_in_pieces_takes_no_longer_than_they() {
        let curve =
            Curve::new(vec![(1.0, 1.0), (8.0, 2.0), (64.0, 9.0), (100.0, 80.0), (256.0, 90.0)]).in_pieces();
        assert_eq!(curve.points(), [(1.0, 1.0), (8.0, 2.0), (64.0, 9.0), (100.0, 18.0), (256.0, 36.0)]);
    }

    #[test]
    fn what_was_not_measured_costs_nothing_and_nonsense_is_left_out() {
        assert_eq!(Curve::default().at(5.0), 0.0);
        let curve = Curve::new(vec![(0.0, 1.0), (f64::NAN, 1.0), (2.0, f64::INFINITY), (2.0, 3.0)]);
        assert_eq!(curve.points(), [(2.0, 3.0)]);
        assert!((Curve::rate(4.0).at(8.0) - 2.0).abs() < 1e-12);
    }
}
