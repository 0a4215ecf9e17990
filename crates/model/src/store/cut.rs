//! What of a store is resident, and what is streamed: the first panels of every matrix of the layers stay on the device,
//! the last are read for each pass.

use spec::{Split, Tier};

use super::layout::{Layout, Run};
use crate::decoder::{Away, Blueprint, MatrixPlan};

/// One half of a layer: attention, or the MLP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// What is read for it, into a slot.
    pub runs: Vec<Run>,
    /// Bytes of the slot.
    pub slot_bytes: usize,
}

/// A store cut in two. Embeddings, head and projections are always resident: they are tables of which a pass needs a few
/// rows, or as large as a slot for them would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    split: Split,
    resident: Vec<usize>,
    away: Vec<Option<Away>>,
    layers: Vec<[Half; 2]>,
    resident_bytes: u64,
}

impl Cut {
    /// Cuts the layers' matrices as `split` says: what is not on the device is streamed.
    pub fn new(blueprint: &Blueprint, layout: &Layout, split: Split) -> Cut {
        let resident: Vec<usize> = layout.places().iter().map(|place| place.panels).collect();
        let away = vec![None; resident.len()];
        let mut cut = Cut { split, resident, away, layers: Vec::new(), resident_bytes: 0 };
        for layer in &blueprint.layers {
            let attention: Vec<&MatrixPlan> = layer.qkv.iter().chain([&layer.out]).collect();
            let halves = [cut.half(layout, &attention), cut.half(layout, &[&layer.up, &layer.down])];
            cut.layers.push(halves);
        }
        let bytes = |(matrix, &count): (usize, &usize)| match count {
            0 => 0,
            count => layout.run(matrix, 0..count, 0).bytes() as u64,
        };
        cut.resident_bytes = cut.resident.iter().enumerate().map(bytes).sum();
        cut
    }

    fn half(&mut self, layout: &Layout, plans: &[&MatrixPlan]) -> Half {
        let mut half = Half::default();
        for plan in plans {
            let matrix = layout.index_of(plan);
            let all = layout.places()[matrix].panels;
            let here = self.split.of(Tier::Device, all as u64) as usize;
            self.resident[matrix] = here;
            if here < all {
                let run = layout.run(matrix, here..all, half.slot_bytes);
                let (at, bytes) = (run.at + run.skip, run.panel_bytes());
                self.away[matrix] = Some(Away { first_panel: here, at, bytes });
                half.slot_bytes += run.bytes();
                half.runs.push(run);
            }
        }
        half
    }

    /// How the layers' matrices are cut.
    pub fn split(&self) -> Split {
        self.split
    }

    /// How many panels of a matrix are resident.
    pub fn resident_panels(&self, matrix: usize) -> usize {
        self.resident[matrix]
    }

    /// Where the others are once they are read; none if there are none.
    pub fn away(&self, matrix: usize) -> Option<Away> {
        self.away[matrix]
    }

    /// Attention and MLP of each layer.
    pub fn layers(&self) -> &[[Half; 2]] {
        &self.layers
    }

    /// Bytes that are resident.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes that a pass over the model reads.
    pub fn streamed_bytes(&self) -> u64 {
        self.layers.iter().flatten().flat_map(|half| &half.runs).map(|run| run.bytes() as u64).sum()
    }

    /// Bytes that a slot for attention, and one for the MLP, must have.
    pub fn slot_bytes(&self) -> [usize; 2] {
        [0, 1].map(|half| self.layers.iter().map(|layer| layer[half].slot_bytes).max().unwrap_or(0))
    }
}
