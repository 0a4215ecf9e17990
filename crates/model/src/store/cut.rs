//! What of the weights lives where: of every matrix of the layers the first panels stay on the device, the next live on the
//! host, the last in the store on the drive.

use spec::{Split, Tier};

use super::layout::{Layout, Run};
use crate::decoder::{Away, Blueprint, MatrixPlan};

/// Panels of a part of a layer that live on one tier, as they lie together in memory there or in a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stowed {
    /// In order of where they lie.
    pub runs: Vec<Run>,
    /// Bytes of all of them.
    pub bytes: usize,
}

/// One half of a layer: attention, or the MLP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// What of it lives on the host.
    pub host: Stowed,
    /// What of it is read from the drive.
    pub disk: Stowed,
}

/// Weights cut in three. Embeddings, head and projections are always on the device: they are tables of which a pass needs a
/// few rows, or as large as a slot for them would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    resident: Vec<usize>,
    away: Vec<Vec<Away>>,
    layers: Vec<[Half; 2]>,
    resident_bytes: u64,
}

impl Cut {
    /// Cuts the layers' matrices as `split` says. Each is cut between two panels; what that rounds is carried to the next
    /// one, so that the layers together have their shares within a panel.
    pub fn new(blueprint: &Blueprint, layout: &Layout, split: Split) -> Cut {
        let resident: Vec<usize> = layout.places().iter().map(|place| place.panels).collect();
        let away = vec![Vec::new(); resident.len()];
        let mut cut = Cut { resident, away, layers: Vec::new(), resident_bytes: 0 };
        let mut shares = Shares { split, all: 0, device: 0, memory: 0 };
        for layer in &blueprint.layers {
            let attention: Vec<&MatrixPlan> = layer.qkv.iter().chain([&layer.out]).collect();
            let mut half = |plans: &[&MatrixPlan]| cut.half(layout, plans, &mut shares);
            let halves = [half(&attention), half(&[&layer.up, &layer.down])];
            cut.layers.push(halves);
        }
        let bytes = |(matrix, &count): (usize, &usize)| match count {
            0 => 0,
            count => layout.run(matrix, 0..count, 0).bytes() as u64,
        };
        cut.resident_bytes = cut.resident.iter().enumerate().map(bytes).sum();
        cut
    }

    fn half(&mut self, layout: &Layout, plans: &[&MatrixPlan], shares: &mut Shares) -> Half {
        let mut half = Half::default();
        for plan in plans {
            let matrix = layout.index_of(plan);
            let place = layout.places()[matrix];
            let (device, memory) = shares.next(place.panels, place.panel_bytes);
            self.resident[matrix] = device;
            for (home, stowed, panels) in [
                (Tier::Host, &mut half.host, device..memory),
                (Tier::Disk, &mut half.disk, memory..place.panels),
            ] {
                if !panels.is_empty() {
                    let run = layout.run(matrix, panels, stowed.bytes);
                    let (at, bytes) = (run.at + run.skip, run.panel_bytes());
                    self.away[matrix].push(Away { home, first_panel: run.panels.start, at, bytes });
                    stowed.bytes += run.bytes();
                    stowed.runs.push(run);
                }
            }
        }
        half
    }

    /// How many panels of a matrix are on the device.
    pub fn resident_panels(&self, matrix: usize) -> usize {
        self.resident[matrix]
    }

    /// Where the others are once they are loaded.
    pub fn away(&self, matrix: usize) -> &[Away] {
        &self.away[matrix]
    }

    /// Attention and MLP of each layer.
    pub fn layers(&self) -> &[[Half; 2]] {
        &self.layers
    }

    /// Bytes that are on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes that live on the host.
    pub fn host_bytes(&self) -> u64 {
        self.layers.iter().flatten().map(|half| half.host.bytes as u64).sum()
    }

    /// Bytes that a pass over the model reads from the drive.
    pub fn streamed_bytes(&self) -> u64 {
        self.layers.iter().flatten().map(|half| half.disk.bytes as u64).sum()
    }

    /// The most bytes that an attention, and an MLP, has of something.
    pub fn most(&self, bytes: impl Fn(&Half) -> usize) -> [usize; 2] {
        [0, 1].map(|half| self.layers.iter().map(|layer| bytes(&layer[half])).max().unwrap_or(0))
    }
}

/// Shares of all matrices so far, in bytes.
struct Shares {
    split: Split,
    all: u64,
    device: u64,
    /// Of device and host together.
    memory: u64,
}

impl Shares {
    /// How many panels of the next matrix are on the device, and how many there or on the host.
    fn next(&mut self, panels: usize, panel_bytes: usize) -> (usize, usize) {
        self.all += (panels * panel_bytes) as u64;
        let parts = [Tier::Device, Tier::Host].map(|tier| u64::from(self.split.part(tier)));
        let device = self.nearest(parts[0], self.device, panel_bytes).min(panels);
        let memory = self.nearest(parts[0] + parts[1], self.memory, panel_bytes).clamp(device, panels);
        self.device += (device * panel_bytes) as u64;
        self.memory += (memory * panel_bytes) as u64;
        (device, memory)
    }

    /// Panels that bring what a share has of all matrices nearest to what it should have.
    fn nearest(&self, parts: u64, has: u64, panel_bytes: usize) -> usize {
        let wanted = u128::from(self.all) * u128::from(parts) / u128::from(Split::WHOLE);
        let missing = (wanted as u64).saturating_sub(has) as usize;
        (missing + panel_bytes / 2) / panel_bytes.max(1)
    }
}
