//! Weights that are streamed: the packed store, how it is cut, and the slots that its panels are read into.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kernels::arena::{Buf, Full};
use kernels::device::Device;
use model::store::{Cut, Half, Store};
use policy::pipeline::direct_slot;
use spec::Part;

/// The disk tier of one engine.
pub(crate) struct Disk {
    store: Store,
    cut: Cut,
    slots: BTreeMap<u16, Buf>,
    read_bytes: AtomicU64,
    read_ns: AtomicU64,
}

/// What was read from the drive since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds in which something was being read.
    pub busy_ns: u64,
}

impl Disk {
    /// Takes the slots from the device.
    pub(crate) fn new(store: Store, cut: Cut, device: &mut dyn Device) -> Result<Disk, Full> {
        let mut slots = BTreeMap::new();
        let [attention, mlp] = cut.slot_bytes();
        for layer in 0..2 {
            for (part, bytes) in [(Part::Attention(layer), attention), (Part::Mlp(layer), mlp)] {
                slots.insert(direct_slot(part), device.take(bytes)?);
            }
        }
        Ok(Disk { store, cut, slots, read_bytes: AtomicU64::new(0), read_ns: AtomicU64::new(0) })
    }

    /// The memory of a slot.
    pub(crate) fn slot(&self, slot: u16) -> Option<Buf> {
        self.slots.get(&slot).copied()
    }

    /// Reads what of a part is not resident.
    pub(crate) fn load(&self, device: &dyn Device, part: Part, slot: Option<Buf>) -> model::Result<()> {
        let (Some(half), Some(slot)) = (self.half(part), slot) else { return Ok(()) };
        let begin = Instant::now();
        let mut result = Ok(());
        device.fill(&slot, &mut |bytes| result = self.store.read(&half.runs, bytes));
        let bytes: usize = half.runs.iter().map(|run| run.bytes()).sum();
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.read_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Embeddings and head are resident.
    fn half(&self, part: Part) -> Option<&Half> {
        let layers = self.cut.layers();
        match part {
            Part::Attention(layer) => Some(&layers[usize::from(layer)][0]),
            Part::Mlp(layer) => Some(&layers[usize::from(layer)][1]),
            Part::Embed | Part::Head => None,
        }
    }

    pub(crate) fn streamed(&self) -> Streamed {
        let bytes = self.read_bytes.load(Ordering::Relaxed);
        Streamed { bytes, busy_ns: self.read_ns.load(Ordering::Relaxed) }
    }
}
