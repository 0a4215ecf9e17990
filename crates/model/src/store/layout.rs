//! Where each matrix lies in a store.

use std::collections::BTreeMap;
use std::ops::Range;

use kernels::linear::{panel_bytes, panels};

use super::direct::SECTOR;
use crate::decoder::{Blueprint, MatrixPlan};
use crate::tensor::Tensor;

/// One matrix of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where its first panel begins: on a sector.
    pub offset: u64,
    /// How many it has.
    pub panels: usize,
    /// Bytes of each.
    pub panel_bytes: usize,
    /// Panels of the matrices before it.
    pub panels_before: usize,
}

/// All matrices, in the order of [`Blueprint::matrices`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    places: Vec<Place>,
    by_tensor: BTreeMap<Tensor, usize>,
    bytes: u64,
}

/// Neighbouring panels of a matrix, with the sectors that they lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which matrix.
    pub matrix: usize,
    /// Which of its panels.
    pub panels: Range<usize>,
    /// The sectors.
    pub file: Range<u64>,
    /// Where the sectors go.
    pub at: usize,
    /// Where the panels begin in the sectors.
    pub skip: usize,
    panel_bytes: usize,
}

impl Place {
    /// Bytes of the matrix in the file, to the end of its last sector.
    pub fn bytes(&self) -> u64 {
        ((self.panels * self.panel_bytes) as u64).next_multiple_of(SECTOR as u64)
    }
}

impl Run {
    /// Bytes of the sectors.
    pub fn bytes(&self) -> usize {
        (self.file.end - self.file.start) as usize
    }

    /// Bytes of the panels.
    pub fn panel_bytes(&self) -> usize {
        self.panels.len() * self.panel_bytes
    }
}

impl Layout {
    /// Lays out a model.
    pub fn of(blueprint: &Blueprint) -> Layout {
        let mut layout = Layout { places: Vec::new(), by_tensor: BTreeMap::new(), bytes: 0 };
        let mut panels_before = 0;
        for plan in blueprint.matrices() {
            let place = Place {
                offset: layout.bytes,
                panels: panels(plan.order, plan.n),
                panel_bytes: panel_bytes(plan.format, plan.k),
                panels_before,
            };
            layout.by_tensor.insert(plan.tensors[0], layout.places.len());
            layout.bytes += place.bytes();
            panels_before += place.panels;
            layout.places.push(place);
        }
        layout
    }

    /// Bytes of the whole file of panels.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Every matrix.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Panels of all matrices.
    pub fn panels(&self) -> usize {
        self.places.iter().map(|place| place.panels).sum()
    }

    /// The number of a matrix.
    ///
    /// # Panics
    /// If the layout is of another model.
    pub fn index_of(&self, plan: &MatrixPlan) -> usize {
        let found = self.by_tensor.get(&plan.tensors[0]);
        *found.unwrap_or_else(|| panic!("a store of another model: it has no {:?}", plan.tensors[0]))
    }

    /// Some panels of a matrix, to be read to `at`.
    pub fn run(&self, matrix: usize, panels: Range<usize>, at: usize) -> Run {
        let place = self.places[matrix];
        assert!(panels.start < panels.end && panels.end <= place.panels, "{panels:?} of {}", place.panels);
        let byte = |panel: usize| place.offset + (panel * place.panel_bytes) as u64;
        let (start, end, sector) = (byte(panels.start), byte(panels.end), SECTOR as u64);
        let file = start / sector * sector..end.next_multiple_of(sector);
        let skip = (start - file.start) as usize;
        Run { matrix, panels, file, at, skip, panel_bytes: place.panel_bytes }
    }
}
