use super::*;
use crate::config::Offload;
use crate::plan::blocks::{Blocks, Passes};
use crate::plan::planned::blueprint;
use policy::sched::Schedule;

fn config() -> EngineConfig {
    EngineConfig {
        max_model_len: Some(128),
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        offload: Offload { device_memory: Some(1 << 29), ..Offload::default() },
        blocks: Blocks { schedule: Some(Schedule::Continuous), ..Blocks::default() },
        ..EngineConfig::plain(1 << 30, 1)
    }
}

/// Whatever fills both memories to the last byte is found again as shares of all weights, but for a few panels.
#[test]
fn rounding_leaves_no_memory_empty() {
    let golden =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama-gqa-tied");
    let checkpoint = model::Checkpoint::open(&golden).unwrap();
    // Of all weights many are always on the device, so that a part of the layers is less than one of all.
    let spec = ModelSpec { layers: 24, vocab: 64 << 10, ..checkpoint.spec().clone() };
    let config = config().settled(Passes::Streamed);
    let checkpoint = model::Checkpoint::dummy(spec, 0);
    let blueprint = blueprint(&checkpoint, &config);
    let room = Room::new(checkpoint.spec(), &blueprint, &config, 0).unwrap();
    let resident = |device| room.bytes_at(device, 0).resident;
    for some in (9973..Split::WHOLE).step_by(9973) {
        // The least share that takes as many panels.
        let device = 1 + largest(some, |less| resident(less) < resident(some));
        for host in [0, 1, 77_777, Split::WHOLE] {
            let host = host.min(Split::WHOLE - device);
            let filled = room.bytes_at(device, host);
            let share = room.share_of_all(device, host, [filled.held(), filled.on_host()]);
            let (on_device, on_host) = room.of_layers(share);
            let found = room.bytes_at(on_device, on_host);
            let idle = (filled.resident + filled.host).saturating_sub(found.resident + found.host);
            assert!(idle <= 200 << 10, "{device} {host}: {share:?} leave {idle} bytes idle");
            assert!(
                host + device < Split::WHOLE || found.store == 0,
                "{device} {host}: {share:?} need a drive"
            );
        }
    }
}
