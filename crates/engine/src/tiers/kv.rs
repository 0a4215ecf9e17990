//! Where KV and activations are: pages of every layer on device and host, a file on the drive, and what they pass through.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use kernels::arena::Buf;
use kernels::device::{Device, KvPages};
use model::decoder::{Turning, Work};
use policy::pipeline::{DiskPath, Values};
use spec::{Buffer, ByTier, KvGroups, Node, Program, Tier};

use crate::config::KvMemory;
use crate::plan::groups::Place;
use crate::tiers::adopting::Adopting;
use crate::tiers::kv_file::KvFile;
use crate::tiers::link::Link;

/// Slots of each tier that KV passes through, and turns that activations take, as programs name them.
pub(crate) const TURNS: usize = policy::pipeline::TURNS as usize;

/// The tiers of KV and activations.
pub(crate) struct Kv {
    pub(crate) groups: KvGroups,
    pub(crate) layers: Vec<LayerPages>,
    /// One layer of what a batch attends away from its home; none where nothing is.
    pub(crate) slots: ByTier<Vec<KvPages>>,
    /// What lives on the drive; absent where nothing does.
    pub(crate) drive: Option<KvFile>,
    /// How that comes to the device.
    pub(crate) path: DiskPath,
    /// Which of the values come to decodes.
    pub(crate) values: Values,
    /// What attends on the host; absent where nothing does.
    pub(crate) host: Option<HostAttention>,
    pub(crate) hidden: Rests,
    /// Why what lives on the host passes other memory on its way to a device that could copy it by itself.
    pub(crate) not_pinned: Option<String>,
}

/// One layer's pages on each tier. The locks keep ops off each other's pages: a program lets a move and an
/// attention of one layer run side by side, since their blocks differ, and a memory must not. Who needs both takes the
/// device's first. Nobody takes that of a device that is late: its queues keep the program's order.
pub(crate) struct LayerPages {
    /// Layers of other groups in the same slot have other blocks of the same pages. None of these leave the device.
    pub(crate) place: Place,
    pub(crate) device: KvPages,
    pub(crate) host: KvPages,
    pub(crate) device_touched: Mutex<()>,
    pub(crate) host_touched: Mutex<()>,
}

/// What attention on the host needs of its own.
pub(crate) struct HostAttention {
    pub(crate) turning: Turning,
    /// As many as the device has.
    pub(crate) buffers: Vec<Work>,
}

/// Where activations rest on the host between layers.
#[derive(Default)]
pub(crate) struct Rests {
    /// By batch.
    pub(crate) homes: BTreeMap<u16, Buf>,
    /// What goes between drive and device, in turn.
    pub(crate) staged: Vec<Buf>,
}

impl Kv {
    /// Takes the memory of all pages and slots from the system now, if that is wanted. What lives on the host is handed to a
    /// device that copies it by itself: that takes its memory too, so all threads do it before.
    pub(crate) fn prepare(&mut self, when: KvMemory, link: Link, (device, host): (&dyn Device, &dyn Device)) {
        let mut adopting = Adopting::new(link, (device, host));
        if when == KvMemory::AtStart || adopting.asks() {
            self.touch(device, host);
        }
        let pages = self.apart().map(|layer| &layer.host.buf);
        let slots = self.slots.host.iter().map(|slot| &slot.buf);
        let rests = self.hidden.homes.values().chain(&self.hidden.staged);
        let buffers = self.host.iter().flat_map(|host| &host.buffers);
        let attention = buffers.flat_map(|work| [&work.qkv.buf, &work.attended.buf]);
        pages.chain(slots).chain(rests).chain(attention).for_each(|buf| {
            // It is found by its address.
            let _ = adopting.adopt(buf);
        });
        self.not_pinned = adopting.refused();
    }

    /// Layers whose pages are not those of layers before.
    fn apart(&self) -> impl Iterator<Item = &LayerPages> {
        let mut slots = BTreeSet::new();
        self.layers.iter().filter(move |layer| slots.insert(layer.place.slot))
    }

    fn touch(&self, device: &dyn Device, host: &dyn Device) {
        for pages in self.apart() {
            device.touch(&pages.device.buf);
            host.touch(&pages.host.buf);
        }
        self.slots.device.iter().for_each(|slot| device.touch(&slot.buf));
        self.slots.host.iter().for_each(|slot| host.touch(&slot.buf));
    }

    /// The slot that a node touches.
    pub(crate) fn slot(&self, program: &Program, node: &Node, tier: Tier) -> Option<KvPages> {
        let number = program.touches(node).iter().find_map(|touch| match touch.buffer {
            Buffer::KvSlot { slot, .. } => Some(usize::from(slot)),
            _ => None,
        })?;
        self.slots[tier].get(number).copied()
    }
}

impl Rests {
    /// The memory that a node of a batch calls `name`: of the batch, or staged where there are no more than `batches`.
    pub(crate) fn named(&self, name: u16, batches: usize) -> Buf {
        match usize::from(name).checked_sub(batches) {
            Some(turn) => self.staged[turn],
            None => self.homes[&name],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::attention::{KvDtype, KvLayout};
    use kernels::{CpuDevice, Isa, Team};
    use std::sync::Arc;

    #[test]
    fn pages_and_slots_of_both_tiers_are_taken_at_the_start() {
        let memory = || CpuDevice::new(1 << 20, Arc::new(Team::new(1)), Isa::Scalar).unwrap();
        let (mut device, mut host) = (memory(), memory());
        let layout = KvLayout { kv_heads: 1, head_dim: 32, dtype: KvDtype::Bf16 };
        let pages = |of: &mut CpuDevice| {
            let buf = of.take(layout.block_bytes()).unwrap();
            of.fill(&buf, &mut |bytes| bytes.fill(1));
            KvPages { layout, buf }
        };
        let mut kv = Kv {
            groups: KvGroups::default(),
            layers: vec![LayerPages {
                place: Place::default(),
                device: pages(&mut device),
                host: pages(&mut host),
                device_touched: Mutex::new(()),
                host_touched: Mutex::new(()),
            }],
            slots: ByTier { device: vec![pages(&mut device)], host: vec![pages(&mut host)], disk: vec![] },
            drive: None,
            path: DiskPath::Direct,
            values: Values::All,
            host: None,
            hidden: Rests::default(),
            not_pinned: None,
        };
        kv.prepare(KvMemory::AtStart, Link::default(), (&device, &host));
        assert_eq!(kv.not_pinned, None);
        // Taking a page writes to it.
        let touched = |of: &CpuDevice, pages: &KvPages| {
            of.view(&pages.buf, &mut |bytes| assert_eq!(bytes[0], 0));
        };
        touched(&device, &kv.layers[0].device);
        touched(&host, &kv.layers[0].host);
        touched(&device, &kv.slots.device[0]);
        touched(&host, &kv.slots.host[0]);
    }
}
