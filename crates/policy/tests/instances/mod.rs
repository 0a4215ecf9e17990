//! Questions to the planner whose programmes another solver has solved: models, machines and ways to overlap, from what
//! fits easily to what hardly does.

use policy::cost::{Dims, ElementBytes};
use policy::pipeline::DiskPath;
use policy::plan::{Attends, BlockSize, Habits, Kernels, Overlap, Question};
use spec::{Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos};

const GIB: u64 = 1 << 30;

/// Gibibytes of device, host and drive, and how much faster than a T4's host its machine is.
const MACHINES: [(&str, [u64; 3], f64); 3] =
    [("t4", [14, 180, 1300], 1.0), ("desk", [4, 28, 400], 0.5), ("tight", [2, 8, 90], 2.0)];

fn hardware(name: &str, [device, host, disk]: [u64; 3], speed: f64) -> HardwareSpec {
    let link = |bytes_per_s| LinkSpec { bytes_per_s, latency: Nanos::ZERO };
    HardwareSpec {
        name: name.into(),
        devices: 1,
        device: DeviceSpec {
            memory: Bytes(device * GIB),
            read_bytes_per_s: 256e9,
            matmul_flops: 20.7e12,
            attention_flops: 10e12,
            launch: Nanos::ZERO,
        },
        host: HostSpec {
            memory: Bytes(host * GIB),
            attention_bytes_per_s: 12.3e9 * speed,
            matmul_flops: 1e12,
            launch: Nanos::ZERO,
        },
        disk: DiskSpec {
            capacity: Bytes(disk * GIB),
            read_bytes_per_s: 2.65e9,
            write_bytes_per_s: 1.4e9,
            latency: Nanos::ZERO,
        },
        up: link(12.3e9 * speed),
        down: link(9e9 * speed),
        peer: link(12.3e9),
        step_gap: Nanos::ZERO,
    }
}

/// Each with a name.
pub(crate) fn instances() -> Vec<(String, Question, BlockSize)> {
    let mut all = Vec::new();
    let ways = [
        (Overlap::Barriers, Attends::Host, Kernels::Eager, DiskPath::ThroughHost),
        (Overlap::Phases, Attends::Device, Kernels::Fused, DiskPath::ThroughHost),
        (Overlap::Diagonal, Attends::Host, Kernels::Chunked, DiskPath::Direct),
    ];
    for (machine, memory, speed) in MACHINES {
        for (model, weight, kv) in [
            ("opt-6.7b", 2.0, 2.0),
            ("opt-30b", 2.0, 2.0),
            ("opt-175b", 0.5625, 0.5625),
            ("llama-2-7b", 2.0, 2.0),
        ] {
            for (overlap, attends, kernels, disk_path) in ways {
                for (batch_size, num_batches, prompt, generated) in
                    [(4, 1, 512, 32), (32, 8, 512, 32), (64, 2, 32, 128)]
                {
                    let question = Question {
                        dims: Dims::named(model).expect("a published model"),
                        bytes: ElementBytes { weight, kv, ..ElementBytes::BF16 },
                        prompt,
                        generated,
                        hardware: hardware(machine, memory, speed),
                        layers: Dims::named(model).expect("a published model").layers,
                        stages: 1,
                        weights_on_device: None,
                        overlap,
                        attends,
                        kernels,
                        disk_path,
                        sparse: None,
                        habits: Habits::default(),
                    };
                    let name = format!(
                        "{model} on {machine}, {overlap:?}, {batch_size}x{num_batches}, {prompt}+{generated}"
                    );
                    all.push((name, question, BlockSize { batch_size, num_batches }));
                }
            }
        }
    }
    all
}
