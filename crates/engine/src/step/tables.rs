//! Which blocks each sequence has, as the steps say: the engine's own copy of the block tables.

use std::collections::BTreeMap;

use spec::{Chunk, Move, Piece, SeqId, Step, Tier};

/// Tables of all sequences that hold blocks.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    of: BTreeMap<SeqId, Table>,
}

/// The blocks of a sequence, in order of position.
#[derive(Debug)]
struct Table {
    home: Tier,
    blocks: Vec<u32>,
    /// Blocks of the new home, as far as a move in pieces has come.
    arriving: Vec<u32>,
}

impl Tables {
    /// Takes over a step's releases, then its moves, then its new blocks; returns each chunk's table, in order of
    /// the chunks.
    pub(crate) fn apply(&mut self, step: &Step) -> Vec<Vec<u32>> {
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
            table.blocks = std::mem::take(&mut table.arriving);
            table.home = piece.to;
        }
    }

    /// # Panics
    /// If the sequence lives elsewhere.
    fn extend(&mut self, chunk: &Chunk) -> Vec<u32> {
        let fresh = Table { home: chunk.home, blocks: Vec::new(), arriving: Vec::new() };
        let table = self.of.entry(chunk.seq).or_insert(fresh);
        assert_eq!(table.home, chunk.home, "sequence {} is computed where it does not live", chunk.seq);
        table.blocks.extend(chunk.new_blocks.iter().map(|block| block.0));
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

    #[test]
    fn tables_grow_and_a_release_comes_first() {
        let mut tables = Tables::default();
        assert_eq!(tables.apply(&step(&[], vec![], &[(1, &[4, 7]), (2, &[])])), [vec![4, 7], vec![]]);
        assert_eq!(tables.apply(&step(&[], vec![], &[(1, &[9])])), [vec![4, 7, 9]]);
        assert_eq!(tables.apply(&step(&[1], vec![], &[(1, &[2])])), [vec![2]]);
    }

    #[test]
    fn a_move_changes_the_table_with_its_last_piece() {
        let (out, back) = ((Tier::Device, Tier::Host), (Tier::Host, Tier::Device));
        let mut tables = Tables::default();
        tables.apply(&step(&[], vec![], &[(1, &[4, 7, 9])]));
        tables.apply(&step(&[], vec![moved(1, out, &[(4, 0), (7, 1)], Piece::More)], &[]));
        tables.apply(&step(&[], vec![moved(1, out, &[(9, 5)], Piece::Last)], &[]));
        let home = vec![moved(1, back, &[(0, 3), (1, 2), (5, 8)], Piece::Last)];
        assert_eq!(tables.apply(&step(&[], home, &[(1, &[6])])), [vec![3, 2, 8, 6]]);
    }
}
