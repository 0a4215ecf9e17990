//! What ops cost. The policy's belief and the simulator's truth are two instances of one trait.

mod correction;
mod curve;
mod least;
mod measured;
mod pressed;
mod roofline;
mod shapes;
mod sparse;
mod tables;

pub use correction::{BySort, Correction, FACTOR_MAX, OpSort, Pace};
pub use curve::Curve;
pub use measured::{Measured, PartBytes};
pub use roofline::{Dims, ElementBytes, Roofline};
pub use sparse::{OverLink, Sparse};
pub use tables::{Beside, Decode, Linear, Tables};

use spec::{Nanos, Op, Shape};

/// Time that an op takes alone, for a step of this shape.
pub trait Cost {
    /// The time of `op`, launch included.
    fn of(&self, op: &Op, shape: &Shape) -> Nanos;

    /// The same for many ops of one shape: what follows from the shape alone may be worked out once.
    fn over<'a>(&'a self, shape: &'a Shape) -> Box<dyn FnMut(&Op) -> Nanos + 'a> {
        Box::new(move |op| self.of(op, shape))
    }
}

impl<F: Fn(&Op, &Shape) -> Nanos> Cost for F {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        self(op, shape)
    }
}
