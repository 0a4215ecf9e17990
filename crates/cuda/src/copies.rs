//! Many small buffers between host and device (the pages of a swap). Where the host's memory was adopted they are copied from where
//! they lie to where they are to be: by the copy engines, or, where they are short, by a kernel. Elsewhere such a kernel packs
//! them, or unpacks them, on the device, so that what passes the link is long.

use kernels::arena::{Buf, Lasting};

use crate::Driver;
use crate::adopted::addresses;
use crate::args::{PieceData, PiecesArgs};
use crate::device::{GpuDevice, STAGE_BYTES};
use crate::module::Module;

/// What a block of threads carries at a time.
const PIECE_BYTES: usize = 32 << 10;
/// Buffers that are longer on average are copied one by one between pieces of pinned memory.
const LONG_BYTES: usize = 256 << 10;
/// The same, where they are copied from where they lie: a copy costs 2 microseconds, in which the link takes so many bytes.
const LONG_LYING_BYTES: usize = 128 << 10;
/// What is less in all is carried by a kernel: beside copies of weights one of half a MiB the other way took the copy engines 2 to 3
/// milliseconds (on an H200, `bench/results/2026-11-26-h200.md`).
const SHORT_BYTES: usize = 1 << 20;
/// Pieces of one kernel: as many as there is room for in the tables.
const MOST_PIECES: usize = 4096;
/// Blocks of a kernel over the link. They have half a MiB on its way, some times what the link needs, and leave most of the device to others.
const LINK_BLOCKS: usize = 128;
/// The unit in which they are carried.
const WORD: usize = 16;

/// As many bytes in two places.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    /// In the device's memory.
    here: u64,
    /// On the stage, or in the host's memory, where the device has it.
    there: u64,
    bytes: usize,
}

/// Which of both places is read.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// The device's.
    Out,
    /// The other.
    In,
}

impl Pair {
    fn ends(&self, way: Way) -> (u64, u64) {
        match way {
            Way::Out => (self.here, self.there),
            Way::In => (self.there, self.here),
        }
    }

    fn is_whole(&self) -> bool {
        [self.here, self.there, self.bytes as u64].iter().all(|n| n.is_multiple_of(WORD as u64))
    }

    /// In pieces that a block carries.
    fn cut(self) -> impl Iterator<Item = Pair> {
        (0..self.bytes).step_by(PIECE_BYTES).map(move |at| Pair {
            here: self.here + at as u64,
            there: self.there + at as u64,
            bytes: PIECE_BYTES.min(self.bytes - at),
        })
    }
}

/// Pieces that one kernel carries, and their bytes.
#[derive(Default)]
struct Round {
    pieces: Vec<Pair>,
    bytes: usize,
}

/// Cuts buffers (addresses and bytes) into rounds that a stage has room for.
fn rounds(bufs: impl Iterator<Item = (u64, usize)>, (stage, room): (u64, usize)) -> Vec<Round> {
    let mut rounds = vec![Round::default()];
    for (here, bytes) in bufs {
        for piece in (Pair { here, there: 0, bytes }).cut() {
            if rounds
                .last()
                .is_none_or(|round| round.bytes + piece.bytes > room || round.pieces.len() == MOST_PIECES)
            {
                rounds.push(Round::default());
            }
            let round = rounds.last_mut().expect("just made");
            round.pieces.push(Pair { there: stage + round.bytes as u64, ..piece });
            round.bytes += piece.bytes;
        }
    }
    rounds
}

impl<D: Driver> GpuDevice<D> {
    /// Whether packing pays, and is possible.
    fn is_scattered(&self, bufs: &[Buf]) -> bool {
        let bytes: usize = bufs.iter().map(Buf::bytes).sum();
        let whole = |buf: &Buf| Pair { here: self.at(buf), there: 0, bytes: buf.bytes() }.is_whole();
        bufs.len() > 1 && bytes < bufs.len() * LONG_BYTES && bufs.iter().all(whole)
    }

    fn rounds(&self, bufs: &[Buf]) -> Vec<Round> {
        rounds(bufs.iter().map(|buf| (self.at(buf), buf.bytes())), (self.stage(), STAGE_BYTES))
    }

    fn carry(&self, pieces: &[Pair], way: Way, blocks: usize) {
        let data = |pair: &Pair| {
            let (from, to) = pair.ends(way);
            PieceData { from, to, words: (pair.bytes / WORD) as u32, unused: 0 }
        };
        let data: Vec<PieceData> = pieces.iter().map(data).collect();
        let mut tables = self.tables(&[size_of::<PieceData>() / 4 * data.len()]);
        let args =
            PiecesArgs { pieces: tables.put(&self.driver, &data), count: data.len() as u32, unused: 0 };
        self.launch(Module::Rows, "carry_pieces", [data.len().min(blocks), 1], 64, &args);
    }

    pub(crate) fn collect_pieces(&self, bufs: &[Buf], view: &mut dyn FnMut(usize, &[u8])) {
        let mut done = 0;
        if !self.is_scattered(bufs) {
            for buf in bufs {
                self.driver.download(self.at(buf), buf.bytes(), &mut |at, bytes| view(done + at, bytes));
                done += buf.bytes();
            }
            return;
        }
        for round in self.rounds(bufs) {
            self.carry(&round.pieces, Way::Out, usize::MAX);
            self.driver.download(self.stage(), round.bytes, &mut |at, bytes| view(done + at, bytes));
            done += round.bytes;
        }
    }

    pub(crate) fn spread_pieces(&self, bufs: &[Buf], fill: &mut dyn FnMut(usize, &mut [u8])) {
        let mut done = 0;
        if !self.is_scattered(bufs) {
            for buf in bufs {
                self.driver.upload(self.at(buf), buf.bytes(), &mut |at, into| fill(done + at, into));
                done += buf.bytes();
            }
            return;
        }
        for round in self.rounds(bufs) {
            self.driver.upload(self.stage(), round.bytes, &mut |at, into| fill(done + at, into));
            self.carry(&round.pieces, Way::In, usize::MAX);
            done += round.bytes;
        }
    }

    /// Carries bytes between buffers and adopted memory, and waits for it. False if not all of that was adopted.
    pub(crate) fn carry_between(&self, bufs: &[Buf], memory: &[Lasting], way: Way) -> bool {
        assert_eq!(bufs.len(), memory.len(), "buffers, and pieces of memory for them");
        let pair = |(buf, memory): (&Buf, &Lasting)| {
            let there = addresses(memory);
            assert_eq!(buf.bytes(), memory.bytes(), "bytes of a buffer, and of the memory for it");
            let there = self.adopted().on_device(&there)?;
            Some(Pair { here: self.at(buf), there, bytes: buf.bytes() })
        };
        let Some(pairs) = bufs.iter().zip(memory).map(pair).collect::<Option<Vec<Pair>>>() else {
            return false;
        };
        let bytes: usize = pairs.iter().map(|pair| pair.bytes).sum();
        let short = bytes < SHORT_BYTES.max(pairs.len() * LONG_LYING_BYTES);
        if short && pairs.iter().all(Pair::is_whole) {
            let pieces: Vec<Pair> = pairs.into_iter().flat_map(Pair::cut).collect();
            pieces.chunks(MOST_PIECES).for_each(|pieces| self.carry(pieces, way, LINK_BLOCKS));
        } else {
            for pair in pairs.iter().filter(|pair| pair.bytes > 0) {
                let (from, to) = pair.ends(way);
                self.driver.copy(from, to, pair.bytes);
            }
        }
        self.driver.settle();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_hold_no_more_than_the_stage_and_lose_nothing() {
        let bufs = [(1 << 20, 40 << 10), (5 << 20, 64), (3 << 20, 30 << 10)];
        let stage = 9 << 20;
        let rounds = rounds(bufs.into_iter(), (stage, 48 << 10));
        assert_eq!(rounds.iter().map(|round| round.bytes).collect::<Vec<_>>(), [(40 << 10) + 64, 30 << 10]);
        let pair = |here, place: u64, bytes| Pair { here, there: stage + place, bytes };
        let first = [
            pair(1 << 20, 0, 32 << 10),
            pair((1 << 20) + (32 << 10), 32 << 10, 8 << 10),
            pair(5 << 20, 40 << 10, 64),
        ];
        assert_eq!(rounds[0].pieces, first);
        assert_eq!(rounds[1].pieces, [pair(3 << 20, 0, 30 << 10)]);
    }
}
