//! What goes on beside an op, and how much longer that makes it.
//!
//! Where weights are streamed, the drive and the cores disturb each other (readers take memory bandwidth and a little of the
//! cores, and wait for both): each is slower in the part of the step in which the other works too. Whichever of them takes less
//! of the step is always beside the other; the other is beside it for as long as that lasts. The same goes for copies between
//! host and device where both are memory of the processor: they are made by a thread that takes a core from the kernels.

use super::Measured;
use super::roofline::mean_context;
use super::sparse::{chosen, with_keys};
use crate::pipeline::DiskPath;
use spec::{BLOCK_TOKENS, Load, Op, Shape, Tier};

/// How much longer things take in a step, because of what goes on beside them: shares of the time.
#[derive(Clone, Copy)]
pub(super) struct Pressed {
    /// Of computing, beside reads.
    pub(super) compute: f64,
    /// Of computing, beside copies.
    pub(super) compute_by_copies: f64,
    /// Of reads, beside computing.
    pub(super) read: f64,
    /// Of copies, beside computing.
    pub(super) copy: f64,
    /// Whether the host computes with the weights that live there, so that none of them are copied.
    pub(super) on_host: bool,
}

const ALONE: Pressed = Pressed { compute: 0.0, compute_by_copies: 0.0, read: 0.0, copy: 0.0, on_host: false };

impl Measured {
    /// How much of a step moving and computing overlap.
    pub(super) fn pressed(&self, shape: &Shape) -> Pressed {
        let on_host = self.delegation.takes(shape);
        let (read, copy) = (self.reading(shape), self.copying(shape, on_host));
        if read + copy == 0.0 {
            return Pressed { on_host, ..ALONE };
        }
        let compute = self.computing(shape);
        let share = |part: f64, of: f64| if part > 0.0 && of > 0.0 { (part / of).min(1.0) } else { 0.0 };
        Pressed {
            compute: share(read, compute),
            compute_by_copies: share(copy, compute),
            read: share(compute, read),
            copy: share(compute, copy),
            on_host,
        }
    }

    /// Seconds that a step copies between host and device, with nothing beside it.
    fn copying(&self, shape: &Shape, on_host: bool) -> f64 {
        let weights: u64 = self.from_host.iter().flatten().filter(|_| !on_host).sum();
        let staged = match self.disk_path {
            DiskPath::ThroughHost => self.from_disk.iter().flatten().sum(),
            DiskPath::Direct => 0,
        };
        let both = [(Tier::Host, Tier::Device), (Tier::Device, Tier::Host)];
        let kv = |load| both.map(|hop| self.carried(load, hop)).iter().sum::<f64>();
        let kv: f64 = shape.loads.iter().map(|load| self.kv(kv(load))).sum();
        ((weights + staged) as f64 + kv * self.dims.layers as f64) / self.tables.copy_bytes_per_s
    }

    /// Seconds that a step reads the drive, with nothing beside it.
    fn reading(&self, shape: &Shape) -> f64 {
        let weights = self.from_disk.iter().flatten().filter(|&&bytes| bytes > 0);
        let weights: f64 = weights.map(|&bytes| self.tables.disk_read.at(bytes as f64)).sum();
        let both = [(Tier::Disk, Tier::Host), (Tier::Disk, Tier::Device)];
        let kv = |load| both.map(|hop| self.carried(load, hop)).iter().sum::<f64>();
        let kv: f64 = shape.loads.iter().map(|load| self.kv(kv(load))).sum();
        let prefixes = shape.moves.iter().filter(|m| m.from == Tier::Disk);
        let prefixes: f64 = prefixes.map(|m| self.kv(f64::from(m.blocks * BLOCK_TOKENS.0))).sum();
        let read = |bytes| self.tables.disk_read.at(bytes);
        weights + self.dims.layers as f64 * (read(kv) + read(prefixes))
    }

    /// Positions' worth of KV that makes a hop in a layer, in one copy or in two.
    fn carried(&self, load: &Load, hop: (Tier, Tier)) -> f64 {
        let later =
            self.sparse.map_or(0.0, |_| chosen(self.sparse, self.disk_path, load, hop, mean_context(load)));
        with_keys(self.sparse, self.disk_path, load, hop) + later
    }

    /// Seconds that a step computes, with nothing beside it.
    fn computing(&self, shape: &Shape) -> f64 {
        let of = |batch: u16| {
            let alone = |op: Op| self.compute(&op, shape, ALONE);
            let linears =
                [Op::Qkv { layer: 0, batch }, Op::OutProj { layer: 0, batch }, Op::Mlp { layer: 0, batch }];
            let attend = |layer| [Tier::Device, Tier::Host].map(|on| alone(Op::Attend { layer, batch, on }));
            let layers = self.dims.layers as f64;
            let attends: f64 = match self.windows.len() {
                0 => layers * attend(0).iter().sum::<f64>(),
                count => (0..count as u16).flat_map(attend).sum(),
            };
            linears.map(alone).iter().sum::<f64>() * layers + attends + alone(Op::Head { batch })
        };
        (0..shape.loads.len() as u16).map(of).sum()
    }
}
