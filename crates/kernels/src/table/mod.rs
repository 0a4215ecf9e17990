//! One table of cases: every kernel that a decoder asks of a [`Device`], in many shapes, to be checked
//! against the scalar reference and to be timed. `ballast check` and `ballast bench kernels` run it.

mod attention;
mod data;
mod linear;
mod rows;

use std::time::Instant;

use crate::arena::Full;
use crate::device::{Device, Dtype, Rows};
use data::read;

/// How well a device must agree with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Agreement {
    /// Every bit.
    Bits,
    /// Within this share of the largest number of the result.
    Within(f32),
}

/// What a case costs at the least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Bytes that must be read.
    pub bytes: f64,
    /// Operations in bf16 products (two a multiply-add).
    pub flops: f64,
}

/// One kernel in one shape.
pub struct Case {
    /// `linear/bf16/plain/33x576x960`, for instance.
    pub name: String,
    /// How well it must agree.
    pub agreement: Agreement,
    /// What it costs at the least.
    pub floor: Floor,
    /// Device memory that it needs, roughly from above.
    pub bytes: usize,
    kernel: Box<dyn Kernel>,
}

/// What a case does: puts its inputs on a device, and runs.
trait Kernel: Send + Sync {
    /// Takes and fills buffers; returns what runs the kernel once, and where its results are.
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full>;
}

type Run = Box<dyn Fn(&dyn Device)>;

/// A kernel whose buffers are on a device.
struct Bound {
    run: Run,
    results: Vec<Rows>,
}

/// Sums of f32 in two orders differ by less, over the largest number of the result.
const SUM_TOLERANCE: f32 = 1e-4;
/// Where they are rounded to bf16 afterwards: one unit in the last place.
const ROUNDED_TOLERANCE: f32 = 0.005;

/// What a case gave.
struct Results {
    values: Vec<f32>,
    /// Whether some of it is bf16.
    rounded: bool,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The largest difference, over the largest number of the reference's result.
    pub error: f32,
    /// Whether the case agrees as well as it must.
    pub passed: bool,
}

impl Case {
    /// Runs the case on a device and on the reference, each freshly made with [`Case::bytes`].
    ///
    /// # Errors
    /// [`Full`] if a device was made with less.
    pub fn check(&self, device: &mut dyn Device, reference: &mut dyn Device) -> Result<Verdict, Full> {
        let (got, want) = (self.results(device)?, self.results(reference)?);
        Ok(judge(&got.values, &want.values, self.agreement))
    }

    /// The same for a device that adds in an order of its own: bits become rounding errors.
    ///
    /// # Errors
    /// As [`check`](Case::check).
    pub fn check_in_own_order(
        &self,
        device: &mut dyn Device,
        reference: &mut dyn Device,
    ) -> Result<Verdict, Full> {
        let (got, want) = (self.results(device)?, self.results(reference)?);
        let agreement = match self.agreement {
            Agreement::Bits if want.rounded => Agreement::Within(ROUNDED_TOLERANCE),
            Agreement::Bits => Agreement::Within(SUM_TOLERANCE),
            within @ Agreement::Within(_) => within,
        };
        Ok(judge(&got.values, &want.values, agreement))
    }

    fn results(&self, device: &mut dyn Device) -> Result<Results, Full> {
        let bound = self.kernel.prepare(device)?;
        (bound.run)(device);
        let values = bound.results.iter().flat_map(|rows| read(device, *rows)).collect();
        Ok(Results { values, rounded: bound.results.iter().any(|rows| rows.dtype == Dtype::Bf16) })
    }

    /// Seconds of one run: the median of `runs`, after one that is not counted.
    ///
    /// # Errors
    /// [`Full`] if the device was made with less than [`Case::bytes`].
    pub fn time(&self, device: &mut dyn Device, runs: usize) -> Result<f64, Full> {
        let bound = self.kernel.prepare(device)?;
        let once = || {
            let start = Instant::now();
            (bound.run)(device);
            start.elapsed().as_secs_f64()
        };
        once();
        let mut times: Vec<f64> = (0..runs.max(1)).map(|_| once()).collect();
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Seconds of one run where `queued` of them are asked for before the device is waited for: the median of `runs`.
    /// What it costs to ask and to wait is hidden, as it is in a step.
    ///
    /// # Errors
    /// As [`time`](Case::time).
    pub fn time_queued(&self, device: &mut dyn Device, runs: usize, queued: usize) -> Result<f64, Full> {
        let bound = self.kernel.prepare(device)?;
        let many = || {
            let start = Instant::now();
            (0..queued).for_each(|_| (bound.run)(device));
            device.wait();
            start.elapsed().as_secs_f64() / queued as f64
        };
        many();
        let mut times: Vec<f64> = (0..runs.max(1)).map(|_| many()).collect();
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Whether two runs give the same bits. The device has twice [`Case::bytes`].
    ///
    /// # Errors
    /// As [`check`](Case::check).
    pub fn repeats(&self, device: &mut dyn Device) -> Result<bool, Full> {
        let (first, second) = (self.results(device)?, self.results(device)?);
        Ok(first.values == second.values)
    }
}

fn judge(got: &[f32], want: &[f32], agreement: Agreement) -> Verdict {
    let largest = want.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let sound = got.len() == want.len() && got.iter().all(|v| v.is_finite());
    let error = got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / largest;
    let agrees = match agreement {
        Agreement::Bits => error == 0.0,
        Agreement::Within(tolerance) => error <= tolerance,
    };
    Verdict { error, passed: sound && agrees }
}

/// Small and odd shapes of every kernel, for checking.
pub fn conformance() -> Vec<Case> {
    let mut cases = linear::conformance();
    cases.extend(attention::conformance());
    cases.extend(rows::conformance());
    cases
}

/// The shapes of real models, for timing.
pub fn timed() -> Vec<Case> {
    let mut cases = linear::timed();
    cases.extend(attention::timed());
    cases
}

/// Shapes that a GPU needs some time for, each several times its caches: of a Llama of 8 B.
pub fn large() -> Vec<Case> {
    let mut cases = linear::large();
    cases.extend(attention::large());
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuDevice, Isa, Team};
    use std::sync::Arc;

    fn cpu(isa: Isa, bytes: usize) -> CpuDevice {
        CpuDevice::new(bytes, Arc::new(Team::new(2)), isa).unwrap()
    }

    #[test]
    fn every_instruction_set_passes_the_whole_table() {
        for case in conformance() {
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                let verdict =
                    case.check(&mut cpu(isa, case.bytes), &mut cpu(Isa::Scalar, case.bytes)).unwrap();
                assert!(verdict.passed, "{} on {isa}: error {}", case.name, verdict.error);
            }
        }
    }

    #[test]
    fn a_wrong_result_fails() {
        let case = conformance().into_iter().find(|c| c.name.starts_with("linear/bf16")).unwrap();
        let verdict =
            case.check(&mut cpu(Isa::Scalar, case.bytes), &mut cpu(Isa::Scalar, case.bytes)).unwrap();
        assert_eq!(verdict, Verdict { error: 0.0, passed: true });
        let want = case.results(&mut cpu(Isa::Scalar, case.bytes)).unwrap().values;
        let mut got = want.clone();
        got[0] += 1e-3;
        assert!(!judge(&got, &want, case.agreement).passed);
        got[0] = f32::NAN;
        assert!(!judge(&got, &want, Agreement::Within(1.0)).passed);
    }
}
