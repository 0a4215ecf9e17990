//! What a machine can do: rates for the roofline, capacities for the budgets.

use crate::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

/// One device: a GPU, or a share of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Memory that may be used.
    pub memory: Bytes,
    /// Rate that memory is read at, bytes per second.
    pub read_bytes_per_s: f64,
    /// Dense matrix products, operations (two a multiply-add) per second.
    pub matmul_flops: f64,
    /// Attention over several queries, operations per second.
    pub attention_flops: f64,
    /// Time to start an op.
    pub launch: Nanos,
}

/// The host that devices hang off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Memory that may be used.
    pub memory: Bytes,
    /// Rate at which attention reads KV, bytes per second.
    pub attention_bytes_per_s: f64,
    /// Dense matrix products, operations per second.
    pub matmul_flops: f64,
    /// Time to start an op.
    pub launch: Nanos,
}

/// A drive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskSpec {
    /// Room that may be used.
    pub capacity: Bytes,
    /// Sequential reads, bytes per second.
    pub read_bytes_per_s: f64,
    /// Sequential writes, bytes per second.
    pub write_bytes_per_s: f64,
    /// Time to start a request.
    pub latency: Nanos,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Time to start a copy.
    pub latency: Nanos,
}

/// A machine: equal devices, one host, one drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareSpec {
    /// What to call it.
    pub name: String,
    /// How many devices.
    pub devices: u16,
    /// Each of them.
    pub device: DeviceSpec,
    /// Their host.
    pub host: HostSpec,
    /// Its drive.
    pub disk: DiskSpec,
    /// From host to device.
    pub up: LinkSpec,
    /// From device to host.
    pub down: LinkSpec,
    /// From device to device.
    pub peer: LinkSpec,
    /// Between the start of a step and its first op, once for every stage: preparing, scheduling, launching.
    pub step_gap: Nanos,
}
