//! Costs from what was measured on this machine, with this model.
//!
//! Tables say what an op takes alone; `pressed` says how much longer it takes beside others.

use super::pressed::Pressed;
use super::roofline::{all_context, choosing, mean_context, moved, tensor_bytes, travelling};
use super::sparse::{chosen, with_keys};
use super::{Cost, Dims, ElementBytes, Sparse, Tables};
use crate::pipeline::{Delegation, DiskPath};
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
    /// In which steps these are computed with where they are.
    pub delegation: Delegation,
    /// How what is on the drive comes to the device.
    pub disk_path: DiskPath,
    /// How many of the last positions each layer sees; empty where all see all of them.
    pub windows: Vec<Option<u32>>,
    /// The link between host and device, where it is slower than a copy of memory.
    pub link: Option<LinkSpec>,
    /// Whether a share of the keys alone counts. Tables of attention were measured so.
    pub sparse: Option<Sparse>,
}

impl Cost for Measured {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        self.price(op, shape, self.pressed(shape))
    }

    /// What presses is worked out once, and so are ops that take the same in all layers.
    fn over<'a>(&'a self, shape: &'a Shape) -> Box<dyn FnMut(&Op) -> Nanos + 'a> {
        let pressed = self.pressed(shape);
        let mut known = vec![[None; ALIKE]; shape.loads.len()];
        Box::new(move |op| match alike(op).filter(|_| !self.differs(op, pressed)) {
            Some((batch, kind)) => {
                *known[usize::from(batch)][kind].get_or_insert_with(|| self.price(op, shape, pressed))
            }
            None => self.price(op, shape, pressed),
        })
    }
}

/// Kinds of ops that take the same in all layers.
const ALIKE: usize = 12;

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
        Op::Choose { batch, on, .. } => (batch, 9 + on as usize),
        _ => return None,
    })
}

impl Measured {
    fn price(&self, op: &Op, shape: &Shape, pressed: Pressed) -> Nanos {
        Nanos::from_secs(match *op {
            Op::LoadWeights { part, from, to } => self.load(part, from, to, pressed),
            Op::MoveKv { from, to, .. } => {
                self.copy(from, to, self.kv(moved(shape, from, to) as f64), pressed)
            }
            Op::CopyKv { layer, batch, from, to } => {
                let load = &shape.loads[usize::from(batch)];
                let positions = with_keys(self.sparse, self.disk_path, load, (from, to));
                // A window leaves out what nobody attends; what is new goes home whole.
                // Of a decode that is priced as its one position, though the block that has it moves.
                let seen = if from > to { self.seen(layer, load) } else { 1.0 };
                self.copy(from, to, self.kv(positions) * seen, pressed)
            }
            Op::CopyChosen { layer, batch, from, to } => {
                let load = &shape.loads[usize::from(batch)];
                let seen = self.seen(layer, load);
                let each = mean_context(load) * seen;
                let positions = chosen(self.sparse, self.disk_path, load, (from, to), each);
                self.copy(from, to, self.kv(positions) * seen, pressed)
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
            | Op::Attend { .. }
            | Op::Choose { .. } => self.compute(op, shape, pressed) + self.beside_kernels(op, shape),
        })
    }

    /// What the kernels of an op take.
    pub(super) fn compute(&self, op: &Op, shape: &Shape, pressed: Pressed) -> f64 {
        let tables = &self.tables;
        let load = |batch: u16| &shape.loads[usize::from(batch)];
        let linear = |linear: &super::tables::Linear, rows: u32| {
            let rows = f64::from(rows);
            if rows == 0.0 { 0.0 } else { linear.seconds.at(rows) * self.slower(rows, pressed) }
        };
        let shared = |part: Part, table: &super::tables::Linear, rows: u32| {
            linear(table, rows).max(self.on_host(part, table, rows, pressed))
        };
        match *op {
            Op::Embed { batch } => tables.embed.at(f64::from(load(batch).tokens)),
            Op::Qkv { layer, batch } => shared(Part::Attention(layer), &tables.qkv, load(batch).tokens),
            Op::OutProj { layer, batch } => shared(Part::Attention(layer), &tables.out, load(batch).tokens),
            Op::Mlp { layer, batch } => {
                shared(Part::Mlp(layer), &tables.mlp, self.dims.mlp_rows(layer, load(batch)))
            }
            Op::Head { batch } => linear(&tables.head, load(batch).samples),
            Op::Sample { batch } => tables.sample.at(f64::from(load(batch).samples)),
            Op::Attend { layer, batch, on } => {
                self.attend(layer, load(batch), on) * self.slower(1.0, pressed)
            }
            Op::Choose { layer, batch, on } => {
                self.choose(layer, load(batch), on) * self.slower(1.0, pressed)
            }
            _ => 0.0,
        }
    }

    /// All of a sparse attention but the values, of which it reads few: as long as that, at the most.
    fn choose(&self, layer: u16, load: &Load, on: Tier) -> f64 {
        let positions = choosing(load, on) as f64;
        let seqs = positions / mean_context(load).max(1.0);
        self.tables.decode_on(on, seqs, positions * self.seen(layer, load))
    }

    /// What a processor of the host takes for its panels of a linear, beside the device. A host that is the device's own
    /// processor takes for them what the device would: that is in the linear's time already.
    fn on_host(&self, part: Part, linear: &super::tables::Linear, rows: u32, pressed: Pressed) -> f64 {
        let tables = &self.tables;
        if !pressed.on_host || tables.host_mlp.is_empty() {
            return 0.0;
        }
        let half = match part {
            Part::Mlp(_) => tables.mlp.bytes,
            _ => tables.qkv.bytes + tables.out.bytes,
        };
        let here = part_bytes(&self.from_host, part) as f64 * linear.bytes / half.max(1.0);
        tables.host_mlp.at(f64::from(rows)) * here / tables.mlp.bytes.max(1.0)
    }

    /// Preparing an op, on its lane.
    fn beside_kernels(&self, op: &Op, shape: &Shape) -> f64 {
        let (Op::Embed { batch }
        | Op::Qkv { batch, .. }
        | Op::OutProj { batch, .. }
        | Op::Mlp { batch, .. }
        | Op::Head { batch }
        | Op::Sample { batch }
        | Op::Attend { batch, .. }
        | Op::Choose { batch, .. }) = *op
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
    fn differs(&self, op: &Op, pressed: Pressed) -> bool {
        match op {
            Op::Attend { .. } | Op::Choose { .. } => !self.windows.is_empty(),
            Op::Mlp { layer, .. } if self.dims.is_last(*layer) => true,
            // Layers have more or less of their weights on the host.
            Op::Qkv { .. } | Op::OutProj { .. } | Op::Mlp { .. } => pressed.on_host,
            _ => false,
        }
    }

    fn load(&self, part: Part, from: Tier, to: Tier, pressed: Pressed) -> f64 {
        let read = part_bytes(&self.from_disk, part);
        let staged = if self.disk_path == DiskPath::ThroughHost { read } else { 0 };
        let copied = if pressed.on_host { 0 } else { part_bytes(&self.from_host, part) };
        let bytes = if from == Tier::Disk { read } else { copied + staged };
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

    pub(super) fn kv(&self, positions: f64) -> f64 {
        positions * self.dims.kv() * self.bytes.kv
    }
}

/// What is listed of a part.
fn part_bytes(parts: &PartBytes, part: Part) -> u64 {
    match part {
        Part::Attention(layer) => parts.get(usize::from(layer)).map_or(0, |halves| halves[0]),
        Part::Mlp(layer) => parts.get(usize::from(layer)).map_or(0, |halves| halves[1]),
        Part::Embed | Part::Head => 0,
    }
}

#[cfg(test)]
mod tests;
