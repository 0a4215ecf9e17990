//! What reading takes, where requests may wait for it or for each other.

use kernels::attention::BLOCK_TOKENS;
use policy::cost::Tables;
use policy::sched::{FcfsConfig, ReadOrCompute};
use spec::Nanos;

use crate::config::DeviceChoice;
use crate::plan::hold::kv_layout;
use crate::plan::planned::Planned;

/// Positions of a step by which the time of one is judged, at the most.
const ROWS: usize = 512;

/// Rates that hardly any machine of today passes: what a pass of the weights takes at least is told by them.
const DRIVE_BYTES_PER_S: f64 = 8e9;
const LINK_BYTES_PER_S: f64 = 64e9;
/// Of the time of a pass, what the first step waits for further requests: those who hand in many do so one by one.
const GATHERED: f64 = 0.05;

impl Planned<'_> {
    /// How long requests that come to an idle engine wait for more of them: a pass that reads weights reads them all, for one
    /// sequence as for many.
    pub(crate) fn gather(&self) -> Nanos {
        let (drive, link) = (self.hold().streamed_bytes as f64, self.hold().copied_bytes as f64);
        Nanos::from_secs(GATHERED * (drive / DRIVE_BYTES_PER_S + link / LINK_BYTES_PER_S))
    }

    /// What a block of KV of the drive takes to read and to compute, by the costs that the engine was planned with. None where
    /// no costs are known, or nothing is kept on the drive.
    pub(crate) fn read_or_compute(&self) -> Option<ReadOrCompute> {
        let tables = self.foresight().filter(|_| self.hold().prefix_blocks.disk > 0)?.costs();
        let layers = self.spec().layers as f64;
        let ns = |seconds: f64| Nanos::from_secs(layers * seconds).0;
        let rows = self.config().max_num_batched_tokens.clamp(1, ROWS) as f64;
        let linears = [&tables.qkv, &tables.out, &tables.mlp].map(|linear| linear.seconds.at(rows));
        let (block, keys) = (BLOCK_TOKENS as f64, ROWS as f64);
        Some(ReadOrCompute {
            read_ns: ns(self.read_s(&tables)),
            compute_ns: ns(linears.iter().sum::<f64>() / rows * block),
            attend_ns: ns(tables.prefill.at(keys) / keys * block * block),
        })
    }

    /// Seconds for a layer of a block, among as many as a step reads beside others; over the link where there is one.
    fn read_s(&self, tables: &Tables) -> f64 {
        let bytes = kv_layout(self.spec(), self.config().kv_dtype()).block_bytes() as f64;
        let many = FcfsConfig::default().max_drive_blocks as f64;
        let read = tables.disk_read.at(bytes * many) / many;
        let over_link = self.hold().host_kv_blocks > 0 || self.config().device == DeviceChoice::Cuda;
        let link = self.config().offload.link.map_or(f64::INFINITY, |rate| rate as f64);
        read + if over_link { bytes / tables.copy_bytes_per_s.min(link) } else { 0.0 }
    }
}
