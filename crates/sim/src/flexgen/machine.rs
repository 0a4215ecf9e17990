//! A machine from a preset file: each rate beside the source that it is from.

use serde::Deserialize;
use spec::{Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos};
use std::collections::BTreeMap;

/// One constant of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Rate {
    /// In the unit that its name ends with (bytes, seconds, and each of them a second).
    pub value: f64,
    /// Where it was found.
    pub source: String,
}

/// A machine of the papers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What the command line calls it.
    pub name: String,
    /// What it was.
    pub about: String,
    /// Its constants, by name.
    pub rates: BTreeMap<String, Rate>,
}

/// The presets, as they lie in the repository.
const PRESETS: [&str; 1] = [include_str!("../../presets/t4.json")];

/// Names that [`Machine::named`] knows.
pub const MACHINES: [&str; 1] = ["t4"];

/// A constant that a machine lacks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the preset `{machine}` has no positive `{rate}`: add it, with its source")]
pub struct MissingRate {
    /// Whose.
    pub machine: String,
    /// Which.
    pub rate: &'static str,
}

impl Machine {
    /// A preset by its name.
    pub fn named(name: &str) -> Option<Machine> {
        let machines =
            PRESETS.iter().map(|text| serde_json::from_str(text).expect("committed presets parse"));
        machines.into_iter().find(|machine: &Machine| machine.name == name)
    }

    /// The same machine with one constant changed: how much hangs on it.
    pub fn scaled(mut self, rate: &str, by: f64) -> Machine {
        self.rates.get_mut(rate).expect("a constant of the machine").value *= by;
        self
    }

    /// Its constants as numbers.
    ///
    /// # Errors
    /// The first that is missing or not positive.
    pub fn rates(&self) -> Result<Rates, MissingRate> {
        let get = |rate: &'static str| {
            let value = self.rates.get(rate).map(|rate| rate.value).filter(|value| *value > 0.0);
            value.ok_or_else(|| MissingRate { machine: self.name.clone(), rate })
        };
        Ok(Rates {
            gemm_flops: get("gemm_flops")?,
            device_bytes_per_s: get("device_bytes_per_s")?,
            pinned: get("pinned_bytes_per_s")?,
            pageable_up: get("pageable_up_bytes_per_s")?,
            staged_up: get("staged_up_bytes_per_s")?,
            pageable_down: get("pageable_down_bytes_per_s")?,
            disk_read: get("disk_read_bytes_per_s")?,
            disk_write: get("disk_write_bytes_per_s")?,
            host_attention: get("host_attention_bytes_per_s")?,
            host_memory: get("host_memory_bytes_per_s")?,
            dequantise: get("dequantise_bytes_per_s")?,
            hook_s: get("hook_seconds")?,
            barrier_s: get("barrier_seconds")?,
            device_bytes: get("device_bytes")?,
            host_bytes: get("host_bytes")?,
            disk_bytes: get("disk_bytes")?,
        })
    }
}

/// What a machine can do, in bytes a second where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Dense half-precision products, operations a second.
    pub gemm_flops: f64,
    /// Reading the device's memory.
    pub device_bytes_per_s: f64,
    /// Copies to and from pinned host memory.
    pub pinned: f64,
    /// Copies from pageable host memory to the device, through a pinned relay that the runtime fills.
    pub pageable_up: f64,
    /// The same where the driver stages them.
    pub staged_up: f64,
    /// Copies from the device to pageable host memory.
    pub pageable_down: f64,
    /// Sequential reads of the drive.
    pub disk_read: f64,
    /// Sequential writes of the drive.
    pub disk_write: f64,
    /// FlexGen's attention on the CPU, in bytes of half-precision KV.
    pub host_attention: f64,
    /// Attention on the CPU that reads KV at the speed of memory.
    pub host_memory: f64,
    /// Expanding 4-bit numbers, in bytes of half precision made.
    pub dequantise: f64,
    /// A hook of the interpreter that fetches a module's weights, seconds.
    pub hook_s: f64,
    /// Waiting for all streams and copy threads, seconds.
    pub barrier_s: f64,
    /// Memory of the device.
    pub device_bytes: f64,
    /// Memory of the host.
    pub host_bytes: f64,
    /// Room on the drive.
    pub disk_bytes: f64,
}

impl Rates {
    /// One device of the machine with its host and its drive, as rooflines have it: copies to and from pinned memory, attention
    /// on the host at the speed of its memory, and nothing that takes time before it begins.
    pub fn hardware(&self, name: &str) -> HardwareSpec {
        let link = LinkSpec { bytes_per_s: self.pinned, latency: Nanos::ZERO };
        HardwareSpec {
            name: name.to_string(),
            devices: 1,
            device: DeviceSpec {
                memory: Bytes(self.device_bytes as u64),
                read_bytes_per_s: self.device_bytes_per_s,
                matmul_flops: self.gemm_flops,
                attention_flops: self.gemm_flops,
                launch: Nanos::ZERO,
            },
            host: HostSpec {
                memory: Bytes(self.host_bytes as u64),
                attention_bytes_per_s: self.host_memory,
                // A decode has an operation for each byte that it reads, and ten can be had in that time.
                matmul_flops: 10.0 * self.host_memory,
                launch: Nanos::ZERO,
            },
            disk: DiskSpec {
                capacity: Bytes(self.disk_bytes as u64),
                read_bytes_per_s: self.disk_read,
                write_bytes_per_s: self.disk_write,
                latency: Nanos::ZERO,
            },
            up: link,
            down: link,
            peer: link,
            step_gap: Nanos::ZERO,
        }
    }
}
