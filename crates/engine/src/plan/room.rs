//! The room that the memories leave, and what of the weights goes where.

mod asked;
#[cfg(test)]
mod tests;

use kernels::arena::PAGE;
use kernels::attention::BLOCK_TOKENS;
use kernels::linear::{Activations, kept_bytes_at_most, shared_bytes_at_most};
use model::decoder::{Blueprint, HostWork, STAGED_BYTES, rope_bytes};
use model::sampling::scratch_bytes_at_most;
use model::store::{Cut, Layout};
use policy::pipeline::{DiskPath, SLOTS};
use spec::{ByTier, ModelSpec, Split, Tier};

use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::budget::Budget;
use crate::plan::groups::Groups;
use crate::plan::hold::Hold;
use crate::plan::homes::{Homes, KvHomes};
use crate::plan::too_small::TooSmall;
use crate::tiers::stowed::SlotSizes;
use crate::watch::timeline::Timeline;

/// What a running engine needs beside its arenas and what was resident when it was planned: stacks, queues, tables, what
/// loading reads at a time, and the program's own pages that were not read yet.
const RUNTIME_BYTES: u64 = 8 << 20;
/// Scratch of each compute thread, where it rounds activations to whole numbers.
const ROUNDED_BYTES: usize = 2 << 20;

/// More KV blocks than any machine has room for.
const BLOCKS_MAX: u32 = 1 << 28;
/// Pieces of a page or more outside the layers, activations and slots among them. Each begins on a page, which may cost one.
const PIECES: usize = 32;
/// Vectors of a layer: norms and biases.
const LAYER_VECTORS: usize = 7;

/// What must be there whatever the weights do.
pub(crate) struct Room<'a> {
    config: &'a EngineConfig,
    blueprint: &'a Blueprint,
    layout: Layout,
    budget: Budget,
    max_model_len: usize,
    process_bytes: u64,
    homes: Homes<'a>,
    /// Norms, biases, rotary tables, and what rounding to pages costs.
    table_bytes: u64,
    /// Where weights live on the host, and may be computed with there.
    host_linear_bytes: u64,
}

/// Bytes of weights.
#[derive(Clone, Copy)]
pub(crate) struct WeightBytes {
    resident: u64,
    slots: u64,
    host: u64,
    host_slots: u64,
    host_linears: u64,
    streamed: u64,
    /// Of the store, if one is needed.
    store: u64,
}

/// How much KV is planned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kv {
    /// What is wanted, as far as there is room.
    Wanted,
    /// That, but no more than half of what there is room for.
    Half,
}

impl WeightBytes {
    /// All on the device.
    pub(crate) fn resident(blueprint: &Blueprint) -> WeightBytes {
        let resident = (blueprint.bytes() - blueprint.vector_bytes()) as u64;
        WeightBytes { resident, slots: 0, host: 0, host_slots: 0, host_linears: 0, streamed: 0, store: 0 }
    }

    fn of(cut: &Cut, layout: &Layout, path: DiskPath, host_linears: u64) -> WeightBytes {
        let streamed = cut.streamed_bytes();
        let sizes = SlotSizes::of(cut, path);
        WeightBytes {
            resident: cut.resident_bytes(),
            slots: slots(sizes.up) + slots(sizes.direct),
            host: cut.host_bytes(),
            host_slots: slots(sizes.staged),
            host_linears: if cut.host_bytes() > 0 { host_linears } else { 0 },
            streamed,
            store: if streamed > 0 { layout.bytes() } else { 0 },
        }
    }

    /// Of the device's memory.
    fn held(&self) -> u64 {
        self.resident + self.slots
    }

    /// Of the host's.
    fn on_host(&self) -> u64 {
        self.host + self.host_slots + self.host_linears
    }

    /// Through the lane from host to device, for each pass.
    fn copied(&self) -> u64 {
        self.host + if self.host_slots > 0 { self.streamed } else { 0 }
    }
}

/// Two slots for each half of a layer: one is loaded while the other is computed with.
fn slots(sizes: [usize; 2]) -> u64 {
    sizes.iter().map(|bytes| u64::from(SLOTS) * bytes.next_multiple_of(PAGE) as u64).sum()
}

impl<'a> Room<'a> {
    /// # Errors
    /// [`TooSmall::Carved`].
    pub(crate) fn new(
        spec: &'a ModelSpec,
        blueprint: &'a Blueprint,
        config: &'a EngineConfig,
        resident_bytes: u64,
    ) -> Result<Room<'a>, TooSmall> {
        let max_model_len = config.longest(spec);
        let vectors = if 4 * spec.hidden < PAGE { 0 } else { LAYER_VECTORS };
        let pieces = PIECES + blueprint.matrices().count() + spec.layers * (1 + vectors);
        let tables = (blueprint.vector_bytes() + rope_bytes(spec, max_model_len)) as u64;
        let groups = Groups::of(spec, config, max_model_len);
        let homes = Homes::new(spec, config, config.block_config(0), max_model_len, groups);
        Ok(Room {
            config,
            blueprint,
            layout: Layout::of(blueprint),
            budget: Budget::of(config)?,
            max_model_len,
            process_bytes: resident_bytes
                + config.beside_bytes
                + overhead(spec, config)
                + homes.bounce_bytes(),
            homes,
            table_bytes: tables + (pieces * PAGE) as u64,
            host_linear_bytes: config.host_work().map_or(0, |size| HostWork::bytes(spec, size) as u64),
        })
    }

    /// Whether weights can be anywhere but on the device.
    pub(crate) fn has_elsewhere(&self) -> bool {
        self.has_host() || self.config.offload.folder.is_some()
    }

    /// Whether the host's memory is another than the device's.
    fn has_host(&self) -> bool {
        !matches!(self.budget, Budget::Common(_))
    }

    /// A plan with these weights.
    ///
    /// # Errors
    /// [`TooSmall`], if KV of one sequence has no room beside them, or the host too little.
    pub(crate) fn hold(&self, weights: &WeightBytes, kv: Kv) -> Result<Hold, TooSmall> {
        let needs = |total: usize| self.needs(weights, &self.homes.of(total));
        let short = |total: u32| self.homes.of(total as usize).longest() < blocks_of(self.shortest());
        // Homes have shares of all blocks, and a sequence lives on one of them.
        let least = 1 + largest(BLOCKS_MAX, short) as usize;
        if !self.fits(&needs(least), weights) {
            return Err(self.too_small(&needs(0), &needs(least), weights));
        }
        let room = largest(BLOCKS_MAX, |total| self.fits(&needs(total as usize), weights)) as usize;
        let most = if kv == Kv::Half { room / 2 } else { room };
        let homes = self.homes.of(self.homes.blocks_for(self.wanted()).min(most).max(least));
        Ok(self.with_weights(weights, self.without_weights(&homes)))
    }

    /// What of the process's memory attention and the scheduler take for so many KV blocks.
    fn kept_bytes(&self, homes: &KvHomes) -> u64 {
        let blocks = homes.blocks.map(|blocks| blocks.try_into().unwrap_or(u32::MAX));
        let context = self.max_model_len.min(homes.longest().saturating_sub(1).saturating_mul(BLOCK_TOKENS));
        // What lives on the drive is not shared; prefixes there are known one by one.
        let disk = homes.for_prefixes.disk.try_into().unwrap_or(u32::MAX);
        let known = policy::kv::Hold::bytes_at_most(blocks, ByTier { disk, ..blocks });
        known + self.homes.scratch_bytes(context) + self.homes.drive(homes.blocks.disk).sums_bytes()
    }

    /// What of the tiers so many KV blocks take beside everything else.
    fn needs(&self, weights: &WeightBytes, homes: &KvHomes) -> ByTier<u64> {
        let bytes = |tier| homes.blocks[tier] as u64 * self.homes.block_bytes() + homes.slot_bytes[tier];
        let process = self.process_bytes + self.kept_bytes(homes);
        let host = process + weights.on_host() + self.homes.host_work_bytes();
        ByTier {
            device: self.table_bytes + weights.held() + self.homes.work_bytes() + bytes(Tier::Device),
            host: host + bytes(Tier::Host),
            disk: self.homes.drive(homes.blocks.disk).bytes(),
        }
    }

    fn fits(&self, needs: &ByTier<u64>, weights: &WeightBytes) -> bool {
        let host = !self.has_host() || needs.host <= self.budget.host(0);
        let device = needs.device <= self.budget.device(needs.host);
        host && device && needs.disk <= self.disk_left(weights)
    }

    fn without_weights(&self, homes: &KvHomes) -> Hold {
        let KvHomes { blocks, groups, for_prefixes, slot_tokens, slot_bytes } = *homes;
        let of_sequences: usize = Tier::ALL.map(|tier| blocks[tier] - for_prefixes[tier]).into_iter().sum();
        let block_bytes = self.homes.block_bytes();
        Hold {
            process_bytes: self.process_bytes + self.kept_bytes(homes),
            weight_bytes: 0,
            slot_bytes: 0,
            host_weight_bytes: 0,
            host_slot_bytes: 0,
            host_linear_bytes: 0,
            copied_bytes: 0,
            streamed_bytes: 0,
            disk_bytes: 0,
            work_bytes: self.homes.work_bytes(),
            kv_bytes: blocks.device as u64 * block_bytes,
            kv_blocks: blocks.device,
            kv_groups: groups,
            kv_tokens: self.homes.tokens_of(of_sequences),
            host_kv_bytes: blocks.host as u64 * block_bytes,
            host_kv_blocks: blocks.host,
            drive_kv_blocks: blocks.disk,
            drive_kv_bytes: self.homes.drive(blocks.disk).kv_bytes(),
            drive_bytes: self.homes.drive(blocks.disk).bytes(),
            prefix_blocks: for_prefixes,
            kv_slot_tokens: slot_tokens,
            kv_slot_bytes: slot_bytes.device,
            host_kv_slot_bytes: slot_bytes.host,
            host_work_bytes: self.homes.host_work_bytes(),
            max_model_len: self.max_model_len.min((homes.longest() - 1).saturating_mul(BLOCK_TOKENS)),
            limit_bytes: self.config.memory,
            budget: self.budget,
            weight_share: Split::RESIDENT,
        }
    }

    fn with_weights(&self, weights: &WeightBytes, hold: Hold) -> Hold {
        Hold {
            weight_bytes: weights.resident + self.table_bytes,
            slot_bytes: weights.slots,
            host_weight_bytes: weights.host,
            host_slot_bytes: weights.host_slots,
            host_linear_bytes: weights.host_linears,
            copied_bytes: weights.copied(),
            streamed_bytes: weights.streamed,
            disk_bytes: weights.store,
            ..hold
        }
    }

    /// KV in all, in tokens, if there were room.
    pub(crate) fn wanted(&self) -> usize {
        self.config.kv_tokens.unwrap_or(self.config.max_num_seqs * self.max_model_len)
    }

    /// The least that makes sense, in tokens.
    fn shortest(&self) -> usize {
        let length = self.max_model_len;
        let shortest = if self.config.max_model_len.is_some() { length } else { length.min(256) };
        shortest.min(self.config.kv_tokens.unwrap_or(shortest))
    }

    /// What is missing: `need` is for the shortest sequence on the smallest of its homes, `none` without KV.
    fn too_small(&self, none: &ByTier<u64>, need: &ByTier<u64>, weights: &WeightBytes) -> TooSmall {
        let ByTier { device, host, disk } = *need;
        if self.has_host() && host > self.budget.host(0) {
            return self.too_small_host(weights, host);
        }
        if disk > self.disk_left(weights) {
            return TooSmall::Drive {
                need: weights.store + disk,
                limit: weights.store + self.disk_left(weights),
                weights: weights.store,
                kv: disk,
            };
        }
        let (on_device, work, tokens) =
            (weights.held() + self.table_bytes, self.homes.work_bytes(), self.shortest());
        match self.budget {
            Budget::Common(limit) => TooSmall::Memory {
                need: host + device,
                limit,
                // One memory: what is the host's lies beside what is the device's.
                weights: on_device + weights.on_host(),
                work: work + self.homes.host_work_bytes(),
                kv: host + device - none.host - none.device,
                process: self.least_process_bytes(),
                tokens,
                on_drive: self.config.blocks.kv == Split::ON_DISK,
                streamed: weights.streamed > 0,
            },
            Budget::Carved { device: limit, .. } | Budget::Apart { device: limit, .. } => {
                let kv = device - none.device;
                TooSmall::Device { need: device, limit, weights: on_device, work, kv, tokens }
            }
        }
    }

    fn too_small_host(&self, weights: &WeightBytes, need: u64) -> TooSmall {
        TooSmall::Host {
            need,
            limit: self.budget.host(0),
            weights: weights.on_host(),
            kv: need - self.least_process_bytes() - weights.on_host(),
            process: self.least_process_bytes(),
            carved: matches!(self.budget, Budget::Carved { .. }),
        }
    }

    fn least_process_bytes(&self) -> u64 {
        self.process_bytes + self.kept_bytes(&self.homes.of(0))
    }

    /// What the drive may take beside the weights.
    fn disk_left(&self, weights: &WeightBytes) -> u64 {
        self.config.offload.disk.unwrap_or(u64::MAX).saturating_sub(weights.store)
    }

    fn cut_at(&self, device: u32, host: u32) -> Cut {
        let parts = ByTier { device, host, disk: Split::WHOLE - device - host };
        Cut::new(self.blueprint, &self.layout, Split::new(parts).unwrap_or(Split::RESIDENT))
    }

    fn bytes_at(&self, device: u32, host: u32) -> WeightBytes {
        let path = self.config.disk_path();
        WeightBytes::of(&self.cut_at(device, host), &self.layout, path, self.host_linear_bytes)
    }

    /// As many weights on the device as fit beside everything else, then on the host, if that is apart; the rest is
    /// streamed. KV comes first: a larger batch shares each pass over the weights, which is worth more than a shorter pass.
    ///
    /// # Errors
    /// [`TooSmall`], if not even streaming fits.
    pub(crate) fn cut(&self) -> Result<(Hold, Cut), TooSmall> {
        // What a server may need one day must not push out weights that every pass needs.
        let kv = if self.config.kv_tokens.is_some() { Kv::Wanted } else { Kv::Half };
        let none = self.bytes_at(0, 0);
        let least = self.hold(&none, kv)?;
        let spare = self.budget.device(least.process_bytes + least.host_bytes());
        let device_room = spare - (least.arena_bytes() - none.held());
        let host_room =
            self.budget.host(0).saturating_sub(least.process_bytes + least.host_bytes() - none.on_host());
        let rooms = [device_room, host_room];
        let (device, host) = match self.has_host() {
            true => self.fill(device_room, host_room),
            false => (largest(Split::WHOLE, |device| self.bytes_at(device, 0).held() <= device_room), 0),
        };
        let share = self.share_of_all(device, host, rooms);
        let (device, host) = self.of_layers(share);
        let weights = self.bytes_at(device, host);
        self.check_drive(&weights, || self.hold(&WeightBytes::resident(self.blueprint), kv))?;
        let hold = Hold { weight_share: share, ..self.with_weights(&weights, least) };
        Ok((hold, self.cut_at(device, host)))
    }

    /// The shares of all weights nearest to these of the layers that fit: whoever is told them makes the very same cut.
    fn share_of_all(&self, device: u32, host: u32, [device_room, host_room]: [u64; 2]) -> Split {
        let whole = u64::from(Split::WHOLE);
        let always = self.cut_at(0, 0).resident_bytes();
        let layers = self.layout.bytes() - always;
        let of_all = |bytes: u64| (bytes * whole / self.layout.bytes().max(1)) as u32;
        let of_layers = |parts: u32| layers * u64::from(parts) / whole;
        let (first, then) = (of_all(always + of_layers(device)), of_all(of_layers(host)));
        let split = |on_device: u32, on_host: u32| {
            let left = Split::WHOLE - on_device;
            let on_host = on_host.min(left);
            Split::new(ByTier { device: on_device, host: on_host, disk: left - on_host }).ok()
        };
        let fits = |split: &Split| {
            let (device, host) = self.of_layers(*split);
            let weights = self.bytes_at(device, host);
            weights.held() <= device_room && (!self.has_host() || weights.on_host() <= host_room)
        };
        // Panels are rounded, here and there by one more. Where nothing is on the drive, nothing goes there for that.
        let steps = || std::iter::once(0).chain((0..u32::BITS).map(|bit| 1 << bit));
        let more = (0..=ROUNDED).map(|more| (first + more).min(Split::WHOLE));
        let no_drive = more.chain(steps().map(|less| first.saturating_sub(less)));
        let no_drive = no_drive.filter(|_| device + host == Split::WHOLE).map(|first| (first, Split::WHOLE));
        let less = steps().flat_map(|less| {
            let (on_device, on_host) = (first.saturating_sub(less), then.saturating_sub(less));
            [(on_device, then), (first, on_host), (on_device, on_host)]
        });
        let mut all = no_drive.chain(less).filter_map(|(device, host)| split(device, host));
        all.find(fits).unwrap_or(Split::ON_DISK)
    }

    /// Shares of the layers that fill these bytes of the device, then these of the host.
    fn fill(&self, device_room: u64, host_room: u64) -> (u32, u32) {
        let on_host = |device| {
            largest(Split::WHOLE - device, |host| self.bytes_at(device, host).on_host() <= host_room)
        };
        // Slots are larger where panels of a matrix are on three tiers instead of two.
        let all = self.bytes_at(0, 0).streamed.max(1);
        let likely = (host_room.min(all) * u64::from(Split::WHOLE) / all) as u32;
        let held = |device, host| self.bytes_at(device, host).held();
        let mut device =
            largest(Split::WHOLE, |device| held(device, likely.min(Split::WHOLE - device)) <= device_room);
        loop {
            let host = on_host(device);
            if held(device, host) <= device_room {
                return (device, host);
            }
            if device == 0 {
                return (0, largest(host, |host| held(0, host) <= device_room));
            }
            device = device.saturating_sub(Split::WHOLE / 500);
        }
    }

    /// Shares of the layers that make these shares of all weights.
    fn of_layers(&self, split: Split) -> (u32, u32) {
        let whole = u64::from(Split::WHOLE);
        let always = self.cut_at(0, 0).resident_bytes();
        let layers = (self.layout.bytes() - always).max(1);
        let wanted = |tier| self.layout.bytes() * u64::from(split.part(tier)) / whole;
        let parts = |bytes: u64| ((bytes * whole + layers / 2) / layers).min(whole) as u32;
        let device = match split.part(Tier::Device) {
            Split::WHOLE => Split::WHOLE,
            _ => parts(wanted(Tier::Device).saturating_sub(always)),
        };
        let host = match (split.part(Tier::Host), split.part(Tier::Disk)) {
            (0, _) => 0,
            (_, 0) => Split::WHOLE - device,
            _ => parts(wanted(Tier::Host)).min(Split::WHOLE - device),
        };
        (device, host)
    }

    /// An error if weights go to the drive, and cannot. `otherwise` says what does not fit without.
    fn check_drive(
        &self,
        weights: &WeightBytes,
        otherwise: impl FnOnce() -> Result<Hold, TooSmall>,
    ) -> Result<(), TooSmall> {
        let (need, offload) = (weights.store, &self.config.offload);
        match offload.disk {
            _ if need == 0 => Ok(()),
            _ if offload.folder.is_none() => {
                let why = otherwise().err().unwrap_or(TooSmall::Disk { need, limit: 0 });
                Err(TooSmall::NoDrive { why: Box::new(why) })
            }
            Some(limit) if need > limit => Err(TooSmall::Disk { need, limit }),
            _ => Ok(()),
        }
    }
}

/// Parts by which a share is rounded down on the way from layers to all weights.
const ROUNDED: u32 = 2;

/// The largest share up to `most` that fits, if smaller ones do; 0 in any case.
pub(super) fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if fits(most) {
        return most;
    }
    let (mut parts, mut above) = (0, most);
    while above - parts > 1 {
        let middle = parts + (above - parts) / 2;
        if fits(middle) { parts = middle } else { above = middle }
    }
    parts
}

/// A block more than the tokens need: sequences begin blocks before they have filled others.
fn blocks_of(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS) + 1
}

/// An estimate from above of what is not in the arena.
fn overhead(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    let widest = spec.ffn.max(spec.hidden).max(spec.q_rows());
    let shared = shared_bytes_at_most(config.isa, config.max_num_batched_tokens, widest, config.threads);
    let of_gpu = match config.device {
        DeviceChoice::Cuda => cuda::PINNED_BYTES + cuda::DRIVER_HOST_BYTES + STAGED_BYTES,
        DeviceChoice::Cpu | DeviceChoice::Virtual | DeviceChoice::Poisoned => 0,
    };
    RUNTIME_BYTES
        + of_gpu as u64
        + Timeline::bytes(config.lane_spans)
        + (config.threads * thread_bytes(config, widest, spec.vocab)) as u64
        + shared as u64
}

/// Scratch of each compute thread: rows of a block, their sums, expanded weights; a row of logits.
fn thread_bytes(config: &EngineConfig, widest: usize, vocab: usize) -> usize {
    let products = match config.activations {
        Activations::Exact => kept_bytes_at_most(config.isa, config.max_num_batched_tokens, widest),
        Activations::Int8 | Activations::Int16 => ROUNDED_BYTES,
    };
    products + scratch_bytes_at_most(vocab)
}
