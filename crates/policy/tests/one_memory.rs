//! Plans where the device is the processor: its memory is the host's too, and what does not fit goes to the drive.

use policy::cost::{Dims, ElementBytes};
use policy::pipeline::DiskPath;
use policy::plan::{Attends, BlockSize, Habits, Kernels, Overlap, Question, place, room, search};
use spec::{Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos, Split, Tier};

/// A block whose KV takes 34 GB; its weights take 4 GB.
const BLOCK: BlockSize = BlockSize { batch_size: 16, num_batches: 4 };

fn question(device: u64, host: u64, disk_path: DiskPath) -> Question {
    let link = LinkSpec { bytes_per_s: 1e10, latency: Nanos::ZERO };
    let dims = Dims::named("llama-2-7b").expect("a published model");
    Question {
        dims,
        bytes: ElementBytes { weight: 0.5625, ..ElementBytes::BF16 },
        prompt: 960,
        generated: 64,
        hardware: HardwareSpec {
            name: "a desk".into(),
            devices: 1,
            device: DeviceSpec {
                memory: Bytes(device),
                read_bytes_per_s: 3e10,
                matmul_flops: 1e12,
                attention_flops: 5e11,
                launch: Nanos::ZERO,
            },
            host: HostSpec {
                memory: Bytes(host),
                attention_bytes_per_s: 2e10,
                matmul_flops: 1e12,
                launch: Nanos::ZERO,
            },
            disk: DiskSpec {
                capacity: Bytes(1 << 40),
                read_bytes_per_s: 2e9,
                write_bytes_per_s: 1e9,
                latency: Nanos::ZERO,
            },
            up: link,
            down: link,
            peer: link,
            step_gap: Nanos::ZERO,
        },
        layers: dims.layers,
        stages: 1,
        weights_on_device: None,
        overlap: Overlap::Phases,
        attends: if disk_path == DiskPath::Direct { Attends::Host } else { Attends::Device },
        kernels: Kernels::Chunked,
        disk_path,
        sparse: None,
        habits: Habits::default(),
    }
}

#[test]
fn kv_goes_to_the_drive_where_memory_is_short_and_its_slots_take_their_room() {
    let question = question(8 << 30, 0, DiskPath::Direct);
    let placed = place(&question, BLOCK).expect("the drive has room");
    let kv = placed.placement.kv;
    assert!(kv.part(Tier::Disk) > Split::WHOLE / 2 && kv.part(Tier::Host) == 0, "{kv:?}");
    let [device, ..] = room(&question);
    assert!(placed.peak.device <= device * 1.000_001 && placed.peak.host <= 1.0, "{:?}", placed.peak);
    // All that lives there, and two batches' KV of a layer for what does not.
    let share = |split: Split, tier| f64::from(split.part(tier)) / f64::from(Split::WHOLE);
    let position = question.dims.kv() * question.bytes.kv;
    let of_layers = question.layers as f64 * 64.0 * share(kv, Tier::Device);
    let kv_bytes = 1024.0 * position * (of_layers + 2.0 * 16.0 * share(kv, Tier::Disk));
    assert!(placed.peak.device > kv_bytes * 0.999, "{} of {kv_bytes}", placed.peak.device);
}

#[test]
fn slots_for_the_drive_s_kv_are_the_host_s_where_it_has_memory() {
    let question = question(8 << 30, 1 << 30, DiskPath::Direct);
    let placed = place(&question, BLOCK).expect("the drive has room");
    let disk = f64::from(placed.placement.kv.part(Tier::Disk)) / f64::from(Split::WHOLE);
    let slots = 2.0 * 16.0 * 1024.0 * question.dims.kv() * question.bytes.kv;
    assert!(placed.peak.host >= slots * disk * 0.999, "{:?}", placed.peak);
}

#[test]
fn nothing_passes_through_a_host_that_has_no_memory() {
    assert_eq!(place(&question(8 << 30, 0, DiskPath::ThroughHost), BLOCK), None);
}

#[test]
fn blocks_of_more_tokens_than_fit_32_bits_are_ranked_by_their_rate() {
    let question = Question { generated: 700_000, ..question(1 << 60, 1 << 60, DiskPath::Direct) };
    let found = search(&question, usize::MAX);
    let rates: Vec<f64> = found
        .iter()
        .map(|placed| {
            f64::from(placed.block.batch_size) * f64::from(placed.block.num_batches) / placed.seconds
        })
        .collect();
    assert!(found.len() > 200 && rates.is_sorted_by(|a, b| *a >= b * (1.0 - 1e-12)));
}
