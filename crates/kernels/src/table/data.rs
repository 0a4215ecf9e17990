//! Buffers filled with numbers that are the same on every device.

use std::ops::Range;
use std::thread;

use half::bf16;

use crate::arena::{Buf, Full};
use crate::attention::{E4m3, F16, KvDtype, head_numbers};
use crate::device::{Device, Dtype, KvPages, Rows};
use crate::elementwise::Element;

/// A number in -1..1 for each (seed, index): SplitMix64's finish.
pub(super) fn noise(seed: u64, index: usize) -> f32 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Less is not worth a thread of its own.
const THREAD_BYTES: usize = 4 << 20;

/// Has `f` fill `out`, which is `items` parts of equal length, in runs of parts on several threads: large cases are gigabytes of numbers,
/// and a GPU would wait for them.
pub(super) fn in_parts(out: &mut [u8], items: usize, f: impl Fn(Range<usize>, &mut [u8]) + Sync) {
    let threads =
        thread::available_parallelism().map_or(1, usize::from).min(out.len().div_ceil(THREAD_BYTES));
    if threads <= 1 {
        return f(0..items, out);
    }
    let (run, bytes) = (items.div_ceil(threads), out.len() / items);
    thread::scope(|scope| {
        for (i, part) in out.chunks_mut(run * bytes).enumerate() {
            let (first, f) = (i * run, &f);
            scope.spawn(move || f(first..first + part.len() / bytes, part));
        }
    });
}

/// A matrix of noise.
pub(super) fn matrix(
    device: &mut dyn Device,
    rows: usize,
    cols: usize,
    dtype: Dtype,
    seed: u64,
) -> Result<Rows, Full> {
    let buf = device.take(rows * cols * dtype.bytes())?;
    device.fill(&buf, &mut |out| match dtype {
        Dtype::F32 => write(out, |i| noise(seed, i).to_le_bytes()),
        Dtype::Bf16 => write(out, |i| bf16::from_f32(noise(seed, i)).to_le_bytes()),
    });
    Ok(Rows { buf, dtype, rows, cols })
}

/// A matrix of whole numbers from 0 to 15 in f32, which comes again after so many rows. Of each 64 dims of a head the first is 0
/// and the second 15, so that 4 bits are enough for all.
pub(super) fn whole_numbers(
    device: &mut dyn Device,
    (rows, cols): (usize, usize),
    (head_dim, distinct): (usize, usize),
    seed: u64,
) -> Result<Rows, Full> {
    let number = |i: usize| match i % cols % head_dim % 64 {
        0 => 0.0,
        1 => 15.0,
        _ => (8.0 * (1.0 + noise(seed, i % (distinct * cols)))).floor().clamp(0.0, 15.0),
    };
    let buf = device.take(rows * cols * 4)?;
    device.fill(&buf, &mut |out| write(out, |i| number(i).to_le_bytes()));
    Ok(Rows { buf, dtype: Dtype::F32, rows, cols })
}

/// Fills pages of 8 bits or f16 with noise, of numbers from large to very small.
pub(super) fn fill_with_codes(device: &dyn Device, pages: &KvPages, seed: u64) {
    let number = |i: usize| noise(seed, i) * if i.is_multiple_of(3) { 0.02 } else { 1.0 };
    device.fill(&pages.buf, &mut |out| match pages.layout.dtype {
        KvDtype::Fp8 => write(out, |i| [E4m3::from_f32(number(i)).0]),
        _ => write(out, |i| F16::from_f32(number(i)).0.to_le_bytes()),
    });
}

/// f32 parameters: noise around 1.
pub(super) fn vector(device: &mut dyn Device, len: usize, seed: u64) -> Result<Buf, Full> {
    let buf = device.take(4 * len)?;
    device.fill(&buf, &mut |out| write(out, |i| (1.0 + 0.5 * noise(seed, i)).to_le_bytes()));
    Ok(buf)
}

/// Writes `f` of each place.
pub(super) fn write<const N: usize>(out: &mut [u8], f: impl Fn(usize) -> [u8; N] + Sync) {
    let places = out.len() / N;
    in_parts(out, places, |places, out| {
        places.zip(out.chunks_exact_mut(N)).for_each(|(i, out)| out.copy_from_slice(&f(i)));
    });
}

/// A matrix's numbers, widened.
pub(super) fn read(device: &dyn Device, rows: Rows) -> Vec<f32> {
    let mut values = Vec::new();
    device.view(&rows.buf, &mut |bytes| {
        values = match rows.dtype {
            Dtype::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Dtype::Bf16 => {
                bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
        };
    });
    values
}

/// Bytes, as numbers.
pub(super) fn bytes(device: &dyn Device, buf: &Buf) -> Vec<f32> {
    let mut values = Vec::new();
    device.view(buf, &mut |bytes| values = bytes.iter().map(|byte| f32::from(*byte)).collect());
    values
}

/// The numbers of pages: tokens' keys, then their values, of head after head.
pub(super) fn numbers(device: &dyn Device, pages: &KvPages) -> Vec<f32> {
    let (layout, mut numbers) = (pages.layout, Vec::new());
    device.view(&pages.buf, &mut |bytes| {
        let heads = bytes.chunks_exact(layout.head_bytes());
        numbers = heads.flat_map(|head| head_numbers(layout, head)).collect();
    });
    numbers
}
