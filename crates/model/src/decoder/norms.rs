//! The norms around attention and MLP: of what goes in, of what comes out, or of the sum.

use kernels::device::{Device, NormWeights, Rows, Sink};

use super::Work;

/// The norms around attention or MLP, those that the model has.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// Of the input.
    pub input: Option<NormWeights>,
    /// Of what is added to the residual stream.
    pub added: Option<NormWeights>,
    /// Of the residual stream, after that.
    pub sum: Option<NormWeights>,
}

impl Norms {
    /// The input of the first linear, in the work's `normed`: the residual stream, normed where the model norms inputs.
    pub(super) fn begin(&self, device: &dyn Device, x: Rows, work: &Work) {
        let to = work.normed.first(x.rows);
        match &self.input {
            Some(norm) => device.norm(x, norm, to),
            None => device.convert(x, to),
        }
    }

    /// Where the last linear's result goes: into the residual stream, or to the work's `sum`, where it waits for its norm.
    pub(super) fn sink(&self, x: Rows, work: &Work) -> Sink {
        match self.added {
            None => Sink::Add(x),
            Some(_) => Sink::Store(work.sum.first(x.rows)),
        }
    }

    /// Norms what waits to be added to the residual stream, or the stream itself (OPT-350m).
    pub(super) fn finish(&self, device: &dyn Device, x: Rows, work: &Work) {
        let aside = || work.sum.first(x.rows);
        if let Some(norm) = &self.added {
            device.add_norm(aside(), norm, x);
        }
        if let Some(norm) = &self.sum {
            device.convert(x, aside());
            device.norm(aside(), norm, x);
        }
    }
}
