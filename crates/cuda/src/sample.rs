//! Tokens from logits on the device: the sampler's numbers in the kernel's words.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::PoisonError;

use kernels::device::Rows;
use kernels::pick::{Change, Edit, NoPick, Pick, Picked};

use crate::args::{EditData, TokenArgs, TokenRow};
use crate::device::GpuDevice;
use crate::module::Module;
use crate::{Driver, FETCH_BYTES};

/// Masses of 64 ids each that a block of threads has memory for: Gemma 3's 262,208 are among them.
const VOCAB_MAX: usize = 4352 * 64;
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

/// Where tokens are kept that were picked: a ring, whose ranges are given back in any order.
#[derive(Debug, Default)]
pub(crate) struct Places {
    next: usize,
    given: VecDeque<Range<usize>>,
}

impl Places {
    /// How many there are.
    pub(crate) const COUNT: usize = 1 << 16;
    /// What they take of the device's memory.
    pub(crate) const BYTES: usize = 4 * Places::COUNT;

    /// # Panics
    /// If those that are wanted are not given back yet.
    fn take(&mut self, rows: usize) -> Range<usize> {
        assert!(rows <= Places::COUNT, "pick: {rows} rows, and {} tokens are kept", Places::COUNT);
        let first = if self.next + rows > Places::COUNT { 0 } else { self.next };
        let range = first..first + rows;
        if rows == 0 {
            return range;
        }
        let is_free = |given: &Range<usize>| given.end <= range.start || range.end <= given.start;
        assert!(self.given.iter().all(is_free), "pick: too many tokens were picked that nobody asked for");
        self.next = range.end;
        self.given.push_back(range.clone());
        range
    }

    fn give_back(&mut self, first: usize) {
        self.given.retain(|given| given.start != first);
    }
}

impl<D: Driver> GpuDevice<D> {
    pub(crate) fn pick_tokens(&self, logits: Rows, rows: &[(u32, Pick)]) -> Picked {
        assert!(rows.iter().all(|(row, _)| (*row as usize) < logits.rows), "pick: a row beyond the logits");
        assert!(can_pick(logits.cols), "pick: {} logits, and the kernel takes {VOCAB_MAX}", logits.cols);
        // Tokens go to other places each time: no kernel of theirs is the same as before.
        self.driver.now();
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).take(rows.len());
        let mut picked = Picked { first: places.start as u32, rows: rows.len(), fetches: Vec::new() };
        let (mut place, mut batch) = (places.start, Batch::default());
        for (row, pick) in rows {
            if !batch.has_room_for(pick) {
                picked.fetches.push(self.pick_batch(logits, &batch, place));
                place += batch.rows.len();
                batch = Batch::default();
            }
            batch.push(*row, pick);
        }
        if !batch.rows.is_empty() {
            picked.fetches.push(self.pick_batch(logits, &batch, place));
        }
        picked
    }

    /// Picks the tokens of one kernel, and sends them on their way to the host.
    fn pick_batch(&self, logits: Rows, batch: &Batch, place: usize) -> u64 {
        let (rows, words) = (batch.rows.len(), |bytes: usize| bytes.div_ceil(4));
        let out = self.picked + 4 * place as u64;
        let lengths = [words(rows * size_of::<TokenRow>()), words(batch.edits.len() * size_of::<EditData>())];
        let mut tables = self.tables(&lengths);
        let args = TokenArgs {
            logits: self.floats(logits),
            rows: tables.put(&self.driver, &batch.rows),
            edits: tables.put(&self.driver, &batch.edits),
            out,
            vocab: logits.cols as u32,
            unused: 0,
        };
        self.launch(Module::Sample, "pick_tokens", [rows, 1], 512, &args);
        self.driver.fetch(out, 4 * rows)
    }

    pub(crate) fn fetch_tokens(&self, picked: Picked) -> Vec<Result<u32, NoPick>> {
        let mut tokens: Vec<u32> = Vec::with_capacity(picked.rows);
        for fetch in picked.fetches {
            let words = |bytes: &[u8]| {
                bytes
                    .chunks_exact(4)
                    .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                    .collect::<Vec<_>>()
            };
            self.driver.fetched(fetch, &mut |bytes| tokens.extend(words(bytes)));
        }
        if picked.rows > 0 {
            self.places.lock().unwrap_or_else(PoisonError::into_inner).give_back(picked.first as usize);
        }
        let named = |token| match token {
            NOT_FINITE => Err(NoPick::NotFinite),
            NOTHING_ALLOWED => Err(NoPick::NothingAllowed),
            token => Ok(token),
        };
        tokens.into_iter().map(named).collect()
    }
}

const _: () = assert!(4 * ROWS_MAX <= FETCH_BYTES, "tokens of one kernel fit one fetch");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_round_when_they_are_given_back() {
        let mut places = Places::default();
        let (half, third) = (Places::COUNT / 2, Places::COUNT / 3);
        assert_eq!(places.take(half), 0..half);
        assert_eq!(places.take(third), half..half + third);
        places.give_back(0);
        // What is left at the end is too short.
        assert_eq!(places.take(third), 0..third);
        places.give_back(half);
        assert_eq!(places.take(half), third..third + half);
    }

    #[test]
    fn half_of_the_places_can_always_be_taken() {
        let (mut places, mut taken, mut random) = (Places::default(), VecDeque::new(), 7usize);
        for _ in 0..10_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let rows = 1 + (random >> 33) % (Places::COUNT / 2);
            while taken.iter().map(Range::len).sum::<usize>() + rows > Places::COUNT / 2 {
                let oldest: Range<usize> = taken.pop_front().expect("something is taken");
                places.give_back(oldest.start);
            }
            taken.push_back(places.take(rows));
        }
    }

    #[test]
    #[should_panic(expected = "nobody asked for")]
    fn no_place_is_given_twice() {
        let mut places = Places::default();
        places.take(Places::COUNT - 1);
        places.take(2);
    }
}
