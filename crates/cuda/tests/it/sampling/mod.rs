//! Random parameters and logits: a device's tokens and those of the CPU's sampler.

use kernels::device::{Device, Dtype, Rows};
use kernels::pick::Pick;
use model::sampling::{Draws, SampleError, Sampler, SamplingParams};

/// Seeded numbers.
struct Numbers(Draws, u64);

impl Numbers {
    fn unit(&mut self) -> f64 {
        self.1 += 1;
        self.0.uniform(self.1)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Like a model's: many small, a few large; on a grid, so that some are equal, or not; some of them masked.
    fn logits(&mut self, vocab: usize) -> Vec<f32> {
        let (grid, spread) = (self.of(&[0.0, 16.0, 2.0]), self.of(&[1.0, 4.0, 30.0]));
        let mut one = || {
            let u = self.unit();
            let x = (self.unit() - 0.5) * if u > 0.99 { 4.0 * spread } else { spread };
            let x = if grid > 0.0 { (x * grid).round() / grid } else { x };
            if u < 0.01 { f32::NEG_INFINITY } else { x as f32 }
        };
        (0..vocab).map(|_| one()).collect()
    }

    fn params(&mut self, vocab: usize) -> SamplingParams {
        let ids = |numbers: &mut Numbers| -> Vec<(u32, f32)> {
            (0..20).map(|_| (numbers.below(vocab + 3) as u32, (numbers.unit() * 12.0 - 4.0) as f32)).collect()
        };
        SamplingParams {
            temperature: self.of(&[0.0, 0.3, 1.0, 1.0, 1.7]),
            top_k: self.of(&[None, None, Some(1), Some(7), Some(50), Some(100_000)]),
            top_p: self.of(&[1.0, 1.0, 0.95, 0.5, 0.1, 0.999]),
            min_p: self.of(&[0.0, 0.0, 0.05, 0.4, 1.0]),
            repetition_penalty: self.of(&[1.0, 1.0, 1.3, 0.8, 2e-38]),
            presence_penalty: self.of(&[0.0, 0.0, 1.5]),
            frequency_penalty: self.of(&[0.0, 0.0, 0.7, -0.5]),
            min_tokens: self.of(&[0, 2]),
            logit_bias: if self.below(3) == 0 { ids(self).into() } else { [].into() },
            seed: Some(self.below(1000) as u64),
            ..SamplingParams::greedy()
        }
    }
}

/// What a device takes from rows of logits.
pub(crate) fn picked(
    device: &mut dyn Device,
    rows: &[Vec<f32>],
    picks: Vec<Pick>,
) -> Vec<Result<u32, SampleError>> {
    let (count, cols) = (rows.len(), rows[0].len());
    let buf = device.take(4 * count * cols).unwrap();
    device.upload(&buf, bytemuck::cast_slice(&rows.concat()));
    assert!(device.picks(cols));
    let picks: Vec<(u32, Pick)> = (0..).zip(picks).collect();
    let picked = device.pick(Rows { buf, dtype: Dtype::F32, rows: count, cols }, &picks);
    let tokens = device.picked(picked);
    tokens.into_iter().map(|token| token.map_err(SampleError::from)).collect()
}

/// Device memory for all cases.
pub(crate) const BYTES: usize = 64 << 20;
/// Vocabularies, and sequences of each; the last is Gemma 3's.
const CASES: [(usize, usize); 8] =
    [(1, 24), (63, 24), (96, 24), (1000, 24), (1024, 24), (2500, 24), (5000, 24), (262_208, 6)];
const STEPS: usize = 4;

/// # Panics
/// If a token differs.
pub(crate) fn check(device: &mut dyn Device) {
    let mut numbers = Numbers(Draws::new(5), 0);
    let (mut drawn, mut different) = (0, 0);
    for (vocab, sequences) in CASES {
        let prompt: Vec<u32> = (0..30).map(|_| numbers.below(vocab) as u32).collect();
        let eos = [numbers.below(vocab) as u32];
        let params: Vec<SamplingParams> = (0..sequences).map(|_| numbers.params(vocab)).collect();
        let sampler = |params: &SamplingParams| Sampler::new(params.clone(), &prompt, &eos, 9);
        let mut here: Vec<Sampler> = params.iter().map(sampler).collect();
        let mut there: Vec<Sampler> = params.iter().map(sampler).collect();
        for step in 0..STEPS {
            let rows: Vec<Vec<f32>> = (0..sequences).map(|_| numbers.logits(vocab)).collect();
            let want: Vec<Result<u32, SampleError>> = here
                .iter_mut()
                .zip(&rows)
                .map(|(sampler, logits)| sampler.sample(logits).map(|sampled| sampled.token))
                .collect();
            let got =
                picked(device, &rows, there.iter().map(|sampler| sampler.for_device(0).unwrap()).collect());
            for (((got, want), params), row) in got.iter().zip(&want).zip(&params).zip(&rows) {
                assert_eq!(got, want, "{vocab} tokens, step {step}: {params:?}");
                let argmax = model::sampling::argmax(row).map(|best| best.0);
                (drawn, different) = (drawn + 1, different + usize::from(*got != argmax));
            }
            let tokens =
                there.iter_mut().zip(&got).filter_map(|(sampler, token)| Some((sampler, (*token).ok()?)));
            tokens.for_each(|(sampler, token)| sampler.accept(token));
        }
    }
    assert!(
        different * 5 > drawn,
        "{different} of {drawn} are not the largest logit: sampling did something"
    );
}

/// # Panics
/// If a row harms another, or gives no error or another one.
pub(crate) fn check_errors(device: &mut dyn Device) {
    let mut numbers = Numbers(Draws::new(6), 0);
    let mut rows: Vec<Vec<f32>> = (0..5).map(|_| (0..300).map(|_| numbers.unit() as f32).collect()).collect();
    rows[0][299] = f32::NAN;
    rows[1][0] = f32::INFINITY;
    rows[2].fill(f32::NEG_INFINITY);
    let params = SamplingParams { temperature: 1.0, top_k: Some(20), ..SamplingParams::greedy() };
    // A masked logit may have hidden damage.
    let masked = SamplingParams { logit_bias: [(299, -100.0)].into(), ..SamplingParams::greedy() };
    let samplers: Vec<Sampler> = [&masked, &params, &params, &params, &masked]
        .iter()
        .map(|params| Sampler::new((*params).clone(), &[], &[], 3))
        .collect();
    let got = picked(device, &rows, samplers.iter().map(|sampler| sampler.for_device(0).unwrap()).collect());
    let want: Vec<_> = samplers
        .into_iter()
        .zip(&rows)
        .map(|(mut sampler, row)| sampler.sample(row).map(|sampled| sampled.token))
        .collect();
    assert_eq!(got, want);
    assert_eq!(
        got[..3],
        [Err(SampleError::NotFinite), Err(SampleError::NotFinite), Err(SampleError::NothingAllowed)]
    );
    assert!(got[3].is_ok() && got[4].is_ok());
}

/// Calls whose tokens are asked for when all were made: as many as a step may have batches, and more.
const UNDER_WAY: usize = 300;

/// Tokens of many calls are on their way at once.
///
/// # Panics
/// If one is another's. A device that waits for somebody to ask for the first ones waits for ever.
pub(crate) fn check_many_under_way(device: &mut dyn Device) {
    let cols = 64;
    let row = |call: usize| (0..cols).map(move |id| if id == call % cols { 1.0 } else { 0.0 });
    let values: Vec<f32> = (0..UNDER_WAY).flat_map(row).collect();
    let buf = device.take(4 * values.len()).unwrap();
    device.upload(&buf, bytemuck::cast_slice(&values));
    let logits = Rows { buf, dtype: Dtype::F32, rows: UNDER_WAY, cols };
    let pick = Sampler::new(SamplingParams::greedy(), &[], &[], 0).for_device(0).unwrap();
    let calls: Vec<_> =
        (0..UNDER_WAY).map(|call| device.pick(logits, &[(call as u32, pick.clone())])).collect();
    let tokens: Vec<_> = calls.into_iter().flat_map(|picked| device.picked(picked)).collect();
    let want: Vec<_> = (0..UNDER_WAY).map(|call| Ok((call % cols) as u32)).collect();
    assert_eq!(tokens, want);
}
