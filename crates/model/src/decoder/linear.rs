//! A matrix of a layer, part of which may be away from the device.

use std::borrow::Cow;

use kernels::arena::Buf;
use kernels::device::Matrix;
use spec::{ByTier, Tier};

/// Where a layer's weights of each tier are on the device, once they are loaded.
pub type Slots = ByTier<Option<Buf>>;

/// The panels of a matrix: the first are on the device, the rest come through slots.
pub struct Linear {
    /// The matrix, with those of its panels that are resident.
    pub here: Matrix,
    /// The rest of them, in order.
    pub away: Vec<Away>,
}

/// Neighbouring panels of a matrix that live on another tier, in a slot that they are loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// Where they live.
    pub home: Tier,
    /// The number of the first.
    pub first_panel: usize,
    /// Where in the slot it begins.
    pub at: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

impl Linear {
    /// All of the matrix, once its slots are loaded; `there`: a tier that computes with its own panels itself.
    ///
    /// # Panics
    /// If other panels are away and their slot is not given.
    pub(super) fn with(&self, slots: &Slots, there: Option<Tier>) -> Cow<'_, Matrix> {
        if self.away.is_empty() {
            return Cow::Borrowed(&self.here);
        }
        let mut whole = self.here.clone();
        for away in self.away.iter().filter(|away| Some(away.home) != there) {
            let slot = slots[away.home].unwrap_or_else(|| {
                panic!("panels from {} live on the {:?}, and no slot is given", away.first_panel, away.home)
            });
            whole.parts.push((away.first_panel, slot.slice(away.at, away.bytes)));
        }
        Cow::Owned(whole)
    }
}
