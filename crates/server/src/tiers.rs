//! What each tier holds, for the page and for metrics.

use engine::{Budget, Counts, Hold};

/// A tier's memory.
pub(crate) struct Tier {
    pub(crate) name: &'static str,
    pub(crate) capacity_bytes: u64,
    pub(crate) parts: Vec<Part>,
}

/// What a part of a tier is for.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Set apart for it.
    pub(crate) reserved_bytes: u64,
    /// Holding something.
    pub(crate) used_bytes: u64,
}

impl Tier {
    pub(crate) fn used_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.used_bytes).sum()
    }
}

/// All tiers.
pub(crate) fn tiers(hold: &Hold, counts: &Counts) -> [Tier; 3] {
    let block_bytes = hold.kv_bytes / hold.kv_blocks.max(1) as u64;
    let host_block_bytes = hold.host_kv_bytes / hold.host_kv_blocks.max(1) as u64;
    let drive_block_bytes = hold.drive_kv_bytes / hold.drive_kv_blocks.max(1) as u64;
    let kept = counts.prefix_blocks.disk.min(hold.prefix_blocks.disk as u64);
    let mut device = vec![
        full("weights", hold.weight_bytes),
        full("slots", hold.slot_bytes),
        full("kv_slots", hold.kv_slot_bytes),
        full("activations", hold.work_bytes),
        part("kv", counts.kv_blocks_used * block_bytes, hold.kv_bytes),
    ];
    let mut host = vec![
        full("weights", hold.host_weight_bytes),
        full("slots", hold.host_slot_bytes),
        full("kv_slots", hold.host_kv_slot_bytes),
        full("activations", hold.host_work_bytes + hold.host_linear_bytes),
        part("kv", counts.host_kv_blocks_used * host_block_bytes, hold.host_kv_bytes),
    ];
    // Where both share one limit, the process lives beside the device.
    let process = full("process", hold.process_bytes);
    let (device_limit, host_limit) = match hold.budget {
        Budget::Common(limit) => {
            device.push(process);
            (limit - hold.host_bytes().min(limit), hold.host_bytes())
        }
        apart => {
            host.push(process);
            (hold.device_limit_bytes(), apart.host(hold.arena_bytes()))
        }
    };
    [
        Tier { name: "device", capacity_bytes: device_limit, parts: device },
        Tier { name: "host", capacity_bytes: host_limit, parts: host },
        Tier {
            name: "disk",
            capacity_bytes: hold.disk_bytes + hold.drive_bytes,
            parts: vec![
                full("weights", hold.disk_bytes),
                full("activations", hold.drive_bytes - hold.drive_kv_bytes),
                part("kv", counts.drive_kv_blocks_used.max(kept) * drive_block_bytes, hold.drive_kv_bytes),
            ],
        },
    ]
}

/// A part that is full from the start.
fn full(name: &'static str, bytes: u64) -> Part {
    part(name, bytes, bytes)
}

fn part(name: &'static str, used_bytes: u64, reserved_bytes: u64) -> Part {
    Part { name, used_bytes, reserved_bytes }
}
