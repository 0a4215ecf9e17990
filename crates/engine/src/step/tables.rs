//! Which blocks each sequence has, as the steps say: the engine's own copy of the block tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use spec::{Chunk, KvGroups, Move, Piece, SeqId, Step, Tier};

/// By group of layers, blocks in order of position.
pub(crate) type ByGroup = Vec<Arc<Vec<u32>>>;

/// Tables of all sequences that hold blocks.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    groups: KvGroups,
    of: BTreeMap<SeqId, Table>,
}

/// The blocks of a sequence.
#[derive(Debug)]
struct Table {
    home: Tier,
    blocks: ByGroup,
    /// Blocks of the new home, as far as a move in pieces has come.
    arriving: Vec<u32>,
}

impl Tables {
    /// No tables yet, of layers in these groups.
    pub(crate) fn new(groups: KvGroups) -> Tables {
        Tables { groups, of: BTreeMap::new() }
    }

    /// Takes over a step's releases, then its moves, then its new blocks; returns each chunk's table, in order of
    /// the chunks.
    pub(crate) fn apply(&mut self, step: &Step) -> Vec<ByGroup> {
        for seq in &step.release {
            self.of.remove(seq);
        }
        step.moves.iter().for_each(|m| self.move_piece(m));
        step.chunks().map(|chunk| self.extend(chunk)).collect()
    }

    fn move_piece(&mut self, piece: &Move) {
        let table = self.of.get_mut(&piece.seq);
        let table = table.unwrap_or_else(|| panic!("sequence {} is moved and holds nothing", piece.seq));
        assert_eq!(table.home, piece.from, "sequence {} is moved from where it is not", piece.seq);
        table.arriving.extend(piece.blocks.iter().map(|(_, to)| to.0));
        if piece.piece == Piece::Last {
            table.blocks = vec![Arc::new(std::mem::take(&mut table.arriving))];
            table.home = piece.to;
        }
    }

    /// # Panics
    /// If the sequence lives elsewhere.
    fn extend(&mut self, chunk: &Chunk) -> ByGroup {
        let groups = self.groups;
        let fresh =
            Table { home: chunk.home, blocks: vec![Arc::default(); groups.count()], arriving: Vec::new() };
        let table = self.of.entry(chunk.seq).or_insert(fresh);
        assert_eq!(table.home, chunk.home, "sequence {} is computed where it does not live", chunk.seq);
        let (first, passed) = (table.blocks[0].len(), groups.passed(chunk.span.start));
        for (place, block) in chunk.new_blocks.iter().enumerate() {
            let (group, number) = groups.place(place, first, passed);
            let group = Arc::make_mut(&mut table.blocks[group]);
            group.resize(number, 0);
            group.push(block.0);
        }
        // Others write what was passed: where a kernel reads a little more than it needs, it finds what is this sequence's own.
        for group in &mut table.blocks[groups.full..] {
            let own = group[passed];
            if group[..passed].last().is_some_and(|last| *last != own) {
                Arc::make_mut(group)[..passed].fill(own);
            }
        }
        table.blocks.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{BlockId, Layout, Pipeline, ReplicaId, Sampling, Span, StepId, Tokens};

    fn step(release: &[u64], moves: Vec<Move>, chunks: &[(u64, &[u32])]) -> Step {
        let chunk = |&(seq, blocks): &(u64, &[u32])| Chunk {
            seq: SeqId(seq),
            span: Span { start: Tokens(0), len: Tokens(1) },
            home: Tier::Device,
            attend: Tier::Device,
            new_blocks: blocks.iter().map(|b| BlockId(*b)).collect(),
            sample: Sampling::Skip,
        };
        Step {
            id: StepId(1),
            replica: ReplicaId(0),
            layout: Layout::SINGLE,
            pipeline: Pipeline::Plain,
            batches: vec![chunks.iter().map(chunk).collect()],
            moves,
            kept: Vec::new(),
            release: release.iter().map(|s| SeqId(*s)).collect(),
        }
    }

    fn moved(seq: u64, (from, to): (Tier, Tier), pairs: &[(u32, u32)], piece: Piece) -> Move {
        let blocks = pairs.iter().map(|(a, b)| (BlockId(*a), BlockId(*b))).collect();
        Move { seq: SeqId(seq), from, to, blocks, piece }
    }

    fn shared<const N: usize>(groups: [Vec<u32>; N]) -> ByGroup {
        groups.map(Arc::new).into()
    }

    #[test]
    fn tables_grow_and_a_release_comes_first() {
        let mut tables = Tables::default();
        assert_eq!(
            tables.apply(&step(&[], vec![], &[(1, &[4, 7]), (2, &[])])),
            [[vec![4, 7]], [vec![]]].map(shared)
        );
        assert_eq!(tables.apply(&step(&[], vec![], &[(1, &[9])])), [shared([vec![4, 7, 9]])]);
        assert_eq!(tables.apply(&step(&[1], vec![], &[(1, &[2])])), [shared([vec![2]])]);
    }

    #[test]
    fn a_move_changes_the_table_with_its_last_piece() {
        let (out, back) = ((Tier::Device, Tier::Host), (Tier::Host, Tier::Device));
        let mut tables = Tables::default();
        tables.apply(&step(&[], vec![], &[(1, &[4, 7, 9])]));
        tables.apply(&step(&[], vec![moved(1, out, &[(4, 0), (7, 1)], Piece::More)], &[]));
        tables.apply(&step(&[], vec![moved(1, out, &[(9, 5)], Piece::Last)], &[]));
        let home = vec![moved(1, back, &[(0, 3), (1, 2), (5, 8)], Piece::Last)];
        assert_eq!(tables.apply(&step(&[], home, &[(1, &[6])])), [shared([vec![3, 2, 8, 6]])]);
    }

    /// One group that keeps all, and two that keep a block behind the next position.
    #[test]
    fn groups_with_a_window_have_blocks_of_their_own_where_they_do_not_look() {
        let (behind, ahead) = (Tokens(32), Tokens(64));
        let mut tables = Tables::new(KvGroups { full: 1, sliding: 2, behind, ahead });
        let at = |start, blocks: &[u32]| {
            let mut step = step(&[], vec![], &[(1, blocks)]);
            step.batches[0][0].span.start = Tokens(start);
            step
        };
        // It begins with three blocks that others computed, of which the sliding groups need the last alone.
        let begun = tables.apply(&at(96, &[3, 4, 5, 6, 7, 8, 9, 10]));
        assert_eq!(begun, [shared([vec![3, 4, 5, 8], vec![6, 6, 6, 9], vec![7, 7, 7, 10]])]);
        let later = tables.apply(&at(128, &[20, 21, 22]));
        assert_eq!(later, [shared([vec![3, 4, 5, 8, 20], vec![9, 9, 9, 9, 21], vec![10, 10, 10, 10, 22]])]);
    }
}
