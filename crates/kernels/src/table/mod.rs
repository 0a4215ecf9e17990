//! One table of cases: every kernel that a decoder asks of a [`Device`], in many shapes, to be checked
//! against the scalar reference and to be timed. `ballast check` and `ballast bench kernels` run it.

mod attention;
mod choose;
mod data;
mod linear;
mod random;
mod rows;

use std::time::Instant;

use crate::arena::Full;
use crate::device::{Device, Dtype, KvPages, Rows};
use data::{bytes, numbers, read};

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

/// Which devices have what a case asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Everywhere,
    /// The CPU alone, so far: activations in whole numbers.
    Cpu,
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
    /// Which devices can be asked.
    pub reach: Reach,
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
    results: Vec<Found>,
}

/// Where a kernel left something.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// Numbers.
    Rows(Rows),
    /// Pages of 4 or 8 bits.
    Pages(KvPages),
}

impl Found {
    fn is_rounded(&self) -> bool {
        matches!(self, Found::Rows(rows) if rows.dtype == Dtype::Bf16)
    }

    fn read(&self, device: &dyn Device) -> Vec<f32> {
        match self {
            Found::Rows(rows) => read(device, *rows),
            Found::Pages(pages) => bytes(device, &pages.buf),
        }
    }

    /// The numbers of pages of 4 or 8 bits, a head of a token after the other, and how many that has.
    fn heads(&self, device: &dyn Device) -> Option<(Vec<f32>, usize)> {
        match self {
            Found::Rows(_) => None,
            Found::Pages(pages) => Some((numbers(device, pages), pages.layout.head_dim)),
        }
    }
}

/// Sums of f32 in two orders differ by less, over the largest number of the result.
const SUM_TOLERANCE: f32 = 1e-4;
/// Where they are rounded to bf16 afterwards: one unit in the last place.
const ROUNDED_TOLERANCE: f32 = 0.005;

/// Numbers that are rounded to 4 or 8 bits may fall to the other side here and there, each then by a step: what a head's differ by
/// on average, and each of them at the most, over the head's largest.
const STEPS_TOLERANCE: [f32; 2] = [0.02, 0.2];

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The largest difference, over the largest number of the reference's result.
    pub error: f32,
    /// Whether the case agrees as well as it must.
    pub passed: bool,
}

/// What a case gives on the reference: one for all families that add in the same order.
pub struct Expected(Vec<f32>);

impl Case {
    /// Runs the case on the reference, freshly made with [`Case::bytes`].
    ///
    /// # Errors
    /// [`Full`] if the device was made with less.
    pub fn expected(&self, reference: &mut dyn Device) -> Result<Expected, Full> {
        self.results(reference).map(Expected)
    }

    /// Runs the case on a device, likewise, and holds it against what was expected.
    ///
    /// # Errors
    /// As [`expected`](Case::expected).
    pub fn check(&self, device: &mut dyn Device, want: &Expected) -> Result<Verdict, Full> {
        Ok(judge(&self.results(device)?, &want.0, self.agreement))
    }

    /// The same for a device that adds in an order of its own: bits become rounding errors. What narrow weights are made
    /// into must be the same on both: bf16 numbers on a GPU, see [`CpuDevice::in_groups`](crate::CpuDevice::in_groups).
    ///
    /// # Errors
    /// As [`check`](Case::check).
    pub fn check_in_own_order(
        &self,
        device: &mut dyn Device,
        reference: &mut dyn Device,
    ) -> Result<Verdict, Full> {
        let (got, want) = (self.bound(device)?, self.bound(reference)?);
        let rounded = want.results.iter().any(Found::is_rounded);
        let agreement = match self.agreement {
            Agreement::Bits if rounded => Agreement::Within(ROUNDED_TOLERANCE),
            Agreement::Bits => Agreement::Within(SUM_TOLERANCE),
            within @ Agreement::Within(_) => within,
        };
        let verdict = |(got, want): (&Found, &Found)| match (got.heads(device), want.heads(reference)) {
            (Some((got, _)), Some((want, head_dim))) => judge_heads(&got, &want, head_dim),
            _ => judge(&got.read(device), &want.read(reference), agreement),
        };
        let verdicts = got.results.iter().zip(&want.results).map(verdict);
        Ok(verdicts.fold(Verdict { error: 0.0, passed: true }, |all, one| Verdict {
            error: all.error.max(one.error),
            passed: all.passed && one.passed,
        }))
    }

    /// Runs it once.
    fn bound(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let bound = self.kernel.prepare(device)?;
        (bound.run)(device);
        Ok(bound)
    }

    fn results(&self, device: &mut dyn Device) -> Result<Vec<f32>, Full> {
        let bound = self.bound(device)?;
        Ok(bound.results.iter().flat_map(|found| found.read(device)).collect())
    }

    /// Seconds of one run: the median of `runs`, after one that is not counted. `before` each, what is to come is taken out of the
    /// caches, for instance.
    ///
    /// # Errors
    /// [`Full`] if the device was made with less than [`Case::bytes`].
    pub fn time<D: Device>(&self, device: &mut D, runs: usize, before: impl Fn()) -> Result<f64, Full> {
        self.time_by(device, runs, |_, run| {
            before();
            let start = Instant::now();
            run();
            Ok(start.elapsed().as_secs_f64())
        })
    }

    /// Seconds of one run by the device's own clock: the median of `runs`, after one that is not counted.
    ///
    /// # Errors
    /// As [`time`](Case::time), and the clock's own.
    pub fn time_by<D: Device, E: From<Full>>(
        &self,
        device: &mut D,
        runs: usize,
        clock: impl Fn(&D, &dyn Fn()) -> Result<f64, E>,
    ) -> Result<f64, E> {
        let bound = self.kernel.prepare(device)?;
        let device: &D = device;
        let once = || clock(device, &|| (bound.run)(device));
        once()?;
        let mut times = (0..runs.max(1)).map(|_| once()).collect::<Result<Vec<f64>, E>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// Whether two runs give the same bits. The device has twice [`Case::bytes`].
    ///
    /// # Errors
    /// As [`check`](Case::check).
    pub fn repeats(&self, device: &mut dyn Device) -> Result<bool, Full> {
        let (first, second) = (self.results(device)?, self.results(device)?);
        Ok(first == second)
    }
}

fn judge(got: &[f32], want: &[f32], agreement: Agreement) -> Verdict {
    let largest = want.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    // A maximum passes over NaN, so both are looked at.
    if got.len() != want.len() || !got.iter().chain(want).all(|v| v.is_finite()) {
        return Verdict { error: f32::INFINITY, passed: false };
    }
    let error = got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / largest;
    let passed = match agreement {
        Agreement::Bits => got.iter().zip(want).all(|(g, w)| g.to_bits() == w.to_bits()),
        Agreement::Within(tolerance) => error <= tolerance,
    };
    Verdict { error, passed }
}

/// The same for pages of 4 or 8 bits, a head of a token after the other.
fn judge_heads(got: &[f32], want: &[f32], head_dim: usize) -> Verdict {
    if got.len() != want.len() || !got.iter().all(|v| v.is_finite()) {
        return Verdict { error: f32::INFINITY, passed: false };
    }
    let mut verdict = Verdict { error: 0.0, passed: true };
    for (got, want) in got.chunks(head_dim).zip(want.chunks(head_dim)) {
        let largest = want.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let apart = || got.iter().zip(want).map(|(g, w)| (g - w).abs() / largest);
        let (mean, most) = (apart().sum::<f32>() / head_dim as f32, apart().fold(0f32, f32::max));
        verdict.error = verdict.error.max(mean);
        verdict.passed &= mean <= STEPS_TOLERANCE[0] && most <= STEPS_TOLERANCE[1];
    }
    verdict
}

/// Small and odd shapes of every kernel, for checking.
pub fn conformance() -> Vec<Case> {
    let mut cases = linear::conformance();
    cases.extend(attention::conformance());
    cases.extend(choose::conformance());
    cases.extend(rows::conformance());
    cases
}

/// So many kernels in shapes that are drawn out of a seed, for checking.
pub fn random(seed: u64, count: usize) -> Vec<Case> {
    let mut draw = random::Draw::new(seed);
    let one = |_| match draw.within(0, 9) {
        0 => rows::random(&mut draw),
        1..=5 => linear::random(&mut draw),
        _ => attention::random(&mut draw),
    };
    (0..count).map(one).collect()
}

/// The shapes of real models, for timing.
pub fn timed() -> Vec<Case> {
    let mut cases = linear::timed();
    cases.extend(attention::timed());
    cases.extend(choose::timed());
    cases.extend(rows::timed());
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

    #[test]
    fn a_wrong_result_fails() {
        let want: Vec<f32> = (0..64).map(|i| i as f32 / 8.0).collect();
        assert_eq!(judge(&want, &want, Agreement::Bits), Verdict { error: 0.0, passed: true });
        let mut got = want.clone();
        got[0] += 1e-3;
        assert!(!judge(&got, &want, Agreement::Bits).passed);
        assert!(judge(&got, &want, Agreement::Within(0.01)).passed);
        got[0] += 1.0;
        assert!(!judge(&got, &want, Agreement::Within(0.01)).passed);
        got[0] = f32::NAN;
        assert!(!judge(&got, &want, Agreement::Within(1.0)).passed);
        assert!(!judge(&want, &got, Agreement::Within(1.0)).passed, "a reference that is no number");
        assert!(!judge(&want[1..], &want, Agreement::Within(1.0)).passed, "something is missing");
        assert!(!judge(&[-0.0], &[0.0], Agreement::Bits).passed);
    }

    #[test]
    fn codes_may_fall_to_the_other_side_but_not_all_of_them() {
        let want: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
        let moved =
            |every: usize| want.iter().enumerate().map(move |(i, x)| x + 0.13 * f32::from(i % every == 0));
        assert!(judge_heads(&moved(16).collect::<Vec<_>>(), &want, 32).passed);
        assert!(!judge_heads(&moved(2).collect::<Vec<_>>(), &want, 32).passed);
        let turned: Vec<f32> = want.iter().rev().copied().collect();
        assert!(!judge_heads(&turned, &want, 32).passed);
        assert!(!judge_heads(&[f32::NAN; 64], &want, 32).passed);
    }
}
