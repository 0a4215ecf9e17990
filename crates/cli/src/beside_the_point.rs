//! Flags that a plan does not do as they say, told beside it.

use engine::{Planned, WeightShare};
use policy::sched::Schedule;
use spec::{Split, Tier};

use crate::args::{AttendOn, EngineArgs, HostWeights};

/// What embeddings and head are more than was asked for, at the least, to be told of.
const MORE: f64 = 0.02;

/// A line for each.
pub(crate) fn told(args: &EngineArgs, planned: &Planned<'_>) -> Vec<String> {
    let hold = planned.hold();
    let elsewhere = hold.host_bytes() > 0 || hold.disk_bytes > 0 || hold.drive_bytes > 0;
    let schedule = &args.schedule;
    let changes_nothing = [
        (
            "--num-batches",
            schedule.num_batches.is_some_and(|batches| batches > 1)
                && planned.blocks().schedule == Schedule::Continuous,
            "plain steps have one batch",
        ),
        (
            "--attend",
            schedule.attend != AttendOn::Auto && planned.config().blocks.kv == Split::RESIDENT,
            "all KV is on the device",
        ),
        ("--link-gbps", args.link_gbps.is_some() && !elsewhere, "nothing is away from the device"),
        (
            "--host-weights",
            args.host_weights != HostWeights::Auto && hold.host_weight_bytes == 0,
            "no weights are on the host",
        ),
    ];
    let idle = changes_nothing
        .into_iter()
        .filter(|(_, given, _)| *given)
        .map(|(flag, _, why)| format!("{flag} changes nothing here: {why}"));
    idle.chain(args.percent.as_ref().and_then(|_| more_on_the_device(planned))).collect()
}

/// Embeddings and head are where the device computes with them, whatever share of weights is asked for.
fn more_on_the_device(planned: &Planned<'_>) -> Option<String> {
    let WeightShare::Exactly(asked) = planned.config().offload.share else { return None };
    let hold = planned.hold();
    let all = hold.weight_bytes + hold.host_weight_bytes + hold.streamed_bytes;
    let held = hold.weight_bytes as f64 / all.max(1) as f64;
    let asked = f64::from(asked.part(Tier::Device)) / f64::from(Split::WHOLE);
    (held > asked + MORE).then(|| {
        format!(
            "--percent asks for {:.0} % of the weights on the device, and {:.0} % are there: embeddings and head always are",
            100.0 * asked,
            100.0 * held
        )
    })
}
