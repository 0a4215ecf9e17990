//! What a device has been asked for and does later: the ends of steps, the tokens that it took, when it did what.
//!
//! The lanes go on with the next step meanwhile, which embeds tokens that nobody on the host knows yet:
//!
//! ```text
//! lane    |ask n |ask n+1      |        |ask n+2
//! device  |   step n     |   step n+1      |   step n+2
//! ends                   |tell n           |tell n+1
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use kernels::pick::{Pick, Picked};
use kernels::queue::Mark;
use spec::{Lane, Op, Tier};

use crate::step::bound::{ChunkRun, StepRun};
use crate::step::lanes::Task;
use crate::step::run::Machine;
use kernels::lock::lock;

/// Tickets whose ends are remembered: a node waits for those of its own step and of a few before.
const REMEMBERED: u64 = 1 << 16;

/// A node that a lane has run, by the host's clock.
pub(crate) struct Asked {
    pub(crate) task: Task,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

/// Tokens that the device takes, and for which chunks: their indices among those that draw.
pub(crate) struct Coming {
    picked: Picked,
    rows: Vec<u32>,
}

impl Coming {
    /// The chunks' sequences are told where their tokens are meanwhile.
    pub(crate) fn of(rows: &[(u32, Pick)], picked: Picked, drawing: &[&ChunkRun]) -> Coming {
        let rows: Vec<u32> = rows.iter().map(|(row, _)| *row).collect();
        for (place, row) in (picked.first..).zip(&rows) {
            lock(&drawing[*row as usize].sequence).awaits(place);
        }
        Coming { picked, rows }
    }
}

/// When nodes were done, by ticket, and the newest of each lane.
#[derive(Default)]
pub(crate) struct Ends {
    of: BTreeMap<u64, Instant>,
    lanes: BTreeMap<usize, Instant>,
}

impl Ends {
    /// When a node began at the earliest: once its lane asked for it, once what it waited for was done, and after the node
    /// before it on its lane.
    fn begin_of(&self, asked: &Asked) -> Instant {
        let waits = asked.task.waits.iter().filter_map(|wait| self.of.get(&wait.ticket));
        waits.chain(self.lanes.get(&asked.task.lane)).copied().fold(asked.began, Instant::max)
    }

    fn ended(&mut self, task: &Task, at: Instant) {
        self.of.insert(task.ticket, at);
        self.lanes.insert(task.lane, at);
        while self.of.first_key_value().is_some_and(|(oldest, _)| oldest + REMEMBERED < task.ticket) {
            self.of.pop_first();
        }
    }
}

/// Nodes of these lanes end when the device has done what they asked for; those of others when the host has what it came for.
fn ends_on_device(lane: Lane) -> bool {
    matches!(lane, Lane::Device | Lane::Up | Lane::DiskRead)
}

fn lane_of(task: &Task) -> Lane {
    Lane::ALL[task.lane % Lane::COUNT]
}

fn mark_of(task: &Task) -> Mark {
    Mark { queue: task.lane, number: task.ticket }
}

impl Machine {
    /// Waits until a step is done, and tells its tokens: all at once, so that whoever waits is woken once.
    pub(crate) fn arrive(&self, step: &StepRun) {
        let mut newest: BTreeMap<usize, Mark> = BTreeMap::new();
        for asked in &*lock(&step.asked) {
            let mark = newest.entry(asked.task.lane).or_insert(mark_of(&asked.task));
            mark.number = mark.number.max(asked.task.ticket);
        }
        newest.into_values().for_each(|mark| self.device.reach(mark));
        for batch in &step.batches {
            let Some(Coming { picked, rows }) = lock(&batch.coming).take() else { continue };
            let drawing: Vec<&ChunkRun> = batch.sampling().collect();
            for (row, token) in rows.iter().zip(self.device.picked(picked)) {
                lock(&drawing[*row as usize].sequence).arrived(token);
            }
            rows.iter().for_each(|row| lock(&drawing[*row as usize].sequence).tell_drawn());
        }
    }

    /// Notes when a step's nodes ran, by the device's own clock where it has one. The step is done.
    pub(crate) fn note_times(&self, step: &StepRun) {
        let mut all = std::mem::take(&mut *lock(&step.asked));
        all.sort_by_key(|asked| asked.task.ticket);
        let mut ends = lock(&self.ends);
        let (mut on_device, mut on_host) = (Vec::new(), Vec::new());
        for asked in all {
            let (lane, task) = (lane_of(&asked.task), &asked.task);
            let there = self.device.when(mark_of(task)).filter(|_| ends_on_device(lane));
            let began = ends.begin_of(&asked);
            let ended = there.map_or(asked.ended, |there| there.max(asked.ended)).max(began);
            ends.ended(task, ended);
            let op = step.program.nodes()[task.node].op;
            self.stats.lane_spent(task.lane, &op, ended - began);
            self.timeline.note(op, lane, began, ended - began);
            match op {
                Op::LoadWeights { from: Tier::Host, .. } => {
                    self.stowed.iter().for_each(|stowed| stowed.copying_took(ended - began));
                }
                Op::Attend { on: Tier::Host, .. } | Op::Choose { on: Tier::Host, .. } => {
                    on_host.push((began, ended));
                }
                _ if lane == Lane::Device => on_device.push((began, ended)),
                _ => {}
            }
        }
        self.stats.overlap.add(&on_host, &on_device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::lanes::Wait;
    use std::time::Duration;

    #[test]
    fn a_node_begins_after_all_that_it_waits_for() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let asked = |lane, ticket, began, waits: &[(usize, u64)]| {
            let waits = waits.iter().map(|&(lane, ticket)| Wait { lane, ticket }).collect();
            let task = Task { lane, ticket, node: 0, waits };
            Asked { task, began: at(began), ended: at(began + 1) }
        };
        let mut ends = Ends::default();
        let first = asked(0, 1, 10, &[]);
        assert_eq!(ends.begin_of(&first), at(10));
        ends.ended(&first.task, at(50));
        // The lane asked long before it could begin.
        assert_eq!(ends.begin_of(&asked(0, 2, 12, &[])), at(50));
        assert_eq!(ends.begin_of(&asked(1, 3, 13, &[(0, 1)])), at(50));
        assert_eq!(ends.begin_of(&asked(1, 3, 13, &[])), at(13));
        assert_eq!(ends.begin_of(&asked(1, 3, 60, &[(0, 1)])), at(60));
        ends.ended(&asked(2, 2 + REMEMBERED, 70, &[]).task, at(71));
        assert_eq!(ends.of.len(), 1, "old ones are forgotten");
    }
}
