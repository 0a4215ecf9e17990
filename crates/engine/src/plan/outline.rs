//! An engine in plain data: what the simulator needs to run it in virtual time, before anything is loaded.

use model::store::{Cut, Half, Stowed};
use policy::cost::{Dims, ElementBytes, Measured, OverLink, PartBytes, Sparse, Tables};
use policy::pipeline::{BothWays, Delegation, DiskPath, Overlap, Plan};
use policy::sched::FcfsConfig;
use spec::{ByTier, LinkSpec, ModelSpec, Nanos, Placement, Split, Tier};

use crate::config::HostLinears;
use crate::plan::budget::Budget;
use crate::plan::hold::{Hold, kv_layout};
use crate::plan::planned::Planned;
use crate::tiers::chosen::by_token;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The scheduler's limits.
    pub scheduler: FcfsConfig,
    plan: Plan,
    /// The most tokens of a batch for which the host may compute with its weights.
    host_tokens: u32,
    /// Whether it then does in any case.
    host_always: bool,
    /// Sizes of the model.
    pub dims: Dims,
    /// Bytes of its numbers.
    pub bytes: ElementBytes,
    /// How many of the last positions each layer sees; empty where all see all of them.
    pub windows: Vec<Option<u32>>,
    /// Weights that each pass reads from the drive; empty where all are resident.
    pub from_disk: PartBytes,
    /// Weights that each pass copies up from the host.
    pub from_host: PartBytes,
    /// What lives where, in shares of bytes.
    pub placement: Placement,
    /// The shares of all weights that make this very placement of them, wherever they are asked for.
    pub weight_share: Split,
    /// How what is on the drive comes to the device.
    pub disk_path: DiskPath,
    /// Whether a share of the keys alone counts.
    pub sparse: Option<Sparse>,
    /// The rehearsed link between host and device, bytes per second.
    pub link_bytes_per_s: Option<u64>,
    /// Bytes of the weights that need not be on the device: those of the layers.
    pub layer_bytes: u64,
    /// What device and host may hold.
    pub budget: Budget,
    /// What the drive may hold, where that is known.
    pub drive: Option<u64>,
    /// Bytes that each tier holds at the most.
    pub peak_bytes: ByTier<u64>,
}

impl Outline {
    /// What steps are lowered by, where ops take what these tables say. Kernels of host and device share a team of
    /// threads, unless the device is a GPU; the host computes with its weights where the engine would find that cheaper (see `delegate`).
    pub fn plan(&self, tables: &Tables) -> Plan {
        let mut plan = self.plan;
        let computes_for_both = !matches!(self.budget, Budget::Apart { .. });
        if computes_for_both && plan.overlap == Overlap::Lanes {
            plan.overlap = Overlap::SharedCores;
        }
        plan.delegation = self.delegation(tables);
        plan
    }

    /// Whether a rehearsal of this engine is one of that, whatever the job and the tables: all is the same that [`Outline::plan`],
    /// [`Outline::cost`] and the scheduler are made of, and nothing else matters.
    pub fn runs_like(&self, other: &Outline) -> bool {
        let Outline {
            scheduler,
            plan,
            host_tokens,
            host_always,
            dims,
            bytes,
            windows,
            from_disk,
            from_host,
            disk_path,
            sparse,
            link_bytes_per_s,
            budget,
            // These are only told.
            placement: _,
            weight_share: _,
            layer_bytes: _,
            drive: _,
            peak_bytes: _,
        } = other;
        let apart = |budget: &Budget| matches!(budget, Budget::Apart { .. });
        (&self.scheduler, &self.plan, &self.from_disk, &self.from_host)
            == (scheduler, plan, from_disk, from_host)
            && (self.host_tokens, self.host_always) == (*host_tokens, *host_always)
            && (&self.dims, &self.bytes, &self.windows) == (dims, bytes, windows)
            && (self.disk_path, self.sparse, self.link_bytes_per_s)
                == (*disk_path, *sparse, *link_bytes_per_s)
            && apart(&self.budget) == apart(budget)
    }

    /// In which steps the host computes with weights that live there.
    fn delegation(&self, tables: &Tables) -> Delegation {
        if self.from_host.is_empty() || self.host_tokens == 0 {
            return Delegation::Never;
        }
        if self.host_always {
            return Delegation::Always { tokens: self.host_tokens };
        }
        let largest = self.from_host.iter().map(|[_, mlp]| *mlp).max().unwrap_or(0) as f64;
        let link = self.link_bytes_per_s.map_or(f64::INFINITY, |rate| rate as f64);
        let copy = Nanos::from_secs(largest / link.min(tables.copy_bytes_per_s));
        let on = |tier, tokens: u32| Nanos::from_secs(tables.mlp_on(tier, f64::from(tokens)));
        let both = |tokens| [on(Tier::Device, tokens), on(Tier::Host, tokens)];
        let ways = BothWays::timed(copy, self.host_tokens, both);
        Delegation::Cheaper(match self.budget {
            Budget::Apart { .. } => ways.beside_attention(self.attend_ps(tables)),
            Budget::Common(_) | Budget::Carved { .. } => ways,
        })
    }

    /// What a host beside a GPU takes for a position that it attends, while an MLP's turn lasts: of a layer's weights it has the MLP's
    /// share, picoseconds.
    fn attend_ps(&self, tables: &Tables) -> u64 {
        let (seqs, positions) = (16.0, 16.0 * 512.0);
        let [attention, mlp] = self.from_host.iter().fold([0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
        let share = mlp as f64 / (attention + mlp).max(1) as f64;
        (tables.decode_on(Tier::Host, seqs, positions) / positions * share * 1e12) as u64
    }

    /// What its ops take, by tables that were measured here.
    pub fn cost(&self, tables: Tables) -> Measured {
        Measured {
            delegation: self.delegation(&tables),
            tables,
            dims: self.dims,
            bytes: self.bytes,
            from_disk: self.from_disk.clone(),
            from_host: self.from_host.clone(),
            disk_path: self.disk_path,
            windows: self.windows.clone(),
            sparse: self.sparse,
            link: self
                .link_bytes_per_s
                .map(|rate| LinkSpec { bytes_per_s: rate as f64, latency: Nanos::ZERO }),
        }
    }
}

impl Planned<'_> {
    /// What the simulator needs to run this engine.
    pub fn outline(&self) -> Outline {
        let (spec, hold) = (self.spec(), self.hold());
        let dtype = self.config().kv_dtype();
        let layout = kv_layout(spec, dtype);
        let numbers = (2 * spec.kv_heads * spec.head_dim * kernels::attention::BLOCK_TOKENS) as f64;
        let cut = self.cut();
        let stowed = |of: fn(&Half) -> &Stowed| {
            let bytes = |half: &Half| of(half).bytes as u64;
            let layers = cut.map(Cut::layers).unwrap_or_default().iter();
            let parts: PartBytes = layers.map(|[attention, mlp]| [bytes(attention), bytes(mlp)]).collect();
            if parts.iter().flatten().all(|&bytes| bytes == 0) { PartBytes::new() } else { parts }
        };
        Outline {
            scheduler: self.fcfs(),
            plan: self.plan(),
            host_tokens: self.config().host_work().map_or(0, |work| work.tokens as u32),
            host_always: self.config().offload.linears == HostLinears::Host,
            dims: Dims::of(spec),
            bytes: ElementBytes {
                weight: self.blueprint().bytes() as f64 / spec.parameters() as f64,
                kv: layout.block_bytes() as f64 / numbers,
                // The residual stream and what attention is asked are in single precision, whatever the weights are.
                hidden: kernels::device::Dtype::F32.bytes() as f64,
                attended: self.config().dtype().bytes() as f64,
            },
            windows: windows(spec),
            from_disk: stowed(|half| &half.disk),
            from_host: stowed(|half| &half.host),
            placement: Placement {
                weights: cut.map_or(Split::RESIDENT, shares),
                kv: self.config().blocks.kv,
                hidden: self.config().blocks.hidden,
            },
            weight_share: hold.weight_share,
            disk_path: self.config().disk_path(),
            sparse: self.config().sparse.map(|share| Sparse {
                share: f64::from(share),
                queries: (spec.heads / spec.kv_heads) as u32,
                link: if by_token(dtype) { OverLink::Tokens } else { OverLink::Pages },
            }),
            link_bytes_per_s: self.config().offload.link,
            layer_bytes: self.blueprint().layer_bytes() as u64,
            budget: hold.budget,
            drive: self.config().offload.disk,
            peak_bytes: peak(hold),
        }
    }
}

fn windows(spec: &ModelSpec) -> Vec<Option<u32>> {
    let of = |layer| spec.window_of(layer).map(|window| u32::try_from(window).unwrap_or(u32::MAX));
    let windows: Vec<_> = (0..spec.layers).map(of).collect();
    if windows.iter().all(Option::is_none) { Vec::new() } else { windows }
}

/// Shares of the bytes of all weights.
fn shares(cut: &Cut) -> Split {
    let bytes = ByTier { device: cut.resident_bytes(), host: cut.host_bytes(), disk: cut.streamed_bytes() };
    let all = u128::from((bytes.device + bytes.host + bytes.disk).max(1));
    let part = |bytes: u64| (u128::from(bytes) * u128::from(Split::WHOLE) / all) as u32;
    let (host, disk) = (part(bytes.host), part(bytes.disk));
    Split::new(ByTier { device: Split::WHOLE - host - disk, host, disk }).unwrap_or(Split::RESIDENT)
}

/// The process itself counts with the tier whose memory it takes.
fn peak(hold: &Hold) -> ByTier<u64> {
    let (device, host) = (hold.arena_bytes(), hold.host_bytes());
    let disk = hold.disk_bytes + hold.drive_bytes;
    match hold.budget {
        Budget::Common(_) => ByTier { device: device + host + hold.process_bytes, host: 0, disk },
        Budget::Carved { .. } | Budget::Apart { .. } => {
            ByTier { device, host: host + hold.process_bytes, disk }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;

    /// As `decoder::work` keeps them, and as they go to the host or the drive and back.
    #[test]
    fn activations_are_priced_as_they_travel() {
        let golden =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama-gqa-tied");
        let checkpoint = model::Checkpoint::open(&golden).expect("a golden model");
        let config = EngineConfig { max_model_len: Some(128), ..EngineConfig::plain(1 << 30, 1) };
        let bytes = Planned::new(&checkpoint, config).expect("it fits").outline().bytes;
        assert_eq!((bytes.hidden, bytes.attended), (4.0, 2.0));
    }
}
