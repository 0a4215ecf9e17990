//! Ranges of the device's memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Addresses that share something; none that touch each other are kept apart.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The pieces of a range that are among these, in order.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..range.start).next_back();
        let all = before.into_iter().chain(self.0.range(range.start..range.end));
        let cut = all.map(|(start, end)| range.start.max(*start)..range.end.min(*end));
        cut.filter(|piece| !piece.is_empty()).collect()
    }

    /// The pieces of a range that are not, in order.
    pub(crate) fn without(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut at = range.start;
        let within = self.within(range).into_iter().chain(std::iter::once(range.end..range.end));
        let gap = |piece: Range<u64>| std::mem::replace(&mut at, piece.end)..piece.start;
        within.map(gap).filter(|piece| !piece.is_empty()).collect()
    }

    pub(crate) fn add(&mut self, range: &Range<u64>) {
        let touching = range.start.saturating_sub(1)..range.end + 1;
        let joined = self
            .take(&touching)
            .into_iter()
            .fold(range.clone(), |joined, piece| joined.start.min(piece.start)..joined.end.max(piece.end));
        self.0.insert(joined.start, joined.end);
    }

    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        for piece in self.take(range) {
            let left = [piece.start..range.start.min(piece.end), range.end.max(piece.start)..piece.end];
            self.0
                .extend(left.into_iter().filter(|left| !left.is_empty()).map(|left| (left.start, left.end)));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes out all that overlap a range, whole.
    fn take(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let starts = self.0.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        let starts: Vec<u64> = starts.map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| self.0.remove(&start).map(|end| start..end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[Range<u64>]) -> Ranges {
        Ranges(all.iter().map(|range| (range.start, range.end)).collect())
    }

    #[test]
    fn what_touches_becomes_one_and_what_is_taken_out_leaves_its_ends() {
        let mut some = Ranges::default();
        [10..20, 30..40, 20..30, 50..60].iter().for_each(|range| some.add(range));
        assert_eq!(some, ranges(&[10..40, 50..60]));
        some.add(&(35..55));
        assert_eq!(some, ranges(std::slice::from_ref(&(10..60))));
        some.remove(&(20..25));
        some.remove(&(0..12));
        some.remove(&(58..90));
        assert_eq!(some, ranges(&[12..20, 25..58]));
        some.remove(&(5..70));
        assert_eq!(some, Ranges::default());
    }

    #[test]
    fn a_range_falls_into_what_is_there_and_what_is_not() {
        let some = ranges(&[10..20, 30..40]);
        let ends = |all: Vec<Range<u64>>| all.iter().map(|one| (one.start, one.end)).collect::<Vec<_>>();
        let cut = |range: Range<u64>| (ends(some.within(&range)), ends(some.without(&range)));
        assert_eq!(cut(15..35), (vec![(15, 20), (30, 35)], vec![(20, 30)]));
        assert_eq!(cut(12..18), (vec![(12, 18)], vec![]));
        assert_eq!(cut(20..30), (vec![], vec![(20, 30)]));
        assert_eq!(cut(0..50), (vec![(10, 20), (30, 40)], vec![(0, 10), (20, 30), (40, 50)]));
    }
}
