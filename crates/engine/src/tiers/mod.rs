//! What lives away from the device while an engine runs, and how it gets there and back.
//!
//! Weights are `stowed` (and computed with where they are: `delegate`), KV and activations have homes (`kv`) between which they
//! `travel`, over a `link` or by a file on the drive (`kv_file`, of these `kv_sizes`, compared with `kv_sums`; `kv_halves` where values are
//! `chosen` before they come). What of the host a device copies by itself it is `adopting`.

pub(crate) mod adopting;
pub(crate) mod chosen;
pub(crate) mod delegate;
pub(crate) mod kept;
pub(crate) mod kv;
pub(crate) mod kv_file;
pub(crate) mod kv_halves;
pub(crate) mod kv_sizes;
pub(crate) mod kv_sums;
pub(crate) mod link;
pub(crate) mod stowed;
pub(crate) mod travel;
