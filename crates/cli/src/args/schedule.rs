//! How steps are scheduled: flags of every command that loads a model.

use clap::{Args, ValueEnum};
use policy::sched::{Delegate, Schedule};

use super::{at_least_one, typed};

#[derive(Args, Clone, Copy)]
pub(crate) struct ScheduleArgs {
    /// When requests begin, and in which order batches go through layers.
    #[arg(long, value_enum, default_value_t, help_heading = "Schedule")]
    pub(crate) schedule: ScheduleName,
    /// Batches of a step, which share each load of streamed weights [default: one, or as many as known prompts fill].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Schedule")]
    pub(crate) num_batches: Option<u16>,
    /// Sequences of a batch [default: as many as run at once].
    #[arg(long, value_parser = at_least_one, help_heading = "Schedule")]
    pub(crate) batch_size: Option<usize>,
    /// Where decodes attend whose KV lives away from the device (see --percent); auto: where the measured costs of this
    /// machine say that it takes less.
    #[arg(long, value_enum, default_value_t, help_heading = "Schedule")]
    pub(crate) attend: AttendOn,
    /// One thing at a time: loads, copies and compute wait for each other, to see what overlapping them brings.
    #[arg(long, help_heading = "Schedule")]
    pub(crate) no_overlap: bool,
}

/// Where attention is computed over KV that lives on the host or the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttendOn {
    /// Where it takes less.
    #[default]
    Auto,
    /// On the host, where the KV is: queries go down and results come up.
    Host,
    /// On the device: KV is copied there, layer by layer.
    Device,
}

impl AttendOn {
    /// What was asked for, if anything was.
    pub(crate) fn delegate(self) -> Option<Delegate> {
        match self {
            AttendOn::Auto => None,
            AttendOn::Host => Some(Delegate::Host),
            AttendOn::Device => Some(Delegate::Streamed),
        }
    }

    /// What is asked for by it.
    pub(crate) fn of(delegate: Delegate) -> AttendOn {
        match delegate {
            Delegate::Host => AttendOn::Host,
            Delegate::Streamed => AttendOn::Device,
        }
    }
}

/// Schedules by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScheduleName {
    /// Plain where all weights stay on the device, else what is planned to be fastest; where --percent places weights, plain
    /// unless requests are known to need several batches: then diagonal where its blocks are much larger, else zigzag.
    #[default]
    Auto,
    /// Continuous batching: requests begin as soon as there is room.
    Plain,
    /// One batch after the other through all layers: the baseline of others.
    Row,
    /// Layer by layer, all batches through each; requests begin when there is room for all that they may become.
    Zigzag,
    /// As zigzag, but requests begin staggered, so that memory is full at all times.
    Diagonal,
}

impl ScheduleName {
    /// A schedule in the flag's words.
    pub(crate) fn of(schedule: Schedule) -> String {
        let name = ScheduleName::value_variants().iter().find(|name| name.schedule() == Some(schedule));
        name.map_or(String::new(), |name| typed(*name))
    }

    /// What was asked for, if anything was.
    pub(crate) fn schedule(self) -> Option<Schedule> {
        match self {
            ScheduleName::Auto => None,
            ScheduleName::Plain => Some(Schedule::Continuous),
            ScheduleName::Row => Some(Schedule::Row),
            ScheduleName::Zigzag => Some(Schedule::Zigzag),
            ScheduleName::Diagonal => Some(Schedule::Diagonal),
        }
    }
}
