//! Which blocks each sequence has, as the steps say: the engine's own copy of the block tables.

use std::collections::BTreeMap;

use spec::{Chunk, SeqId, Step, Tier};

/// The blocks of a sequence, in order of position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<u32>,
}

/// Tables of all sequences that hold blocks.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    of: BTreeMap<SeqId, Table>,
}

impl Tables {
    /// Takes over a step's releases, then its new blocks; returns each chunk's table, in order of the chunks.
    ///
    /// # Panics
    /// If the step moves KV or uses a tier that this engine does not have: the plan was lowered for another one.
    pub(crate) fn apply(&mut self, step: &Step) -> Vec<Vec<u32>> {
        for seq in &step.release {
            self.of.remove(seq);
        }
        assert!(step.moves.is_empty(), "a step moves KV, and this engine has one tier");
        step.chunks().map(|chunk| self.extend(chunk)).collect()
    }

    fn extend(&mut self, chunk: &Chunk) -> Vec<u32> {
        assert!(chunk.home == Tier::Device && chunk.attend == Tier::Device, "this engine has one tier");
        let table = self.of.entry(chunk.seq).or_default();
        table.blocks.extend(chunk.new_blocks.iter().map(|block| block.0));
        table.blocks.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{BlockId, Layout, Pipeline, ReplicaId, Sampling, Span, StepId, Tokens};

    fn step(release: &[u64], chunks: &[(u64, &[u32])]) -> Step {
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
            moves: vec![],
            release: release.iter().map(|s| SeqId(*s)).collect(),
        }
    }

    #[test]
    fn tables_grow_and_a_release_comes_first() {
        let mut tables = Tables::default();
        assert_eq!(tables.apply(&step(&[], &[(1, &[4, 7]), (2, &[])])), [vec![4, 7], vec![]]);
        assert_eq!(tables.apply(&step(&[], &[(1, &[9])])), [vec![4, 7, 9]]);
        assert_eq!(tables.apply(&step(&[1], &[(1, &[2])])), [vec![2]]);
    }
}
