//! Which two tokens become one, and which pair goes first.

/// What a pair becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    /// Lower goes first.
    pub(super) rank: u32,
    /// The token that both become.
    pub(super) id: u32,
}

/// Pairs in order of their left token, then of their right one.
#[derive(Default)]
pub(super) struct Merges {
    /// Where the pairs of each left token begin, and where those of the last one end.
    starts: Vec<u32>,
    rights: Vec<u32>,
    merged: Vec<Merged>,
}

impl Merges {
    /// Pairs and what they become, best first, of tokens below `places`. Of a pair that is there twice the later one counts.
    pub(super) fn new(places: usize, best_first: &[((u32, u32), u32)]) -> Merges {
        let mut order: Vec<u32> = (0..best_first.len() as u32).collect();
        let pair = |rank: u32| best_first[rank as usize].0;
        order.sort_unstable_by_key(|&rank| (pair(rank), std::cmp::Reverse(rank)));
        order.dedup_by_key(|rank| pair(*rank));
        let before = |left: usize| order.partition_point(|&rank| (pair(rank).0 as usize) < left) as u32;
        Merges {
            starts: (0..=places).map(before).collect(),
            rights: order.iter().map(|&rank| pair(rank).1).collect(),
            merged: order.iter().map(|&rank| Merged { rank, id: best_first[rank as usize].1 }).collect(),
        }
    }

    pub(super) fn of(&self, left: u32, right: u32) -> Option<Merged> {
        let first = *self.starts.get(left as usize)? as usize;
        let end = *self.starts.get(left as usize + 1)? as usize;
        let found = self.rights[first..end].binary_search(&right).ok()?;
        Some(self.merged[first + found])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_alike_counts() {
        let merges = Merges::new(5, &[((0, 1), 2), ((3, 0), 1), ((0, 3), 4), ((0, 1), 4)]);
        assert_eq!(merges.of(0, 1), Some(Merged { rank: 3, id: 4 }));
        assert_eq!(merges.of(0, 3), Some(Merged { rank: 2, id: 4 }));
        assert_eq!(merges.of(3, 0), Some(Merged { rank: 1, id: 1 }));
        assert_eq!((merges.of(1, 0), merges.of(4, 0), merges.of(9, 0)), (None, None, None));
        assert_eq!(Merges::default().of(0, 0), None);
    }
}
