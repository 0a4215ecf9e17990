//! Rows of a checkpoint to packed panels: read, converted and packed a few panels at a time, by all threads.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Mutex;

use half::{bf16, f16};
use kernels::linear::quant::{dequantize_row, pack_blocks, pack_floats, round_to_grid};
use kernels::linear::{Format, PANEL_ROWS, RowOrder, TooVaried, pack_bf12, pack_bf16, pack_f32, panel_bytes};
use kernels::{Mat, Team};
use spec::ModelSpec;

use super::blueprint::{Along, MatrixPlan, Rounding};
use super::tabled::{q8_0_bytes, to_q8_0};
use crate::checkpoint::{Checkpoint, Info};
use crate::error::Error;
use crate::stored::Stored;
use crate::tensor::Tensor;
use kernels::lock::lock;

/// Panels that are read and packed at a time are about this many bytes: rows and panels fit in a core's cache.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that each thread has of a matrix at least, where there are so many panels.
const PIECES_PER_THREAD: usize = 4;
/// Rows of a gated panel that come from the gate (as many come from up).
const GATED_HALF: usize = 16;

/// Outputs of a group, where weights are rounded along them.
const GROUP: usize = 64;

/// Packs panels of a checkpoint's matrices.
pub(crate) struct Packer<'a> {
    checkpoint: &'a Checkpoint,
    team: &'a Team,
    /// Each worker's.
    rows: Vec<Mutex<Rows>>,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, team: &'a Team) -> Packer<'a> {
        Packer { checkpoint, team, rows: (0..team.size()).map(|_| Mutex::default()).collect() }
    }

    /// Fills `out` with some panels of a matrix, shared out over the team. `done` is told of bytes, from any thread.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, or a number is not finite.
    pub(crate) fn panels(
        &self,
        plan: &MatrixPlan,
        panels: Range<usize>,
        out: &mut [u8],
        done: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Error> {
        let bytes = panel_bytes(plan.format, plan.k);
        let fair = panels.len() / (PIECES_PER_THREAD * self.team.threads());
        let together = plan.tensors.iter().map(|tensor| self.checkpoint.rows_at_once(*tensor)).max();
        let at_once = (PIECE_BYTES / bytes.max(1)).min(fair).max(together.unwrap_or(1) / PANEL_ROWS).max(1);
        let pieces: Vec<Mutex<&mut [u8]>> = out.chunks_mut(bytes * at_once).map(Mutex::new).collect();
        let failed = Mutex::new(None);
        self.team.run(|w| {
            let mut rows = lock(&self.rows[w.index]);
            for piece in w.share(pieces.len()) {
                let first = panels.start + piece * at_once;
                let range = first..(first + at_once).min(panels.end);
                let mut out = lock(&pieces[piece]);
                if let Err(error) = self.pack(plan, range, &mut rows, &mut out) {
                    lock(&failed).get_or_insert(error);
                    return;
                }
                done(out.len());
            }
        });
        failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }

    /// Reads and packs some panels: their source rows become a small matrix of their own.
    fn pack(
        &self,
        plan: &MatrixPlan,
        range: Range<usize>,
        rows: &mut Rows,
        out: &mut [u8],
    ) -> Result<(), Error> {
        rows.clear();
        for (tensor, part) in sources(plan, range.clone(), self.checkpoint.spec()) {
            match plan.rounded {
                Some(Rounding { bits, along: Along::Outputs }) => {
                    let values = self.rounded_down(tensor, part.clone(), (bits, plan.k))?;
                    let into = rows.add(Stored::F32, part.len(), size_of_val(&values[..]));
                    into.copy_from_slice(bytemuck::cast_slice(&values));
                }
                _ if self.info(tensor).stored == Stored::IQ4_NL => {
                    let mut bytes = vec![0; part.len() * self.info(tensor).row_bytes];
                    self.checkpoint.read_rows(tensor, part.clone(), &mut bytes)?;
                    to_q8_0(&bytes, rows.add(Stored::Q8_0, part.len(), q8_0_bytes(bytes.len())));
                }
                _ => {
                    let info = self.info(tensor);
                    let into = rows.add(info.stored, part.len(), part.len() * info.row_bytes);
                    self.checkpoint.read_rows(tensor, part, into)?;
                }
            }
        }
        let packed = rows.pack(plan, 0..range.len(), out);
        packed.map_err(|found| {
            let names: Vec<_> = plan.tensors.iter().map(|tensor| self.checkpoint.name_of(*tensor)).collect();
            let found = TooVaried { panel: range.start + found.panel, ..found };
            Error::TooVaried { tensors: names.join(", "), found }
        })
    }

    /// Some rows of `k` values, rounded in groups of 64 rows of one column. The groups are those of the whole tensor,
    /// wherever the rows that are wanted begin.
    fn rounded_down(
        &self,
        tensor: Tensor,
        part: Range<usize>,
        (bits, k): (u8, usize),
    ) -> Result<Vec<f32>, Error> {
        let info = self.info(tensor);
        let all = tensor.shape(self.checkpoint.spec()).map_or(part.end, |shape| shape.rows());
        let whole = part.start / GROUP * GROUP..part.end.next_multiple_of(GROUP).min(all);
        let mut bytes = vec![0; whole.len() * info.row_bytes];
        self.checkpoint.read_rows(tensor, whole.clone(), &mut bytes)?;
        let mut values = Vec::new();
        to_f32(info.stored, &bytes, &mut values);
        values.chunks_mut(GROUP * k).for_each(|group| round_columns(bits, group, k));
        let before = (part.start - whole.start) * k;
        Ok(values[before..before + part.len() * k].to_vec())
    }

    pub(super) fn info(&self, tensor: Tensor) -> Info {
        let info = self.checkpoint.info(tensor);
        info.unwrap_or_else(|| panic!("an open checkpoint has every tensor of its model, but not {tensor:?}"))
    }
}

/// Which rows of which tensors make up some panels, in the order in which the packer wants them.
fn sources(plan: &MatrixPlan, panels: Range<usize>, spec: &ModelSpec) -> Vec<(Tensor, Range<usize>)> {
    if plan.order == RowOrder::Gated {
        let rows = panels.start * GATED_HALF..(panels.end * GATED_HALF).min(plan.n / 2);
        return plan.tensors.iter().map(|t| (*t, rows.clone())).collect();
    }
    let wanted = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(plan.n);
    let mut before = 0;
    let mut parts = Vec::new();
    for &tensor in &plan.tensors {
        let rows = tensor.shape(spec).map_or(0, |shape| shape.rows());
        let own = wanted.start.max(before)..wanted.end.min(before + rows);
        if !own.is_empty() {
            parts.push((tensor, own.start - before..own.end - before));
        }
        before += rows;
    }
    parts
}

/// Rows as they were read, of one or several formats. The memory is used again for the next ones.
#[derive(Default)]
struct Rows {
    /// In words, so that floats of any width are aligned in it.
    memory: Vec<u64>,
    used: usize,
    parts: Vec<(Stored, Range<usize>)>,
    rows: usize,
}

impl Rows {
    fn clear(&mut self) {
        self.parts.clear();
        (self.used, self.rows) = (0, 0);
    }

    /// Room for more rows.
    fn add(&mut self, stored: Stored, rows: usize, bytes: usize) -> &mut [u8] {
        let range = self.used..self.used + bytes;
        (self.used, self.rows) = (range.end, self.rows + rows);
        if self.memory.len() * 8 < range.end {
            self.memory.resize(range.end.div_ceil(8), 0);
        }
        self.parts.push((stored, range.clone()));
        &mut bytemuck::cast_slice_mut(&mut self.memory)[range]
    }

    fn pack(&self, plan: &MatrixPlan, panels: Range<usize>, out: &mut [u8]) -> Result<(), TooVaried> {
        let (n, k, order) = (self.rows, plan.k, plan.order);
        match plan.format {
            Format::F32 => pack_f32(Mat::new(&self.floats(), n, k), order, panels, out),
            Format::Bf16 => match plan.rounded {
                None => pack_bf16(Mat::new(&self.halves(), n, k), order, panels, out),
                Some(Rounding { bits, along: Along::Inputs }) => {
                    pack_bf16(Mat::new(&self.rounded(bits, k), n, k), order, panels, out);
                }
                // Rounded as they were read.
                Some(Rounding { along: Along::Outputs, .. }) => {
                    pack_bf16(Mat::new(&self.halves(), n, k), order, panels, out);
                }
            },
            Format::Narrow(narrow) if self.all(|stored| super::blueprint::narrow(stored) == Some(narrow)) => {
                pack_blocks(narrow, Mat::new(self.bytes(), n, self.used / n.max(1)), k, order, panels, out);
            }
            Format::Narrow(narrow) if self.all(|stored| stored == Stored::Bf16) => {
                pack_floats(narrow, Mat::new(&self.halves(), n, k), order, panels, out);
            }
            Format::Narrow(narrow) => pack_floats(narrow, Mat::new(&self.floats(), n, k), order, panels, out),
            Format::Bf12 => return pack_bf12(Mat::new(&self.halves(), n, k), order, panels, out),
        }
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.used]
    }

    fn all(&self, is: impl Fn(Stored) -> bool) -> bool {
        self.parts.iter().all(|(stored, _)| is(*stored))
    }

    fn floats(&self) -> Cow<'_, [f32]> {
        if self.all(|stored| stored == Stored::F32) {
            return Cow::Borrowed(bytemuck::cast_slice(self.bytes()));
        }
        let mut values = Vec::new();
        for (stored, range) in &self.parts {
            to_f32(*stored, &self.bytes()[range.clone()], &mut values);
        }
        Cow::Owned(values)
    }

    fn rounded(&self, bits: u8, k: usize) -> Vec<bf16> {
        let mut values = self.floats().into_owned();
        values.chunks_mut(k).for_each(|row| round_to_grid(bits, row));
        values.into_iter().map(bf16::from_f32).collect()
    }

    fn halves(&self) -> Cow<'_, [bf16]> {
        if self.all(|stored| stored == Stored::Bf16) {
            return Cow::Borrowed(bytemuck::cast_slice(self.bytes()));
        }
        Cow::Owned(self.floats().iter().map(|value| bf16::from_f32(*value)).collect())
    }
}

/// Rounds each column of some rows of `k` values: a group of each.
fn round_columns(bits: u8, rows: &mut [f32], k: usize) {
    let mut column = vec![0.0; rows.len() / k];
    for at in 0..k {
        let values = rows.iter().skip(at).step_by(k);
        column.iter_mut().zip(values).for_each(|(slot, value)| *slot = *value);
        round_to_grid(bits, &mut column);
        let values = rows.iter_mut().skip(at).step_by(k);
        values.zip(&column).for_each(|(value, rounded)| *value = *rounded);
    }
}

/// Appends the values of rows in any stored format.
pub(super) fn to_f32(stored: Stored, bytes: &[u8], out: &mut Vec<f32>) {
    match stored {
        Stored::F32 => {
            out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
        }
        Stored::F16 => out.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
        Stored::Bf16 => out.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
        Stored::IQ4_NL => {
            let mut same = vec![0; q8_0_bytes(bytes.len())];
            to_q8_0(bytes, &mut same);
            to_f32(Stored::Q8_0, &same, out);
        }
        blocks => {
            let values = bytes.len() / blocks.block_bytes() * blocks.block_elements();
            let start = out.len();
            out.resize(start + values, 0.0);
            if let Some(narrow) = super::blueprint::narrow(blocks) {
                dequantize_row(narrow, bytes, &mut out[start..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{Blueprint, WeightsAs};
    use crate::testing::tiny_gguf;
    use std::path::Path;

    /// What the Python package `gguf` makes of random blocks (scripts/make_gguf_fixtures.py).
    #[test]
    fn numbers_of_the_table_are_those_of_ggml() {
        let fixture = |name| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf");
            std::fs::read(folder.join(name)).unwrap()
        };
        let mut values = Vec::new();
        to_f32(Stored::IQ4_NL, &fixture("iq4_nl.blocks"), &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!((values.len(), bytes), (1024, fixture("iq4_nl.values")));
    }

    #[test]
    fn a_column_is_rounded_as_a_row_is() {
        let (n, k) = (100, 3);
        let values: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 101) as f32 / 50.0 - 1.0).collect();
        let mut rounded = values.clone();
        rounded.chunks_mut(GROUP * k).for_each(|group| round_columns(3, group, k));
        for at in 0..k {
            let mut column: Vec<f32> = values.iter().skip(at).step_by(k).copied().collect();
            round_to_grid(3, &mut column);
            assert!(rounded.iter().skip(at).step_by(k).eq(&column), "column {at}");
        }
    }

    #[test]
    fn numbers_of_the_table_are_packed_as_those_of_eight_bits() {
        let blocks: Vec<u8> = (0..8 * 18).map(|i| (i * 37 % 251) as u8 & 0x3f).collect();
        let mut same = vec![0; q8_0_bytes(blocks.len())];
        to_q8_0(&blocks, &mut same);
        let packed_as = |kind, bytes: &[u8]| {
            let mut file = tiny_gguf("llama");
            file.tensors.retain(|tensor| tensor.name != "blk.0.attn_output.weight");
            file.tensor("blk.0.attn_output.weight", &[32, 8], kind, bytes.to_vec());
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("tiny.gguf"), file.build()).unwrap();
            packed_of(&folder.path().join("tiny.gguf"), WeightsAs::Stored, 1)
        };
        assert_eq!(packed_as(20, &blocks), packed_as(8, &same));
    }

    fn packed(weights: WeightsAs, at_once: usize) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama-gqa-tied");
        packed_of(&folder, weights, at_once)
    }

    /// Panels of all layers, read so many at a time.
    fn packed_of(path: &Path, weights: WeightsAs, at_once: usize) -> Vec<u8> {
        let checkpoint = Checkpoint::open(path).expect("a checkpoint");
        let stored = |tensor| checkpoint.info(tensor).expect("it has it").stored;
        let blueprint = Blueprint::new(checkpoint.spec(), weights, stored);
        let team = Team::fixed(1).expect("threads");
        let packer = Packer::new(&checkpoint, &team);
        let mut all = Vec::new();
        for plan in blueprint.layers.iter().flat_map(|l| l.qkv.iter().chain([&l.out, &l.up, &l.down])) {
            let (each, panels) =
                (panel_bytes(plan.format, plan.k), plan.bytes() / panel_bytes(plan.format, plan.k));
            for first in (0..panels).step_by(at_once) {
                let range = first..(first + at_once).min(panels);
                let mut out = vec![0; range.len() * each];
                packer.panels(plan, range, &mut out, &|_| {}).expect("readable");
                all.extend(out);
            }
        }
        all
    }

    #[test]
    fn groups_of_outputs_do_not_depend_on_where_a_read_begins() {
        let along = |along| WeightsAs::Rounded(Rounding { bits: 3, along });
        let whole = packed(along(Along::Outputs), 1 << 20);
        assert_eq!(packed(along(Along::Outputs), 1), whole);
        assert!(whole != packed(along(Along::Inputs), 1) && whole != packed(WeightsAs::Bf16, 1));
    }
}
