//! How the file of KV and activations is divided, and what it takes of memory.

use kernels::attention::KvLayout;
use model::store::SECTOR;

use crate::tiers::kv_halves::Halves;
use crate::tiers::kv_sums::Sums;

/// What passes through memory of our own at a time, where the reader's is not aligned; more where half a block is more.
pub(super) const BOUNCE_BYTES: usize = 1 << 20;

/// How the file is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvFileSizes {
    pub(crate) layers: usize,
    /// KV blocks of a layer.
    pub(crate) blocks: usize,
    /// Bytes of one layer of a block.
    pub(crate) block_bytes: usize,
    /// Where values are read apart from keys: how a block is made of both.
    pub(crate) halves: Option<KvLayout>,
    /// Batches whose activations may rest here.
    pub(crate) batches: usize,
    /// Bytes of one of them.
    pub(crate) hidden_bytes: usize,
}

impl KvFileSizes {
    /// Bytes of the whole file.
    pub(crate) fn bytes(&self) -> u64 {
        self.hidden_at(self.batches)
    }

    /// Those of KV.
    pub(crate) fn kv_bytes(&self) -> u64 {
        let in_halves = self.halves().map(|halves| self.layers as u64 * halves.layer_bytes());
        in_halves.unwrap_or_else(|| self.block_at(self.layers, 0))
    }

    /// What passes through memory of our own at a time.
    pub(crate) fn bounce_bytes(&self) -> usize {
        self.halves().map_or(0, |halves| halves.half_bytes()).max(BOUNCE_BYTES)
    }

    /// Memory that checksums of all of it take.
    pub(crate) fn sums_bytes(&self) -> u64 {
        Sums::bytes(self.pieces())
    }

    /// What has a checksum of its own: each block of a layer, or each plane of it, and each batch's activations.
    pub(super) fn pieces(&self) -> usize {
        self.piece(self.layers, 0) + self.batches
    }

    /// The number of a block of a layer, or of its first plane.
    pub(super) fn piece(&self, layer: usize, block: u32) -> usize {
        let planes = self.halves.map_or(1, |layout| 2 * layout.kv_heads);
        (layer * self.blocks + block as usize) * planes
    }

    pub(super) fn piece_of_hidden(&self, batch: usize) -> usize {
        self.piece(self.layers, 0) + batch
    }

    pub(super) fn halves(&self) -> Option<Halves> {
        Some(Halves { layout: self.halves?, blocks: self.blocks })
    }

    pub(super) fn block_at(&self, layer: usize, block: u32) -> u64 {
        let stride = self.block_bytes.next_multiple_of(SECTOR) as u64;
        (layer * self.blocks + block as usize) as u64 * stride
    }

    pub(super) fn hidden_at(&self, batch: usize) -> u64 {
        let stride = self.hidden_bytes.next_multiple_of(SECTOR) as u64;
        self.kv_bytes() + batch as u64 * stride
    }

    /// Blocks that follow one another in the file and in memory go in one request, if both are whole sectors.
    pub(super) fn joins(&self) -> bool {
        self.block_bytes.is_multiple_of(SECTOR)
    }
}
