//! The roofline: an op takes as long as its arithmetic or its bytes, whichever is more, and the time to start it.

use super::sparse::{chosen, with_keys};
use super::{Cost, Sparse};
use crate::pipeline::DiskPath;
use spec::model::{Mlp, ModelSpec};
use spec::{BLOCK_TOKENS, HardwareSpec, LinkSpec, Load, Nanos, Op, Part, Shape, Split, Tensor, Tier};

/// Sizes of a dense decoder that costs depend on, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Width inside the MLP.
    pub ffn: u64,
    /// Matrices of the MLP: three where it is gated, else two.
    pub mlp_matrices: u64,
    /// Rows of the head.
    pub vocab: u64,
    /// Whether the embedding is the head.
    pub tied_head: bool,
}

#[cfg(test)]
impl Dims {
    /// A model to price by hand.
    pub(crate) const TINY: Dims = Dims {
        layers: 2,
        hidden: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn: 8,
        mlp_matrices: 3,
        vocab: 16,
        tied_head: false,
    };
}

impl Dims {
    /// Of a model.
    pub fn of(model: &ModelSpec) -> Self {
        Self {
            layers: model.layers as u64,
            hidden: model.hidden as u64,
            heads: model.heads as u64,
            kv_heads: model.kv_heads as u64,
            head_dim: model.head_dim as u64,
            ffn: model.ffn as u64,
            mlp_matrices: if model.mlp == Mlp::Gated { 3 } else { 2 },
            vocab: model.vocab as u64,
            tied_head: model.tied_head,
        }
    }

    /// Elements of the query, key and value projections of one layer.
    pub fn qkv(&self) -> f64 {
        (self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim) as f64
    }

    /// Elements of the projection after attention of one layer.
    pub fn out(&self) -> f64 {
        (self.hidden * self.heads * self.head_dim) as f64
    }

    /// Elements of the MLP of one layer.
    pub fn mlp(&self) -> f64 {
        (self.mlp_matrices * self.hidden * self.ffn) as f64
    }

    /// Rows that a layer's MLP takes of a batch: after attention in the last layer nobody looks at those that do not sample.
    pub fn mlp_rows(&self, layer: u16, load: &Load) -> u32 {
        if self.is_last(layer) { load.samples } else { load.tokens }
    }

    /// Whether a layer is the last.
    pub fn is_last(&self, layer: u16) -> bool {
        u64::from(layer) + 1 == self.layers
    }

    /// Elements of the head.
    pub fn head(&self) -> f64 {
        (self.hidden * self.vocab) as f64
    }

    /// Elements of K and V of one position in one layer.
    pub fn kv(&self) -> f64 {
        (2 * self.kv_heads * self.head_dim) as f64
    }

    /// Elements of the linears of one layer.
    pub fn layer(&self) -> f64 {
        self.qkv() + self.out() + self.mlp()
    }

    /// Weights that are loaded together, in elements.
    pub fn part(&self, part: Part) -> f64 {
        match part {
            Part::Embed | Part::Head => self.head(),
            Part::Attention(_) => self.qkv() + self.out(),
            Part::Mlp(_) => self.mlp(),
        }
    }
}

/// Bytes of one element of each kind, group scales included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementBytes {
    /// Of a weight: 2 in bf16, 0.5625 in groups of 64 with 4 bits, a scale and a minimum.
    pub weight: f64,
    /// Of the KV cache.
    pub kv: f64,
    /// Of the residual stream, and of queries, keys and values before attention.
    pub hidden: f64,
    /// Of what attention gives.
    pub attended: f64,
}

impl ElementBytes {
    /// Everything in bf16.
    pub const BF16: ElementBytes = ElementBytes { weight: 2.0, kv: 2.0, hidden: 2.0, attended: 2.0 };
}

/// Costs from rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// What the machine can do.
    pub hardware: HardwareSpec,
    /// What the model needs.
    pub dims: Dims,
    /// In which numbers.
    pub bytes: ElementBytes,
    /// Where the weights are.
    pub weights: Split,
    /// How what is on the drive comes to the device.
    pub disk_path: DiskPath,
    /// Whether a share of the keys alone counts.
    pub sparse: Option<Sparse>,
}

impl Cost for Roofline {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        let tp = f64::from(shape.layout.tp);
        let load = |batch: u16| &shape.loads[usize::from(batch)];
        let tokens = |batch: u16| f64::from(load(batch).tokens);
        match *op {
            Op::Embed { batch } => self.device(0.0, self.tensor(Tensor::Hidden, load(batch))),
            Op::Qkv { batch, .. } => self.linear(tokens(batch), self.dims.qkv() / tp),
            Op::OutProj { batch, .. } => self.linear(tokens(batch), self.dims.out() / tp),
            Op::Mlp { layer, batch } => {
                self.linear(f64::from(self.dims.mlp_rows(layer, load(batch))), self.dims.mlp() / tp)
            }
            Op::Head { batch } => self.linear(f64::from(load(batch).samples), self.dims.head() / tp),
            Op::Sample { batch } => self.device(0.0, self.tensor(Tensor::Logits, load(batch))),
            Op::Attend { batch, on, .. } => self.attend(load(batch), on, tp),
            Op::LoadWeights { part, from, to } => self.copy(from, to, self.loaded(part, from) / tp),
            Op::MoveKv { from, to, .. } => self.copy(from, to, self.kv(moved(shape, from, to) as f64) / tp),
            Op::Choose { batch, on, .. } => self.choose(load(batch), on, tp),
            Op::CopyKv { batch, from, to, .. } => {
                let positions = with_keys(self.sparse, self.disk_path, load(batch), (from, to));
                self.copy(from, to, self.kv(positions) / tp)
            }
            Op::CopyChosen { batch, from, to, .. } => {
                let (load, each) = (load(batch), mean_context(load(batch)));
                self.copy(from, to, self.kv(chosen(self.sparse, self.disk_path, load, (from, to), each)) / tp)
            }
            Op::MoveHidden { what, batch, from, to } => {
                self.copy(from, to, self.tensor(what, &travelling(what, load(batch))))
            }
            Op::AllReduce { what, batch } => self.all_reduce(self.tensor(what, load(batch)), tp),
            Op::SendRecv { what, batch, .. } => link(self.hardware.peer, self.tensor(what, load(batch))),
        }
    }
}

impl Roofline {
    /// An op on the device.
    fn device(&self, flops: f64, bytes: f64) -> Nanos {
        let device = &self.hardware.device;
        device.launch + Nanos::from_secs((flops / device.matmul_flops).max(bytes / device.read_bytes_per_s))
    }

    fn linear(&self, rows: f64, weights: f64) -> Nanos {
        if rows == 0.0 {
            return Nanos::ZERO;
        }
        self.device(2.0 * rows * weights, weights * self.bytes.weight)
    }

    /// Queries against keys and again against values; causal pairs are counted as such in the shape.
    fn attend(&self, load: &Load, on: Tier, tp: f64) -> Nanos {
        let flops = 4.0 * load.prefill_pairs[on] as f64 * (self.dims.heads * self.dims.head_dim) as f64 / tp;
        let bytes = self.kv(load.context[on] as f64) / tp;
        self.attention(on, flops, bytes)
    }

    /// The keys of decodes, which attention reads again.
    fn choose(&self, load: &Load, on: Tier, tp: f64) -> Nanos {
        self.attention(on, 0.0, 0.5 * self.kv(choosing(load, on) as f64) / tp)
    }

    fn attention(&self, on: Tier, flops: f64, bytes: f64) -> Nanos {
        let (flops_per_s, bytes_per_s, launch) = match on {
            Tier::Device => {
                let device = &self.hardware.device;
                (device.attention_flops, device.read_bytes_per_s, device.launch)
            }
            Tier::Host | Tier::Disk => {
                let host = &self.hardware.host;
                (host.matmul_flops, host.attention_bytes_per_s, host.launch)
            }
        };
        launch + Nanos::from_secs((flops / flops_per_s).max(bytes / bytes_per_s))
    }

    /// Bytes of one layer's KV of some positions.
    fn kv(&self, positions: f64) -> f64 {
        positions * self.dims.kv() * self.bytes.kv
    }

    /// Bytes of a part that a load from `from` brings: up from the host goes also what the drive brought there.
    fn loaded(&self, part: Part, from: Tier) -> f64 {
        let staged = if self.disk_path == DiskPath::ThroughHost { self.weights.part(Tier::Disk) } else { 0 };
        let share = self.weights.part(from) + if from == Tier::Host { staged } else { 0 };
        self.dims.part(part) * self.bytes.weight * f64::from(share) / f64::from(Split::WHOLE)
    }

    fn tensor(&self, what: Tensor, load: &Load) -> f64 {
        tensor_bytes(&self.dims, &self.bytes, what, load)
    }

    fn copy(&self, from: Tier, to: Tier, bytes: f64) -> Nanos {
        let disk = &self.hardware.disk;
        match (from, to) {
            (Tier::Disk, _) => {
                link(LinkSpec { bytes_per_s: disk.read_bytes_per_s, latency: disk.latency }, bytes)
            }
            (_, Tier::Disk) => {
                link(LinkSpec { bytes_per_s: disk.write_bytes_per_s, latency: disk.latency }, bytes)
            }
            (Tier::Host, _) => link(self.hardware.up, bytes),
            (Tier::Device, _) => link(self.hardware.down, bytes),
        }
    }

    /// A ring: every rank sends and receives all but its own share, twice.
    fn all_reduce(&self, bytes: f64, tp: f64) -> Nanos {
        let hops = 1.0 + tp.log2().max(0.0);
        let latency = Nanos::from_secs(self.hardware.peer.latency.as_secs() * hops);
        latency + Nanos::from_secs(2.0 * (tp - 1.0) / tp * bytes / self.hardware.peer.bytes_per_s)
    }
}

fn link(link: LinkSpec, bytes: f64) -> Nanos {
    link.latency + Nanos::from_secs(bytes / link.bytes_per_s)
}

/// Bytes of an activation of a batch.
pub(super) fn tensor_bytes(dims: &Dims, bytes: &ElementBytes, what: Tensor, load: &Load) -> f64 {
    let (tokens, samples) = (f64::from(load.tokens), f64::from(load.samples));
    let attention = (dims.heads * dims.head_dim) as f64;
    match what {
        Tensor::Hidden => tokens * dims.hidden as f64 * bytes.hidden,
        Tensor::Qkv => tokens * (attention + dims.kv()) * bytes.hidden,
        Tensor::Attended => tokens * attention * bytes.attended,
        Tensor::Logits => samples * dims.vocab as f64 * 4.0,
        Tensor::Tokens => samples * 4.0,
    }
}

/// Only the rows that attend on the host go there for it.
pub(super) fn travelling(what: Tensor, load: &Load) -> Load {
    match what {
        Tensor::Qkv | Tensor::Attended => Load { tokens: load.host_tokens, ..*load },
        Tensor::Hidden | Tensor::Logits | Tensor::Tokens => *load,
    }
}

/// Positions that a step moves from one tier to another.
pub(super) fn moved(shape: &Shape, from: Tier, to: Tier) -> u64 {
    let moves = shape.moves.iter().filter(|m| (m.from, m.to) == (from, to));
    moves.map(|m| u64::from(m.blocks) * u64::from(BLOCK_TOKENS.0)).sum()
}

/// Positions whose keys decodes choose by on a tier.
pub(super) fn choosing(load: &Load, on: Tier) -> u64 {
    match on {
        Tier::Device => load.decode_in.host + load.decode_up,
        _ => load.decode_in.disk - load.decode_up,
    }
}

/// Positions that a sequence sees on average.
pub(super) fn mean_context(load: &Load) -> f64 {
    all_context(load) as f64 / f64::from(load.seqs.max(1))
}

/// Positions that all sequences of a batch see together, on whichever tier.
pub(super) fn all_context(load: &Load) -> u64 {
    Tier::ALL.iter().map(|&tier| load.context[tier]).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{ByTier, Bytes, DeviceSpec, DiskSpec, HostSpec, Layout, Pipeline};

    fn roofline() -> Roofline {
        let link = LinkSpec { bytes_per_s: 1e10, latency: Nanos(1_000) };
        let memory = Bytes(1 << 34);
        Roofline {
            hardware: HardwareSpec {
                name: "test".into(),
                devices: 1,
                device: DeviceSpec {
                    memory,
                    read_bytes_per_s: 1e11,
                    matmul_flops: 1e13,
                    attention_flops: 5e12,
                    launch: Nanos(100),
                },
                host: HostSpec {
                    memory,
                    attention_bytes_per_s: 2e10,
                    matmul_flops: 1e12,
                    launch: Nanos(200),
                },
                disk: DiskSpec {
                    capacity: memory,
                    read_bytes_per_s: 2e9,
                    write_bytes_per_s: 1e9,
                    latency: Nanos(0),
                },
                up: link,
                down: link,
                peer: link,
                step_gap: Nanos(0),
            },
            dims: Dims {
                layers: 2,
                hidden: 1000,
                heads: 10,
                kv_heads: 5,
                head_dim: 100,
                ffn: 3000,
                mlp_matrices: 3,
                vocab: 500,
                tied_head: false,
            },
            bytes: ElementBytes::BF16,
            weights: Split::new(ByTier { device: 500_000, host: 300_000, disk: 200_000 }).expect("adds up"),
            disk_path: DiskPath::Direct,
            sparse: None,
        }
    }

    fn shape(load: Load) -> Shape {
        let moves = vec![spec::MoveLoad { from: Tier::Host, to: Tier::Device, blocks: 3 }];
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![load], moves }
    }

    fn ns(cost: &Roofline, op: Op, load: Load) -> u64 {
        cost.of(&op, &shape(load)).0
    }

    #[test]
    fn few_rows_cost_bytes_and_many_cost_operations() {
        let mlp = Op::Mlp { layer: 0, batch: 0 };
        // 9 million weights of 2 bytes at 100 GB/s; 2 operations each and row at 10 TFLOP/s.
        assert_eq!(ns(&roofline(), mlp, Load { tokens: 1, ..Load::default() }), 100 + 180_000);
        assert_eq!(ns(&roofline(), mlp, Load { tokens: 1000, ..Load::default() }), 100 + 1_800_000);
    }

    #[test]
    fn the_last_layer_finishes_the_rows_that_sample() {
        let load = Load { tokens: 1000, samples: 500, ..Load::default() };
        let mlp = |layer, load| ns(&roofline(), Op::Mlp { layer, batch: 0 }, load);
        assert_eq!((mlp(0, load), mlp(1, load)), (100 + 1_800_000, 100 + 900_000));
        assert_eq!(mlp(1, Load { samples: 0, ..load }), 0);
    }

    #[test]
    fn attention_reads_its_context_where_it_attends() {
        let context = ByTier { device: 1000, host: 100, disk: 0 };
        let load = Load { context, ..Load::default() };
        // 2,000 bytes a position.
        assert_eq!(ns(&roofline(), Op::Attend { layer: 0, batch: 0, on: Tier::Device }, load), 100 + 20_000);
        assert_eq!(ns(&roofline(), Op::Attend { layer: 0, batch: 0, on: Tier::Host }, load), 200 + 10_000);
    }

    #[test]
    fn loads_bring_what_lives_there() {
        let load = |from, to| Op::LoadWeights { part: Part::Mlp(0), from, to };
        let mut cost = roofline();
        // 18 MB: 20 % at 2 GB/s, 30 % at 10 GB/s, or both up when the drive reads into the host.
        assert_eq!(ns(&cost, load(Tier::Disk, Tier::Device), Load::default()), 1_800_000);
        assert_eq!(ns(&cost, load(Tier::Host, Tier::Device), Load::default()), 1_000 + 540_000);
        cost.disk_path = DiskPath::ThroughHost;
        assert_eq!(ns(&cost, load(Tier::Host, Tier::Device), Load::default()), 1_000 + 900_000);
    }

    #[test]
    fn copies_carry_the_rows_and_positions_that_travel() {
        let kv_in = ByTier { device: 0, host: 100, disk: 30 };
        let load = Load { tokens: 50, host_tokens: 10, kv_in, disk_up: 20, ..Load::default() };
        let copy = |from, to| Op::CopyKv { layer: 0, batch: 0, from, to };
        let mut cost = roofline();
        // 2,000 bytes a position: up what lives on the host, and from the drive at 2 GB/s to where it is attended.
        assert_eq!(ns(&cost, copy(Tier::Host, Tier::Device), load), 1_000 + 20_000);
        assert_eq!(ns(&cost, copy(Tier::Disk, Tier::Device), load), 20_000);
        assert_eq!(ns(&cost, copy(Tier::Disk, Tier::Host), load), 10_000);
        cost.disk_path = DiskPath::ThroughHost;
        assert_eq!(ns(&cost, copy(Tier::Host, Tier::Device), load), 1_000 + 24_000);
        assert_eq!(ns(&cost, copy(Tier::Disk, Tier::Host), load), 30_000);
        let queries = Op::MoveHidden { what: Tensor::Qkv, batch: 0, from: Tier::Device, to: Tier::Host };
        // Ten rows of 1,000 queries and 1,000 keys and values.
        assert_eq!(ns(&cost, queries, load), 1_000 + 4_000);
        // In single precision; what is attended stays narrow.
        cost.bytes.hidden = 4.0;
        assert_eq!(ns(&cost, queries, load), 1_000 + 8_000);
        let attended =
            Op::MoveHidden { what: Tensor::Attended, batch: 0, from: Tier::Host, to: Tier::Device };
        assert_eq!(ns(&cost, attended, load), 1_000 + 2_000);
    }

    #[test]
    fn values_of_decodes_come_in_a_copy_of_their_own_where_they_are_chosen() {
        let on_host = |positions| ByTier { device: 0, host: positions, disk: 0 };
        let context = ByTier { device: 1000, host: 0, disk: 0 };
        let (kv_in, decode_in) = (on_host(1000), on_host(800));
        let load = Load { tokens: 1, seqs: 1, kv_in, decode_in, context, ..Load::default() };
        let sparse = Sparse { share: 0.01, queries: 1, link: crate::cost::OverLink::Pages };
        let cost = Roofline { sparse: Some(sparse), ..roofline() };
        let (layer, batch, from, to) = (0, 0, Tier::Host, Tier::Device);
        // 2,000 bytes a position at 10 GB/s: all of 200, the keys of 800; then some of their values.
        assert_eq!(ns(&cost, Op::CopyKv { layer, batch, from, to }, load), 1_000 + 600 * 200);
        let values = 400.0 * sparse.values(1000.0, (from, to)) * 200.0;
        let took = ns(&cost, Op::CopyChosen { layer, batch, from, to }, load) as f64;
        assert!((took - 1_000.0 - values).abs() < 2.0 && values < 0.7 * 80_000.0, "{took}");
        // Keys of 800 at 100 GB/s.
        assert_eq!(ns(&cost, Op::Choose { layer, batch, on: Tier::Device }, load), 100 + 8_000);
    }

    #[test]
    fn moves_carry_whole_blocks() {
        let op = Op::MoveKv { layer: 0, from: Tier::Host, to: Tier::Device };
        assert_eq!(ns(&roofline(), op, Load::default()), 1_000 + 3 * 32 * 2_000 / 10);
    }
}
