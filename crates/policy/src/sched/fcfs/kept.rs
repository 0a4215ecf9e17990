//! Prefixes on several tiers: blocks kept for reuse are copied down when a tier runs short of free ones, give way there to
//! newer ones, and come back when somebody begins with them.
//!
//! ```text
//! device ──► host ──► drive        a level that has no blocks is left out
//!        ◄──      ◄┄┄              ┄ read before its sequence begins: a read may fail, and then only the hit is lost
//! ```

use super::plan::Draft;
use super::{Fcfs, Rank};
use crate::kv::Hit;
use crate::sched::block::Schedule;
use spec::{BlockHash, BlockId, Kept, Tier};

/// What a sequence can begin with on the tiers below the device.
struct Below {
    host: Vec<(BlockHash, BlockId)>,
    /// After what the host has, as far as it is read.
    disk: Vec<(BlockHash, BlockId)>,
    /// Blocks that the drive has after that, and that are computed sooner.
    computed: usize,
}

impl Fcfs {
    /// Whether the drive's blocks are for prefixes; elsewhere sequences live there.
    fn keeps_on_drive(&self) -> bool {
        self.config.block.schedule == Schedule::Continuous && self.hold.capacity(Tier::Disk) > 0
    }

    /// Where prefixes are kept, from the device down.
    pub(super) fn levels(&self) -> Vec<Tier> {
        let has = |tier: &Tier| match tier {
            Tier::Device => true,
            Tier::Host => self.hold.capacity(Tier::Host) > 0,
            Tier::Disk => self.keeps_on_drive(),
        };
        Tier::ALL.into_iter().filter(has).collect()
    }

    /// What lower tiers have of a sequence's prompt after its first `on_device` blocks.
    fn below(&mut self, rank: Rank, on_device: usize) -> Below {
        let sequence = self.table.live(rank.1);
        let wanted = &sequence.reusable()[on_device..];
        let host = self.hold.find_on(Tier::Host, wanted);
        let left = sequence.reusable().len().saturating_sub(sequence.fetches);
        let mut disk = self.hold.find_on(Tier::Disk, &wanted[host.len()..]);
        disk.truncate(if self.config.block.schedule == Schedule::Continuous { left } else { 0 });
        let before = on_device + host.len();
        let read = self.config.read_or_compute.is_none_or(|worth| worth.reads(before, disk.len()));
        let computed = if read { 0 } else { disk.len() };
        disk.truncate(disk.len() - computed);
        Below { host, disk, computed }
    }

    /// Adds to what a sequence begins with (`hit`, taken) what the host has of its prompt after that.
    pub(super) fn promote(&mut self, draft: &mut Draft, rank: Rank, hit: Hit) -> Hit {
        let Below { host: found, computed, .. } = self.below(rank, hit.numbers);
        let fresh = self.bring_up(draft, rank, &found);
        let through_host = self.hold.capacity(Tier::Host) > 0;
        let sequence = self.table.live(rank.1);
        // As beginnings are counted: when it comes in, not when it comes back.
        if sequence.preemptions == 0 {
            let all = hit.numbers + fresh.len();
            let fetched = sequence.fetched.min(all);
            let passed = if through_host { fetched } else { 0 };
            self.fetched += fetched as u64;
            self.computed_instead += computed as u64;
            self.promoted += sequence.promoted.min(all).saturating_sub(passed) as u64;
        }
        // Where there is a tier below, a block has all layers.
        Hit { numbers: hit.numbers + fresh.len(), blocks: [hit.blocks, fresh].concat() }
    }

    /// Whether a sequence waits for what the drive has of its prompt. A piece of it is read, beside the step where there is
    /// one, into the tier above; if that is the host, what it has already makes room there and goes up. A sequence asks for
    /// no more than its prompt: what is lost on the way, to errors or to others, is computed.
    pub(super) fn fetches(&mut self, draft: &mut Draft, rank: Rank, hit: &Hit) -> bool {
        if self.table.live(rank.1).coming > 0 {
            return true;
        }
        let Below { host, mut disk, .. } = self.below(rank, hit.numbers);
        if disk.is_empty() {
            return false;
        }
        let alone = draft.is_empty();
        let most = if alone { self.config.max_move_blocks } else { self.config.max_drive_blocks };
        self.hold.share(&hit.blocks);
        let to = if self.hold.capacity(Tier::Host) > 0 { Tier::Host } else { Tier::Device };
        self.hold.touch(Tier::Host, &host, draft.id);
        // While one half of the host fills, the other goes up.
        let half = if to == Tier::Host { self.hold.capacity(to).div_ceil(2) } else { usize::MAX };
        disk.truncate(most.min(half).min(self.hold.available(to)));
        if !disk.is_empty() {
            let blocks = self.hold.fetch(to, &disk, draft.id);
            // The pieces before are of use without this one, not the other way round: the prompt grows old from its end.
            let whole = self.hold.find_on(Tier::Disk, self.table.live(rank.1).reusable());
            self.hold.touch(Tier::Disk, &whole, draft.id);
            draft.kept.push(Kept { from: Tier::Disk, to, blocks });
            draft.fetched_for = Some(rank.1);
            let sequence = self.table.live(rank.1);
            (sequence.coming, sequence.fetches) = (disk.len(), sequence.fetches + disk.len());
        }
        let up = &host[..host.len().min(self.config.max_move_blocks)];
        let fresh = self.bring_up(draft, rank, up);
        let waits = !disk.is_empty() || !fresh.is_empty();
        self.hold.give_back(Tier::Device, &[&hit.blocks[..], &fresh].concat(), Some(draft.id));
        waits
    }

    /// Whether what the host has of a sequence's prompt, after what the device has of it, would stretch a step that
    /// others wait for. Then the sequence waits, and a piece of it comes up beside the step.
    pub(super) fn comes_in_pieces(&mut self, draft: &mut Draft, rank: Rank, hit: &Hit) -> bool {
        let found = self.below(rank, hit.numbers).host;
        let up = draft.kept.iter().filter(|kept| kept.to == Tier::Device).map(|kept| kept.blocks.len());
        let left = self.config.max_move_blocks.saturating_sub(up.sum());
        if draft.is_empty() || found.len() <= left {
            return false;
        }
        self.hold.share(&hit.blocks);
        let fresh = self.bring_up(draft, rank, &found[..left]);
        self.hold.give_back(Tier::Device, &[&hit.blocks[..], &fresh].concat(), Some(draft.id));
        true
    }

    /// Copies of these host blocks on the device, taken.
    fn bring_up(&mut self, draft: &mut Draft, rank: Rank, found: &[(BlockHash, BlockId)]) -> Vec<BlockId> {
        if found.is_empty() {
            return Vec::new();
        }
        let fresh =
            self.hold.take(Tier::Device, found.len()).expect("room was found for all known positions");
        self.hold.promote(found, &fresh, draft.id);
        self.table.live(rank.1).promoted += found.len();
        let blocks = found.iter().zip(&fresh).map(|(&(_, below), &block)| (below, block)).collect();
        draft.kept.push(Kept { from: Tier::Host, to: Tier::Device, blocks });
        fresh
    }

    /// Copies blocks that are kept for reuse to the tier below before their room is needed: beside a step that has something to
    /// do and, where the drive keeps some, while there is nothing else to do. After admission: what goes down in a step does not
    /// come up in it.
    pub(super) fn save(&mut self, draft: &mut Draft) {
        if draft.is_empty() && !self.keeps_on_drive() {
            return;
        }
        let levels = self.levels();
        // The lowest first: copies of one step go side by side, so that what comes to a tier in it cannot leave it.
        for (from, to) in levels.iter().zip(&levels[1..]).rev().map(|(from, to)| (*from, *to)) {
            if self.hold.free(from) >= self.hold.capacity(from) / 2 {
                continue;
            }
            // A step that computes many blocks takes longer than writing as many.
            let drive = self.config.max_drive_blocks.max(draft.tokens().full_blocks());
            let most = if to == Tier::Disk { drive } else { self.config.max_move_blocks };
            let last = levels.last() == Some(&to);
            let most = if last { most } else { self.hold.room_for_copies(to, most) };
            let blocks = self.hold.save((from, to), most, draft.id);
            if !blocks.is_empty() {
                draft.kept.push(Kept { from, to, blocks });
            }
        }
    }
}
