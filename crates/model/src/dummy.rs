//! Random weights for models that one does not have: normal with deviation 0.02, as fast as memory.

use crate::stored::Stored;
use crate::tensor::Tensor;
use half::{bf16, f16};
use spec::model::DType;

const POOL: usize = 1 << 20;
const DEVIATION: f32 = 0.02;

/// A pool of normal numbers. A row is a stretch of it with the signs of another stretch, both
/// chosen by hashing seed, tensor and row: so rows differ, and are copied rather than computed.
#[derive(Debug)]
pub(crate) struct Dummy {
    seed: u64,
    stored: Stored,
    pool: Vec<u8>,
    /// What files of the model hold for a norm's scale of one.
    one: Vec<u8>,
}

impl Dummy {
    pub(crate) fn new(seed: u64, dtype: DType, one: f32) -> Dummy {
        let numbers = normals(seed);
        let pool = numbers.into_iter().flat_map(|x| encode(dtype, DEVIATION * x)).collect();
        Dummy { seed, stored: dtype.into(), pool, one: encode(dtype, one) }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    /// Fills `into` with one row of a matrix, or the ones and zeros of a vector.
    pub(crate) fn fill_row(&self, tensor: Tensor, row: usize, is_matrix: bool, into: &mut [u8]) {
        if is_matrix {
            self.fill_random(tensor, row, into);
        } else if tensor.is_norm_scale() {
            into.chunks_exact_mut(self.one.len()).for_each(|x| x.copy_from_slice(&self.one));
        } else {
            into.fill(0);
        }
    }

    fn fill_random(&self, tensor: Tensor, row: usize, into: &mut [u8]) {
        let width = self.stored.block_bytes();
        let mut state = mix(self.seed ^ mix(tensor_number(tensor)) ^ mix(row as u64).rotate_left(17));
        // Half a pool at most, from a start in its first half.
        for stretch in into.chunks_mut(width * POOL / 2) {
            state = mix(state);
            let at = |bits: u64| width * (bits as usize % (POOL / 2));
            let values = &self.pool[at(state)..][..stretch.len()];
            let signs = &self.pool[at(state >> 32)..][..stretch.len()];
            with_signs(self.stored, values, signs, stretch);
        }
    }
}

fn with_signs(stored: Stored, values: &[u8], signs: &[u8], into: &mut [u8]) {
    match stored {
        Stored::F32 => flip::<4>(values, signs, into),
        _ => flip::<2>(values, signs, into),
    }
}

/// Little-endian floats of N bytes: the sign is the top bit of the last byte.
fn flip<const N: usize>(values: &[u8], signs: &[u8], into: &mut [u8]) {
    let sources = values.as_chunks::<N>().0.iter().zip(signs.as_chunks::<N>().0);
    for (to, (value, sign)) in into.as_chunks_mut::<N>().0.iter_mut().zip(sources) {
        *to = *value;
        to[N - 1] ^= sign[N - 1] & 0x80;
    }
}

fn tensor_number(tensor: Tensor) -> u64 {
    let outer = Tensor::OUTER.iter().position(|t| *t == tensor);
    match (outer, tensor) {
        (None, Tensor::Layer(layer, part)) => 1 << 8 | (layer as u64) << 16 | part as u64,
        (place, _) => place.unwrap_or(0) as u64,
    }
}

fn encode(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
    }
}

/// Normal numbers by the method of Box and Muller.
fn normals(seed: u64) -> Vec<f32> {
    let uniform = |i: u64| (mix(seed.wrapping_add(i)) >> 40) as f32 / (1u64 << 24) as f32;
    let pair = |i: u64| {
        let radius = (-2.0 * (1.0 - uniform(2 * i)).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * uniform(2 * i + 1)).sin_cos();
        [radius * sin, radius * cos]
    };
    (0..POOL as u64 / 2).flat_map(pair).collect()
}

/// The output function of SplitMix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
