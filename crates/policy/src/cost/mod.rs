//! What ops cost. The policy's belief and the simulator's truth are two instances of one trait.

mod roofline;
mod shapes;

pub use roofline::{Dims, ElementBytes, Roofline};

use spec::{Nanos, Op, Shape};

/// Time that an op takes alone, for a step of this shape.
pub trait Cost {
    /// The time of `op`, launch included.
    fn of(&self, op: &Op, shape: &Shape) -> Nanos;
}

impl<F: Fn(&Op, &Shape) -> Nanos> Cost for F {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        self(op, shape)
    }
}
