//! How steps are scheduled and cut into batches: as asked for, then settled.

use policy::pipeline::Overlap;
use policy::sched::{BlockConfig, Delegate, Schedule};
use spec::{Split, Tokens};

use crate::config::{DeviceChoice, EngineConfig};

/// Most batches of a step, where they are not asked for.
const BATCHES_MAX: usize = 8;

/// What was asked of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Which schedule; one that suits weights and requests if absent.
    pub schedule: Option<Schedule>,
    /// Batches that a step may have, each of `max_num_batched_tokens`.
    pub num_batches: Option<usize>,
    /// Sequences that a batch may have; as many as run if absent.
    pub batch_size: Option<usize>,
    /// Tokens of a batch where several share a step that nobody asked for: many small ones need less memory than a large
    /// one. As many as `max_num_batched_tokens` if absent.
    pub batch_tokens: Option<usize>,
    /// What is known of the requests to come.
    pub expected: Option<Expected>,
    /// Where KV lives: each sequence on one tier.
    pub kv: Split,
    /// Where activations are between layers, in batches.
    pub hidden: Split,
    /// Where decodes attend whose KV lives away from the device.
    pub delegate: Delegate,
    /// What goes on at the same time.
    pub overlap: Overlap,
}

impl Default for Blocks {
    /// All on the device, by a schedule that suits weights and requests.
    fn default() -> Self {
        Self {
            schedule: None,
            num_batches: None,
            batch_size: None,
            batch_tokens: None,
            expected: None,
            kv: Split::RESIDENT,
            hidden: Split::RESIDENT,
            delegate: Delegate::default(),
            overlap: Overlap::default(),
        }
    }
}

impl Blocks {
    /// Whether KV and activations stay on the device.
    pub fn stay(&self) -> bool {
        (self.kv, self.hidden) == (Split::RESIDENT, Split::RESIDENT)
    }
}

/// Requests to come, as far as they are known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// How many.
    pub requests: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens that each generates, if known.
    pub output: Option<usize>,
}

/// Whether a pass over the weights reads the drive or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    /// All weights stay where they are used.
    Resident,
    /// Each pass loads some: several batches should share it.
    Streamed,
}

impl EngineConfig {
    /// The same with the schedule that suits weights and requests, and how it cuts steps into batches.
    ///
    /// Where weights are resident a step is a batch, and sequences begin as soon as there is room. Where they are
    /// streamed, and so many prompts are known to come that a batch cannot take them, a step has as many batches as
    /// they need, by zig-zag or diagonal (see [`Schedule::auto`]); by plain where nobody knows how long they will grow, since
    /// the others keep room for all that may come. Where KV or activations leave the device it is zig-zag or diagonal in any
    /// case.
    pub(crate) fn settled(&self, passes: Passes) -> EngineConfig {
        let stay = self.blocks.stay();
        let shared = passes == Passes::Streamed || !stay;
        // No other schedule puts aside on the tiers below what makes way on the device.
        let aside = self.host_kv_tokens + self.drive_kv_tokens > 0;
        let plain = self.blocks.schedule == Some(Schedule::Continuous) || aside;
        let expected = self.blocks.expected.filter(|_| shared && !plain);
        let (schedule, several) = expected.map_or((Schedule::Continuous, None), |e| self.several(e));
        let schedule = if stay || schedule != Schedule::Continuous { schedule } else { Schedule::Zigzag };
        let schedule = self.blocks.schedule.unwrap_or(schedule);
        let least = if schedule == Schedule::Continuous { 1 } else { 2 };
        let cut = self.blocks.num_batches.is_none() && several.is_some();
        let max_num_batched_tokens = if cut { self.batch_tokens() } else { self.max_num_batched_tokens };
        let whole =
            several.map_or(1, |tokens: usize| tokens.div_ceil(max_num_batched_tokens).min(BATCHES_MAX));
        let batches = self.blocks.num_batches.unwrap_or(whole.max(least));
        // Copies of one batch's KV and activations go beside the compute of another.
        let seqs = if stay { self.max_num_seqs } else { self.max_num_seqs.div_ceil(batches) };
        let seqs = self.blocks.batch_size.unwrap_or(seqs).min(max_num_batched_tokens);
        let (schedule, num_batches, batch_size) = (Some(schedule), Some(batches), Some(seqs));
        let blocks = Blocks { schedule, num_batches, batch_size, ..self.blocks };
        // Where weights are streamed the next step's first are read while this step ends.
        let depth = if passes == Passes::Streamed { 2 } else { self.depth() };
        let steps_in_flight = Some(self.steps_in_flight.unwrap_or(depth));
        EngineConfig { max_num_batched_tokens, blocks, steps_in_flight, ..self.clone() }
    }

    /// Steps under way at once. A GPU has the next before it is done with one; a processor would plan on the cores that compute.
    pub(crate) fn depth(&self) -> usize {
        let usual = if self.device == DeviceChoice::Cuda { 2 } else { 1 };
        self.steps_in_flight.unwrap_or(usual)
    }

    /// What the scheduler is told of a config that is settled.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn block_config(&self, kv_slot_tokens: u64) -> BlockConfig {
        let Blocks {
            schedule: Some(schedule), num_batches: Some(batches), batch_size: Some(batch_seqs), ..
        } = self.blocks
        else {
            panic!("schedules are settled before they are used");
        };
        BlockConfig { schedule, batches, batch_seqs, kv_slot_tokens, delegate: self.blocks.delegate }
    }

    /// At least one for each sequence, so that all can decode in one batch.
    fn batch_tokens(&self) -> usize {
        let wanted = self.blocks.batch_tokens.unwrap_or(self.max_num_batched_tokens);
        wanted.max(self.max_num_seqs).min(self.max_num_batched_tokens)
    }

    /// The schedule for these requests, and prompt tokens that can begin together, if they are more than a batch has.
    fn several(&self, expected: Expected) -> (Schedule, Option<usize>) {
        let Expected { requests, prompt, output } = expected;
        let begins = requests.min(self.max_num_seqs) * prompt;
        if begins <= self.max_num_batched_tokens {
            return (Schedule::Continuous, None);
        }
        let Some(output) = output else { return (Schedule::Continuous, Some(begins)) };
        let tokens = |n: usize| Tokens(u32::try_from(n).unwrap_or(u32::MAX));
        let hold = self.kv_tokens.unwrap_or(self.max_num_seqs * (prompt + output));
        (Schedule::auto(tokens(prompt), tokens(output), requests, tokens(hold)), Some(begins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_steps_are_under_way_as_was_asked_for_and_else_as_suits_the_device_and_the_weights() {
        let depth = |device, asked, passes| {
            let config = EngineConfig { device, steps_in_flight: asked, ..EngineConfig::plain(1 << 30, 1) };
            config.settled(passes).depth()
        };
        let (cpu, gpu) = (DeviceChoice::Cpu, DeviceChoice::Cuda);
        let found = [cpu, gpu]
            .map(|device| [Passes::Resident, Passes::Streamed].map(|passes| depth(device, None, passes)));
        assert_eq!(found, [[1, 2], [2, 2]]);
        assert_eq!([1, 3].map(|asked| depth(gpu, Some(asked), Passes::Streamed)), [1, 3]);
    }
}
