//! Weights that live away from the device: on the host and in the store on the drive, and the slots that they come through.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernels::arena::{Buf, Full};
use kernels::device::Device;
use model::decoder::Slots;
use model::store::{Access, Cut, Half, Store};
use policy::pipeline::{DiskPath, SLOTS, direct_slot, up_slot};
use spec::{Op, Part, Program, Tier};

use crate::tiers::adopting::Adopting;
use crate::tiers::link::Link;

/// The tiers below the device, of one engine.
pub(crate) struct Stowed {
    cut: Cut,
    path: DiskPath,
    /// Absent where nothing lives on the drive.
    store: Option<Store>,
    /// What lives on the host: attention and MLP of each layer.
    host: Vec<[Option<Buf>; 2]>,
    /// On the device, by number.
    slots: BTreeMap<u16, Buf>,
    /// On the host, by number: what comes from the drive and goes on to the device.
    staged: BTreeMap<u16, Buf>,
    /// Under which numbers the device has adopted what lives on the host.
    near: Vec<[Option<usize>; 2]>,
    not_pinned: Option<String>,
    link: Link,
    read: Moved,
    copied: Moved,
}

/// What a step does with weights that live on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnHost {
    /// Copies them to the device.
    Copied,
    /// Computes with them there.
    ComputedWith,
}

/// What was moved since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds in which something was being moved.
    pub busy_ns: u64,
}

#[derive(Debug, Default)]
struct Moved {
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl Moved {
    fn add(&self, bytes: usize, took: Duration) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn total(&self) -> Streamed {
        let bytes = self.bytes.load(Ordering::Relaxed);
        Streamed { bytes, busy_ns: self.ns.load(Ordering::Relaxed) }
    }
}

/// Bytes of a slot for attention, and of one for the MLP.
pub(crate) struct SlotSizes {
    /// Of the device, copied to from the host: what lives there, then what was staged.
    pub(crate) up: [usize; 2],
    /// Of the device, read from the drive.
    pub(crate) direct: [usize; 2],
    /// Of the host, read from the drive.
    pub(crate) staged: [usize; 2],
}

impl SlotSizes {
    pub(crate) fn of(cut: &Cut, path: DiskPath) -> SlotSizes {
        let disk = cut.most(|half| half.disk.bytes);
        match path {
            DiskPath::Direct => {
                SlotSizes { up: cut.most(|half| half.host.bytes), direct: disk, staged: [0; 2] }
            }
            DiskPath::ThroughHost => SlotSizes {
                up: cut.most(|half| half.host.bytes + half.disk.bytes),
                direct: [0; 2],
                staged: disk,
            },
        }
    }
}

/// Two slots for each half of a layer, by number.
fn take_slots(
    device: &mut dyn Device,
    sizes: [usize; 2],
    number: fn(Part) -> u16,
    slots: &mut BTreeMap<u16, Buf>,
) -> Result<(), Full> {
    for layer in 0..SLOTS {
        for (part, bytes) in [Part::Attention(layer), Part::Mlp(layer)].into_iter().zip(sizes) {
            if bytes > 0 {
                let slot = device.take(bytes)?;
                device.discard(&slot);
                slots.insert(number(part), slot);
            }
        }
    }
    Ok(())
}

impl Stowed {
    /// Takes the slots from device and host. `home`: where what lives on the host is (see `Loader::stow`).
    pub(crate) fn new(
        (cut, path): (Cut, DiskPath),
        store: Option<Store>,
        home: Vec<[Option<Buf>; 2]>,
        link: Link,
        (device, host): (&mut dyn Device, &mut dyn Device),
    ) -> Result<Stowed, Full> {
        let sizes = SlotSizes::of(&cut, path);
        let (mut slots, mut staged) = (BTreeMap::new(), BTreeMap::new());
        take_slots(device, sizes.up, up_slot, &mut slots)?;
        take_slots(device, sizes.direct, direct_slot, &mut slots)?;
        take_slots(host, sizes.staged, up_slot, &mut staged)?;
        let (read, copied) = (Moved::default(), Moved::default());
        // It does not change: the device may copy it whenever it comes to it.
        let mut adopting = Adopting::new(link, (device, host));
        let near = home.iter().map(|halves| halves.map(|buf| adopting.adopt(&buf?))).collect();
        let not_pinned = adopting.refused();
        Ok(Stowed { cut, path, store, host: home, slots, staged, near, not_pinned, link, read, copied })
    }

    /// Why weights on the host pass through other memory on their way to a device that could read them where they lie.
    pub(crate) fn not_pinned(&self) -> Option<&str> {
        self.not_pinned.as_deref()
    }

    /// How the store is reached, if there is one.
    pub(crate) fn access(&self) -> Option<Access> {
        self.store.as_ref().map(Store::access)
    }

    /// Does what a node says that loads weights.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn load(
        &self,
        (device, host): (&dyn Device, &dyn Device),
        part: Part,
        (from, to): (Tier, Tier),
        on_host: OnHost,
    ) -> model::Result<()> {
        let Some((half, home)) = self.half(part) else { return Ok(()) };
        match (from, to) {
            (Tier::Disk, Tier::Device) => self.read(device, half, self.slots.get(&direct_slot(part))),
            (Tier::Disk, Tier::Host) => self.read(host, half, self.staged.get(&up_slot(part))),
            (Tier::Host, Tier::Device) => {
                let home = home.filter(|_| on_host == OnHost::Copied);
                self.copy_up((device, host), part, half, home);
                Ok(())
            }
            (from, to) => panic!("weights do not go from {from:?} to {to:?}"),
        }
    }

    fn read(&self, into: &dyn Device, half: &Half, slot: Option<&Buf>) -> model::Result<()> {
        let (Some(slot), Some(store)) = (slot, &self.store) else { return Ok(()) };
        let begin = Instant::now();
        into.discard(slot);
        let mut result = Ok(());
        into.fill(&slot.slice(0, half.disk.bytes), &mut |bytes| {
            result = store.read(&half.disk.runs, bytes);
        });
        self.read.add(half.disk.bytes, begin.elapsed());
        result
    }

    fn copy_up(
        &self,
        (device, host): (&dyn Device, &dyn Device),
        part: Part,
        half: &Half,
        home: Option<Buf>,
    ) {
        let Some(slot) = self.slots.get(&up_slot(part)) else { return };
        let begin = Instant::now();
        device.discard(slot);
        let mut pace = self.link.begin();
        let to = slot.slice(0, half.host.bytes);
        let mut bytes = 0;
        match (home, self.near_of(part)) {
            (Some(_), Some(number)) => {
                device.upload_from(&to, number, 0);
                bytes = to.bytes();
            }
            (Some(home), None) => pace.copy((host, &home), (device, &to)),
            (None, _) => {}
        }
        if let Some(staged) = self.staged.get(&up_slot(part)) {
            let arrived = staged.slice(0, half.disk.bytes);
            pace.copy((host, &arrived), (device, &slot.slice(half.host.bytes, half.disk.bytes)));
            host.discard(staged);
        }
        // A device that is late tells how long that takes when it is done.
        let took = if device.is_late() { Duration::ZERO } else { begin.elapsed() };
        self.copied.add(bytes + pace.end(), took);
    }

    /// A late device took so long to copy weights.
    pub(crate) fn copying_took(&self, took: Duration) {
        self.copied.add(0, took);
    }

    fn near_of(&self, part: Part) -> Option<usize> {
        let (layer, half) = place_of(part)?;
        self.near[layer][half]
    }

    /// What lives on the host of a part.
    pub(crate) fn home_of(&self, part: Part) -> Option<Buf> {
        self.half(part)?.1
    }

    /// Where the weights are that a node of these slots computes with.
    pub(crate) fn slots(&self, program: &Program, node: usize) -> Slots {
        let node = &program.nodes()[node];
        let mut found = Slots::default();
        let Some((part, (half, _))) = part_of(node.op).and_then(|part| Some((part, self.half(part)?))) else {
            return found;
        };
        for (number, ..) in program.weight_slots(node).filter(|(_, tier, _)| *tier == Tier::Device) {
            let Some(slot) = self.slots.get(&number) else { continue };
            if number == direct_slot(part) {
                found.disk = Some(*slot);
                continue;
            }
            let up = self.up(half, slot);
            found = Slots { disk: up.disk.or(found.disk), ..up };
        }
        found
    }

    /// What a slot has that was copied to from the host.
    fn up(&self, half: &Half, slot: &Buf) -> Slots {
        let disk = (self.path == DiskPath::ThroughHost).then(|| slot.slice(half.host.bytes, half.disk.bytes));
        Slots { device: None, host: Some(slot.slice(0, half.host.bytes)), disk }
    }

    /// All slots of a part, whatever is in them.
    pub(crate) fn slots_of(&self, part: Part) -> Slots {
        let Some((half, _)) = self.half(part) else { return Slots::default() };
        let up = self.slots.get(&up_slot(part)).map(|slot| self.up(half, slot)).unwrap_or_default();
        let direct = self.slots.get(&direct_slot(part)).copied();
        Slots { disk: up.disk.or(direct), ..up }
    }

    /// What of a part is where, and what of it lives on the host. Embeddings and head are always on the device.
    fn half(&self, part: Part) -> Option<(&Half, Option<Buf>)> {
        let (layer, half) = place_of(part)?;
        Some((&self.cut.layers()[layer][half], self.host[layer][half]))
    }

    /// From the drive.
    pub(crate) fn streamed(&self) -> Streamed {
        self.read.total()
    }

    /// From the host to the device.
    pub(crate) fn copied(&self) -> Streamed {
        self.copied.total()
    }
}

/// A part's layer, and which half of it. Embeddings and head belong to none.
fn place_of(part: Part) -> Option<(usize, usize)> {
    match part {
        Part::Attention(layer) => Some((usize::from(layer), 0)),
        Part::Mlp(layer) => Some((usize::from(layer), 1)),
        Part::Embed | Part::Head => None,
    }
}

/// What an op computes with.
pub(crate) fn part_of(op: Op) -> Option<Part> {
    match op {
        Op::Qkv { layer, .. } | Op::OutProj { layer, .. } => Some(Part::Attention(layer)),
        Op::Mlp { layer, .. } => Some(Part::Mlp(layer)),
        _ => None,
    }
}
