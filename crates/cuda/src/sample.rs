//! Tokens from logits on the device: the sampler's numbers in the kernel's words.

use kernels::device::Rows;
use kernels::pick::{Change, Edit, NoPick, Pick};

use crate::Driver;
use crate::args::{EditData, TokenArgs, TokenRow};
use crate::device::GpuDevice;
use crate::module::Module;

/// Masses of 64 ids each that a block of threads has memory for.
const VOCAB_MAX: usize = 4096 * 64;
/// Edits of the rows of one kernel: their table passes the ring.
const EDITS_MAX: usize = 256 << 10;
/// Rows of one kernel.
const ROWS_MAX: usize = 4096;
/// What stands for no token.
const NOT_FINITE: u32 = u32::MAX;
const NOTHING_ALLOWED: u32 = u32::MAX - 1;

/// Whether rows of so many logits can be picked from.
pub(crate) fn can_pick(vocab: usize) -> bool {
    vocab <= VOCAB_MAX
}

/// The tables of one kernel.
#[derive(Default)]
struct Batch {
    rows: Vec<TokenRow>,
    edits: Vec<EditData>,
}

impl Batch {
    fn has_room_for(&self, pick: &Pick) -> bool {
        self.rows.is_empty()
            || (self.rows.len() < ROWS_MAX && self.edits.len() + pick.edits.len() <= EDITS_MAX)
    }

    fn push(&mut self, row: u32, pick: &Pick) {
        let draw = pick.draw;
        self.rows.push(TokenRow {
            u: draw.map_or(0.0, |draw| draw.u),
            row,
            greedy: draw.is_none().into(),
            scale: draw.map_or(1.0, |draw| draw.scale),
            floor: draw.map_or(f32::NEG_INFINITY, |draw| draw.floor),
            top_p: draw.map_or(1.0, |draw| draw.top_p),
            top_k: draw.and_then(|draw| draw.top_k).unwrap_or(0),
            first_edit: self.edits.len() as u32,
            edits: pick.edits.len() as u32,
            repetition: pick.repetition,
            frequency: pick.frequency,
            presence: pick.presence,
            unused: 0,
        });
        self.edits.extend(pick.edits.iter().map(data));
    }
}

fn data(edit: &Edit) -> EditData {
    let (kind, value) = match edit.change {
        Change::Mask => (0, 0.0),
        Change::Add(value) => (1, value),
        Change::Repeated => (2, 0.0),
        Change::Counted(times) => (3, times as f32),
    };
    EditData { id: edit.id, kind, value }
}

impl<D: Driver> GpuDevice<D> {
    pub(crate) fn pick_tokens(&self, logits: Rows, rows: &[(u32, Pick)]) -> Vec<Result<u32, NoPick>> {
        assert!(rows.iter().all(|(row, _)| (*row as usize) < logits.rows), "pick: a row beyond the logits");
        assert!(can_pick(logits.cols), "pick: {} logits, and the kernel takes {VOCAB_MAX}", logits.cols);
        let (mut picked, mut batch) = (Vec::new(), Batch::default());
        for (row, pick) in rows {
            if !batch.has_room_for(pick) {
                self.pick_batch(logits, &std::mem::take(&mut batch), &mut picked);
            }
            batch.push(*row, pick);
        }
        self.pick_batch(logits, &batch, &mut picked);
        picked
    }

    fn pick_batch(&self, logits: Rows, batch: &Batch, picked: &mut Vec<Result<u32, NoPick>>) {
        let (rows, words) = (batch.rows.len(), |bytes: usize| bytes.div_ceil(4));
        {
            let lengths =
                [words(rows * size_of::<TokenRow>()), words(batch.edits.len() * size_of::<EditData>())];
            let mut tables = self.tables(&lengths);
            let args = TokenArgs {
                logits: self.floats(logits),
                rows: tables.put(&self.driver, &batch.rows),
                edits: tables.put(&self.driver, &batch.edits),
                out: self.stage(),
                vocab: logits.cols as u32,
                unused: 0,
            };
            self.launch(Module::Sample, "pick_tokens", [rows, 1], 512, &args);
        }
        let mut tokens = vec![0u32; rows];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut tokens);
        let place = &mut |first: usize, piece: &[u8]| bytes[first..][..piece.len()].copy_from_slice(piece);
        self.driver.download(self.stage(), 4 * rows, place);
        picked.extend(tokens.into_iter().map(|token| match token {
            NOT_FINITE => Err(NoPick::NotFinite),
            NOTHING_ALLOWED => Err(NoPick::NothingAllowed),
            token => Ok(token),
        }));
    }
}
