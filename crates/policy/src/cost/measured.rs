//! Costs from what was measured on this machine, with this model.
//!
//! Tables say what an op takes alone; `pressed` says how much longer it takes beside others.

use super::pressed::Pressed;
use super::roofline::{moved, tensor_bytes, travelling};
use super::{Cost, Dims, ElementBytes, Tables};
use crate::pipeline::DiskPath;
use spec::{LinkSpec, Load, Nanos, Op, Part, Shape, Tier};

/// Bytes that a pass over the model brings for each layer: attention's weights and the MLP's.
pub type PartBytes = Vec<[u64; 2]>;

/// Costs from tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub tables: Tables,
    /// Sizes of the model.
    pub dims: Dims,
    /// In which numbers KV and activations are.
    pub bytes: ElementBytes,
    /// Weights that are read from the drive; empty where none are.
    pub from_disk: PartBytes,
    /// Weights that are copied up from the host; empty where none are.
    pub from_host: PartBytes,
    /// How what is on the drive comes to the device.
    pub disk_path: DiskPath,
    /// How many of the last positions each layer sees; empty where all see all of them.
    pub windows: Vec<Option<u32>>,
    /// The link between host and device, where it is slower than a copy of memory.
    pub link: Option<LinkSpec>,
}

impl Cost for Measured {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        self.price(op, shape, self.pressed(shape))
    }

    /// What presses is worked out once, and so are ops that take the same in all layers.
    fn over<'a>(&'a self, shape: &'a Shape) -> Box<dyn FnMut(&Op) -> Nanos + 'a> {
        let pressed = self.pressed(shape);
        let mut known = vec![[None; ALIKE]; shape.loads.len()];
        Box::new(move |op| match alike(op).filter(|_| !self.differs(op)) {
            Some((batch, kind)) => {
                *known[usize::from(batch)][kind].get_or_insert_with(|| self.price(op, shape, pressed))
            }
            None => self.price(op, shape, pressed),
        })
    }
}

/// Kinds of ops that take the same in all layers.
const ALIKE: usize = 9;

/// Batch and kind of such an op.
fn alike(op: &Op) -> Option<(u16, usize)> {
    Some(match *op {
        Op::Embed { batch } => (batch, 0),
        Op::Qkv { batch, .. } => (batch, 1),
        Op::OutProj { batch, .. } => (batch, 2),
        Op::Mlp { batch, .. } => (batch, 3),
        Op::Head { batch } => (batch, 4),
        Op::Sample { batch } => (batch, 5),
        Op::Attend { batch, on, .. } => (batch, 6 + on as usize),
        _ => return None,
    })
}

impl Measured {
    fn price(&self, op: &Op, shape: &Shape, pressed: Pressed) -> Nanos {
        Nanos::from_secs(match *op {
            Op::LoadWeights { part, from, to } => self.load(part, from, to, pressed),
            Op::MoveKv { from, to, .. } => self.copy(from, to, self.kv(moved(shape, from, to)), pressed),
            Op::CopyKv { layer, batch, from, to } => {
                let load = &shape.loads[usize::from(batch)];
                let bytes = self.kv(self.disk_path.kv_copied(load, from, to)) * self.seen(layer, load);
                self.copy(from, to, bytes, pressed)
            }
            Op::MoveHidden { what, batch, from, to } => {
                let load = travelling(what, &shape.loads[usize::from(batch)]);
                self.copy(from, to, tensor_bytes(&self.dims, &self.bytes, what, &load), pressed)
            }
            Op::AllReduce { what, batch } | Op::SendRecv { what, batch, .. } => {
                let load = &shape.loads[usize::from(batch)];
                tensor_bytes(&self.dims, &self.bytes, what, load) / self.tables.copy_bytes_per_s
            }
            Op::Embed { .. }
            | Op::Qkv { .. }
            | Op::OutProj { .. }
            | Op::Mlp { .. }
            | Op::Head { .. }
            | Op::Sample { .. }
            | Op::Attend { .. } => self.compute(op, shape, pressed) + self.beside_kernels(op, shape),
        })
    }

    /// What the kernels of an op take.
    pub(super) fn compute(&self, op: &Op, shape: &Shape, pressed: Pressed) -> f64 {
        let tables = &self.tables;
        let load = |batch: u16| &shape.loads[usize::from(batch)];
        let linear = |linear: &super::tables::Linear, rows: u32| {
            let rows = f64::from(rows);
            linear.seconds.at(rows) * self.slower(rows, pressed)
        };
        match *op {
            Op::Embed { batch } => tables.embed.at(f64::from(load(batch).tokens)),
            Op::Qkv { batch, .. } => linear(&tables.qkv, load(batch).tokens),
            Op::OutProj { batch, .. } => linear(&tables.out, load(batch).tokens),
            Op::Mlp { batch, .. } => linear(&tables.mlp, load(batch).tokens),
            Op::Head { batch } => linear(&tables.head, load(batch).samples),
            Op::Sample { batch } => tables.sample.at(f64::from(load(batch).samples)),
            Op::Attend { layer, batch, on } => {
                self.attend(layer, load(batch), on) * self.slower(1.0, pressed)
            }
            _ => 0.0,
        }
    }

    /// Preparing an op, on its lane.
    fn beside_kernels(&self, op: &Op, shape: &Shape) -> f64 {
        let (Op::Embed { batch }
        | Op::Qkv { batch, .. }
        | Op::OutProj { batch, .. }
        | Op::Mlp { batch, .. }
        | Op::Head { batch }
        | Op::Sample { batch }
        | Op::Attend { batch, .. }) = *op
        else {
            return 0.0;
        };
        let seqs = f64::from(shape.loads[usize::from(batch)].seqs);
        self.tables.node_s + self.tables.node_sequence_s * seqs
    }

    fn slower(&self, rows: f64, pressed: Pressed) -> f64 {
        let by = |beside: &super::Beside, share: f64| (beside.linear(rows) - 1.0) * share;
        1.0 + by(&self.tables.beside, pressed.compute)
            + by(&self.tables.beside_copies, pressed.compute_by_copies)
    }

    /// A load counts the context of all its chunks, and the pairs of those that are longer than one: the latter are
    /// prompts, whose rows are those that are not somebody's decode.
    fn attend(&self, layer: u16, load: &Load, on: Tier) -> f64 {
        let share = self.seen(layer, load);
        let (pairs, context) = (load.prefill_pairs[on] as f64, load.context[on] as f64);
        let (tokens, seqs) = (f64::from(load.tokens), f64::from(load.seqs));
        if pairs == 0.0 {
            // Sequences that attend elsewhere have no context here.
            let here = load.context[on] as f64 / all_context(load).max(1) as f64;
            return self.tables.decode_on(on, seqs * here, share * context);
        }
        let prompts = (tokens - seqs).max(1.0);
        let mean = (pairs / prompts).max(1.0);
        let decodes = share * (context - prompts.max(mean)).max(0.0);
        let decoding = (seqs - prompts / (2.0 * mean)).max(0.0);
        // The first rows of a prompt see less than a window: a part of `share` of the context, rounded at its corner.
        let windowed = share * mean_context(load) * (1.0 - share / 2.0);
        let seen = if share < 1.0 { windowed.clamp(1.0, mean) } else { mean };
        prompts * self.tables.prefill.at(seen) + self.tables.decode_on(on, decoding, decodes)
    }

    /// Which share of its context a layer sees, by the contexts' mean.
    fn seen(&self, layer: u16, load: &Load) -> f64 {
        let window = self.windows.get(usize::from(layer)).copied().flatten();
        window.map_or(1.0, |window| (f64::from(window) / mean_context(load).max(1.0)).min(1.0))
    }

    /// Whether an op takes another time in another layer.
    fn differs(&self, op: &Op) -> bool {
        matches!(op, Op::Attend { .. }) && !self.windows.is_empty()
    }

    fn load(&self, part: Part, from: Tier, to: Tier, pressed: Pressed) -> f64 {
        let bytes = |parts: &PartBytes| match part {
            Part::Attention(layer) => parts.get(usize::from(layer)).map_or(0, |halves| halves[0]),
            Part::Mlp(layer) => parts.get(usize::from(layer)).map_or(0, |halves| halves[1]),
            Part::Embed | Part::Head => 0,
        };
        let staged = if self.disk_path == DiskPath::ThroughHost { bytes(&self.from_disk) } else { 0 };
        let bytes = match from {
            Tier::Disk => bytes(&self.from_disk),
            _ => bytes(&self.from_host) + staged,
        };
        self.copy(from, to, bytes as f64, pressed)
    }

    fn copy(&self, from: Tier, to: Tier, bytes: f64, pressed: Pressed) -> f64 {
        if bytes == 0.0 {
            return 0.0;
        }
        match (from, to) {
            (Tier::Disk, _) => {
                self.tables.disk_read.at(bytes) * (1.0 + (self.tables.beside.moved - 1.0) * pressed.read)
            }
            (_, Tier::Disk) => bytes / self.tables.disk_write_bytes_per_s,
            _ => {
                let link = self.link.map_or(0.0, |link| link.latency.as_secs() + bytes / link.bytes_per_s);
                let slower = 1.0 + (self.tables.beside_copies.moved - 1.0) * pressed.copy;
                link.max(bytes / self.tables.copy_bytes_per_s * slower)
            }
        }
    }

    pub(super) fn kv(&self, positions: u64) -> f64 {
        positions as f64 * self.dims.kv() * self.bytes.kv
    }
}

/// Positions that a sequence sees on average.
fn mean_context(load: &Load) -> f64 {
    all_context(load) as f64 / f64::from(load.seqs.max(1))
}

/// Positions that all sequences of a batch see together, on whichever tier.
fn all_context(load: &Load) -> u64 {
    Tier::ALL.iter().map(|&tier| load.context[tier]).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tables::{Beside, Decode, Linear};
    use super::super::{Curve, Roofline};
    use super::*;
    use spec::{ByTier, Layout, Pipeline};

    fn linear(seconds: f64) -> Linear {
        Linear { seconds: Curve::rate(1.0 / seconds), ..Linear::default() }
    }

    /// A second for every row of each linear, and for every byte and position.
    fn measured() -> Measured {
        let tables = Tables {
            qkv: linear(1.0),
            out: linear(2.0),
            mlp: linear(3.0),
            head: linear(4.0),
            embed: Curve::rate(1.0),
            sample: Curve::rate(1.0),
            decode: vec![Decode { seqs: 1, seconds: Curve::rate(1.0) }],
            host_decode: vec![],
            host_mlp: Curve::default(),
            prefill: Curve::rate(1.0),
            disk_read: Curve::rate(1.0),
            disk_write_bytes_per_s: 0.5,
            copy_bytes_per_s: 2.0,
            step_gap_s: 0.0,
            wake_s: 0.0,
            node_s: 0.0,
            node_sequence_s: 0.0,
            beside: Beside::default(),
            beside_copies: Beside::default(),
        };
        let dims = Dims {
            layers: 2,
            hidden: 8,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            ffn: 8,
            mlp_matrices: 3,
            vocab: 16,
        };
        let (from_disk, from_host) = (vec![[10, 20], [30, 0]], vec![[4, 0], [0, 0]]);
        Measured {
            tables,
            dims,
            bytes: ElementBytes::BF16,
            from_disk,
            from_host,
            disk_path: DiskPath::Direct,
            windows: vec![],
            link: None,
        }
    }

    fn shape(load: Load) -> Shape {
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![load], moves: vec![] }
    }

    fn seconds(cost: &Measured, op: Op, load: Load) -> f64 {
        // Thousandths: sums of floats are not exact.
        (cost.of(&op, &shape(load)).as_secs() * 1e3).round() / 1e3
    }

    #[test]
    fn ops_take_what_their_tables_say() {
        let (cost, load) = (measured(), Load { tokens: 5, samples: 2, seqs: 5, ..Load::default() });
        let ops = [
            (Op::Embed { batch: 0 }, 5.0),
            (Op::Qkv { layer: 0, batch: 0 }, 5.0),
            (Op::OutProj { layer: 1, batch: 0 }, 10.0),
            (Op::Mlp { layer: 1, batch: 0 }, 15.0),
            (Op::Head { batch: 0 }, 8.0),
            (Op::Sample { batch: 0 }, 2.0),
        ];
        for (op, wanted) in ops {
            assert_eq!(seconds(&cost, op, load), wanted, "{op:?}");
        }
    }

    #[test]
    fn loads_take_their_own_bytes_from_where_they_are() {
        let load = |part, from| {
            seconds(&measured(), Op::LoadWeights { part, from, to: Tier::Device }, Load::default())
        };
        assert_eq!(load(Part::Attention(1), Tier::Disk), 30.0);
        assert_eq!((load(Part::Mlp(1), Tier::Disk), load(Part::Head, Tier::Disk)), (0.0, 0.0));
        assert_eq!(load(Part::Attention(0), Tier::Host), 2.0);
        let link = LinkSpec { bytes_per_s: 0.5, latency: Nanos::from_secs(1.0) };
        let slow = Measured { link: Some(link), ..measured() };
        let op = Op::LoadWeights { part: Part::Attention(0), from: Tier::Host, to: Tier::Device };
        assert_eq!(seconds(&slow, op, Load::default()), 9.0);
    }

    #[test]
    fn decodes_and_prompts_of_one_batch_are_told_apart() {
        let cost = measured();
        let on = Op::Attend { layer: 0, batch: 0, on: Tier::Device };
        let context = |device| ByTier { device, host: 0, disk: 0 };
        // Three sequences that see a hundred positions together.
        let decodes = Load { seqs: 3, tokens: 3, context: context(100), ..Load::default() };
        assert_eq!(seconds(&cost, on, decodes), 100.0);
        // A prompt of 101 tokens: its rows see 51 on average.
        let pairs = 101 * 102 / 2;
        let prompt = Load {
            seqs: 1,
            tokens: 101,
            context: context(101),
            prefill_pairs: context(pairs),
            ..Load::default()
        };
        let alone = seconds(&cost, on, prompt);
        assert!((alone / pairs as f64 - 1.0).abs() < 0.02, "{alone} of {pairs}");
        let both = Load {
            seqs: 4,
            tokens: 104,
            context: context(201),
            prefill_pairs: context(pairs),
            ..Load::default()
        };
        assert!((seconds(&cost, on, both) - alone - 100.0).abs() < 60.0);
    }

    #[test]
    fn copies_take_time_from_what_computes_beside_them() {
        let mut cost = Measured { from_disk: vec![], from_host: vec![[4, 4], [4, 4]], ..measured() };
        cost.tables.beside_copies = Beside { moved: 3.0, few_rows: 2.0, many_rows: 2.0 };
        let mlp = Op::Mlp { layer: 0, batch: 0 };
        let up = Op::LoadWeights { part: Part::Mlp(0), from: Tier::Host, to: Tier::Device };
        // 8 seconds of copies beside 12 of linears: two thirds of these are pressed, and all copies.
        let load = Load { tokens: 1, ..Load::default() };
        assert_eq!((seconds(&cost, mlp, load), seconds(&cost, up, load)), (5.0, 6.0));
    }

    #[test]
    fn a_layer_with_a_window_sees_no_more_than_that() {
        let cost = Measured { windows: vec![None, Some(10)], ..measured() };
        let context = ByTier { device: 100, host: 0, disk: 0 };
        let kv_in = ByTier { device: 0, host: 100, disk: 0 };
        let load = Load { seqs: 2, tokens: 2, context, kv_in, ..Load::default() };
        let attend = |layer| seconds(&cost, Op::Attend { layer, batch: 0, on: Tier::Device }, load);
        assert_eq!((attend(0), attend(1)), (100.0, 20.0));
        let copy = |layer| {
            let op = Op::CopyKv { layer, batch: 0, from: Tier::Host, to: Tier::Device };
            seconds(&cost, op, load)
        };
        assert!(copy(0) > 0.0 && (copy(1) * 5.0 - copy(0)).abs() < 1e-6);
        let shape = shape(load);
        let mut together = cost.over(&shape);
        for layer in [0, 1, 0] {
            let op = Op::Attend { layer, batch: 0, on: Tier::Device };
            assert_eq!(together(&op), cost.of(&op, &shape));
        }
    }

    #[test]
    fn rows_of_a_prompt_see_no_more_than_a_window() {
        let cost = Measured { windows: vec![None, Some(10)], ..measured() };
        let on = |device| ByTier { device, host: 0, disk: 0 };
        let (context, prefill_pairs) = (on(101), on(101 * 102 / 2));
        let prompt = Load { seqs: 1, tokens: 101, context, prefill_pairs, ..Load::default() };
        let attend = |layer| seconds(&cost, Op::Attend { layer, batch: 0, on: Tier::Device }, prompt);
        // Of 101 rows nine see from one to nine positions, all others ten.
        let wanted = (45 + 92 * 10) as f64;
        assert!((attend(1) / wanted - 1.0).abs() < 0.02 && attend(0) > 5000.0, "{} {}", attend(0), attend(1));
    }

    #[test]
    fn what_runs_beside_the_other_all_the_time_is_slowed_most() {
        let mut cost = measured();
        cost.tables.beside = Beside { moved: 1.5, few_rows: 2.0, many_rows: 2.0 };
        let (mlp, read) = (
            Op::Mlp { layer: 0, batch: 0 },
            Op::LoadWeights { part: Part::Mlp(0), from: Tier::Disk, to: Tier::Device },
        );
        // 60 seconds of reading; 12 seconds of linears for each row.
        let few = Load { tokens: 1, ..Load::default() };
        assert_eq!(seconds(&cost, mlp, few), 6.0);
        assert_eq!(seconds(&cost, read, few), 22.0);
        let many = Load { tokens: 50, ..Load::default() };
        assert_eq!(seconds(&cost, mlp, many), 165.0);
        assert_eq!(seconds(&cost, read, many), 30.0);
    }

    #[test]
    fn ops_of_one_shape_cost_the_same_together_as_one_by_one() {
        let mut cost = measured();
        cost.tables.beside = Beside { moved: 1.5, few_rows: 2.0, many_rows: 3.0 };
        let shape = Shape {
            loads: vec![
                Load { seqs: 2, tokens: 9, samples: 1, ..Load::default() },
                Load {
                    seqs: 3,
                    tokens: 3,
                    context: ByTier { device: 50, host: 0, disk: 0 },
                    ..Load::default()
                },
            ],
            ..shape(Load::default())
        };
        let part = Part::Attention(1);
        let ops = (0..2).flat_map(|batch| {
            [
                Op::Embed { batch },
                Op::Qkv { layer: 0, batch },
                Op::Qkv { layer: 1, batch },
                Op::Attend { layer: 1, batch, on: Tier::Device },
                Op::Attend { layer: 1, batch, on: Tier::Host },
                Op::OutProj { layer: 1, batch },
                Op::Mlp { layer: 1, batch },
                Op::Head { batch },
                Op::Sample { batch },
                Op::LoadWeights { part, from: Tier::Disk, to: Tier::Device },
            ]
        });
        let mut together = cost.over(&shape);
        ops.for_each(|op| assert_eq!(together(&op), cost.of(&op, &shape), "{op:?}"));
    }

    /// A roofline that was measured is a roofline: tables of its own times give them back between the points.
    #[test]
    fn tables_of_a_roofline_give_its_times() {
        let hardware = machine();
        let dims = Dims::named("llama-2-7b").expect("known");
        let truth = Roofline {
            hardware,
            dims,
            bytes: ElementBytes::BF16,
            weights: spec::Split::RESIDENT,
            disk_path: DiskPath::Direct,
        };
        let time = |op: Op, tokens: u32| {
            truth.of(&op, &shape(Load { tokens, samples: tokens, seqs: tokens, ..Load::default() })).as_secs()
        };
        let mlp = Op::Mlp { layer: 0, batch: 0 };
        let points = [1, 16, 64, 128, 256, 2048].map(|rows| (f64::from(rows), time(mlp, rows)));
        let mut cost = Measured { dims, from_disk: vec![], from_host: vec![], ..measured() };
        cost.tables.mlp.seconds = Curve::new(points.to_vec());
        for rows in [3, 40, 100, 300, 1500, 4000] {
            let load = Load { tokens: rows, ..Load::default() };
            let (got, wanted) = (cost.of(&mlp, &shape(load)).as_secs(), time(mlp, rows));
            assert!((got / wanted - 1.0).abs() < 0.1, "{rows} rows: {got}, {wanted}");
        }
    }

    fn machine() -> spec::HardwareSpec {
        let link = LinkSpec { bytes_per_s: 1e10, latency: Nanos::ZERO };
        let memory = spec::Bytes(1 << 34);
        spec::HardwareSpec {
            name: "a desk".into(),
            devices: 1,
            device: spec::DeviceSpec {
                memory,
                read_bytes_per_s: 3e10,
                matmul_flops: 2e12,
                attention_flops: 1e12,
                launch: Nanos::ZERO,
            },
            host: spec::HostSpec {
                memory,
                attention_bytes_per_s: 2e10,
                matmul_flops: 1e12,
                launch: Nanos::ZERO,
            },
            disk: spec::DiskSpec {
                capacity: memory,
                read_bytes_per_s: 2e9,
                write_bytes_per_s: 1e9,
                latency: Nanos::ZERO,
            },
            up: link,
            down: link,
            peer: link,
            step_gap: Nanos::ZERO,
        }
    }
}
