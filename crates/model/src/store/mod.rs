//! A model's weights, packed once as the kernels read them, in one file that is streamed from the drive.
//!
//! ```text
//! FOLDER/panels.bin      every matrix from a sector on, its panels in order
//! FOLDER/checksums.bin   a header, then a CRC-32 for each panel; grows with panels.bin, so making continues from it
//! FOLDER/manifest.json   written last: what the store is of, which files it was packed from, and that it is whole
//! ```
//!
//! Whatever share of a matrix is resident, the rest of it is one stretch of the file: its last panels. A part of a
//! layer (attention, MLP) is as many stretches as it has matrices, tens of megabytes each.

mod alone;
mod cut;
mod direct;
mod fingerprint;
mod kept;
mod layout;
mod make;
mod manifest;
mod open;
mod sources;

pub use cut::{Cut, Half, Stowed};
pub use direct::{Access, DirectFile, READERS, SECTOR, Stretch, Written};
pub use fingerprint::fingerprint;
pub use kept::{Kept, Removal, kept};
pub use layout::{Layout, Place, Run};
pub use make::Maker;
pub use open::{CHECKED_EVERY, Store};
