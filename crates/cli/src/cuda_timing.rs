//! Times of cases by a GPU's own clock, with none of their numbers in its caches: a step comes back to a layer's weights and
//! pages only after gigabytes of others.

use std::fmt;

use anyhow::Result;
use cuda::CudaDevice;
use kernels::arena::Full;
use kernels::device::{Device, Dtype, Matrix, Rows, Sink};
use kernels::linear::{Activations, Format, RowOrder, packed_bytes};
use kernels::table::Case;
use serde::Serialize;

use crate::timed::Timed;

/// Times that a case is timed; the median counts.
const RUNS: usize = 5;
/// Runs of each time: what it costs to ask for one is hidden, as it is in a step.
const QUEUED: usize = 20;
/// A product of one row reads 256 MiB of weights: twice the caches of the largest GPUs, and nothing that they would have to
/// write back during the case.
const SWEEP_ROWS: usize = 32768;
const SWEEP_COLUMNS: usize = 4096;
/// Less than any kernel takes: what a difference of two times is at the least.
const SECONDS_MIN: f64 = 1e-7;

/// What pushes everything else out of the caches.
struct Sweep {
    weights: Matrix,
    x: Rows,
    out: Rows,
}

/// Device memory that [`seconds`] takes beside the case's own.
pub(crate) const BYTES: usize = SWEEP_ROWS * SWEEP_COLUMNS * 2 + SWEEP_COLUMNS * 2 + SWEEP_ROWS * 4 + 4096;

impl Sweep {
    fn new(device: &mut CudaDevice) -> Result<Sweep, Full> {
        let (format, order, n, k) = (Format::Bf16, RowOrder::Plain, SWEEP_ROWS, SWEEP_COLUMNS);
        let parts = vec![(0, device.take(packed_bytes(format, order, n, k))?)];
        let x = Rows { buf: device.take(k * 2)?, dtype: Dtype::Bf16, rows: 1, cols: k };
        let out = Rows { buf: device.take(n * 4)?, dtype: Dtype::F32, rows: 1, cols: n };
        let weights = Matrix { format, n, k, order, activations: Activations::Exact, parts };
        Ok(Sweep { weights, x, out })
    }

    /// Whatever lies in its memory: nobody looks at the result.
    fn run(&self, device: &CudaDevice) {
        device.linear(self.x, &self.weights, None, Sink::Store(self.out));
    }
}

/// Seconds of one run of a case, in the order in which a step asks: what a sweep and the case take together, less what the
/// sweep takes. The device is fresh, with memory for the case and [`BYTES`].
///
/// # Errors
/// Those of the device: no memory, or no clock.
pub(crate) fn seconds(case: &Case, device: &mut CudaDevice) -> Result<f64> {
    let sweep = Sweep::new(device)?;
    case.time_by(device, RUNS, |device, run| {
        let gpu = device.driver();
        let swept = gpu.seconds_of(|| (0..QUEUED).for_each(|_| sweep.run(device)))?;
        let both = gpu.seconds_of(|| {
            for _ in 0..QUEUED {
                sweep.run(device);
                run();
            }
        })?;
        Ok::<f64, anyhow::Error>(one_of(both, swept))
    })
}

/// Operations per second of the library's large products, for people.
pub(crate) fn product_rate(flops: Option<f64>) -> String {
    flops.map_or("not measured".to_string(), |flops| format!("{:.0} TFLOP/s", flops / 1e12))
}

fn one_of(both: f64, swept: f64) -> f64 {
    ((both - swept) / QUEUED as f64).max(SECONDS_MIN)
}

/// A case's time beside what the GPU's copies and its library of products reach.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    timed: Timed,
    /// Of the device's own copies, both directions counted.
    copy_fraction: f64,
    /// Of the library's product, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    product_fraction: Option<f64>,
}

impl Row {
    pub(crate) fn new(case: &Case, seconds: f64, copy_bytes_per_s: f64, product_flops: Option<f64>) -> Row {
        let timed = Timed::new(case, seconds);
        let copy_fraction = timed.bytes_per_s / copy_bytes_per_s;
        Row { copy_fraction, product_fraction: product_flops.map(|most| timed.flops / most), timed }
    }

    /// What stands above lines of these.
    pub(crate) fn heading() -> String {
        format!("{} {:>7} {:>8}", Timed::heading(), "copies", "products")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = self.product_fraction.map_or("-".to_string(), |share| format!("{:.0}%", 100.0 * share));
        write!(f, "{} {:6.0}% {product:>8}", self.timed, 100.0 * self.copy_fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::table::Floor;

    #[test]
    fn a_run_is_what_the_sweep_does_not_take() {
        let one = one_of(21e-4, 19e-4);
        assert!((one - 1e-5).abs() < 1e-9, "{one}");
        // The clock's noise makes no kernel free, nor faster than free.
        assert_eq!(one_of(1.0, 1.1), SECONDS_MIN);
    }

    #[test]
    fn fractions_are_of_what_was_measured() {
        let mut case = kernels::table::timed().swap_remove(0);
        case.floor = Floor { bytes: 2e9, flops: 3e12 };
        let row = Row::new(&case, 0.01, 4e11, Some(6e14));
        assert_eq!((row.copy_fraction, row.product_fraction), (0.5, Some(0.5)));
        assert!(Row::new(&case, 0.01, 4e11, None).to_string().ends_with('-'));
    }

    #[test]
    fn the_sweeps_memory_is_told() {
        let weights = packed_bytes(Format::Bf16, RowOrder::Plain, SWEEP_ROWS, SWEEP_COLUMNS);
        assert!(BYTES >= weights + 2 * SWEEP_COLUMNS + 4 * SWEEP_ROWS + 3 * 256, "aligned to 256 each");
    }
}
