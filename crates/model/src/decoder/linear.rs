//! A matrix of a layer, part of which may be away from the device.

use std::borrow::Cow;

use kernels::arena::Buf;
use kernels::device::Matrix;

/// The panels of a matrix: the first are on the device, the rest come through a slot.
pub struct Linear {
    /// The matrix, with those of its panels that are resident.
    pub here: Matrix,
    /// The rest of them.
    pub away: Option<Away>,
}

/// The last panels of a matrix, in a slot that they are loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// The number of the first.
    pub first_panel: usize,
    /// Where in the slot it begins.
    pub at: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

impl Linear {
    /// All of the matrix, once its slot is loaded.
    ///
    /// # Panics
    /// If panels are away and no slot is given.
    pub(super) fn with(&self, slot: Option<Buf>) -> Cow<'_, Matrix> {
        let Some(away) = self.away else { return Cow::Borrowed(&self.here) };
        let slot =
            slot.unwrap_or_else(|| panic!("panels from {} are away, and no slot is given", away.first_panel));
        let mut whole = self.here.clone();
        whole.parts.push((away.first_panel, slot.slice(away.at, away.bytes)));
        Cow::Owned(whole)
    }
}
