//! Many small buffers between host and device (the pages of a swap): a kernel packs them, or unpacks them, on the device, so
//! that what passes the link is long.

use kernels::arena::Buf;

use crate::Driver;
use crate::args::{PieceData, PiecesArgs};
use crate::device::{GpuDevice, STAGE_BYTES};
use crate::module::Module;

/// What a block of threads carries at the most.
const PIECE_BYTES: usize = 32 << 10;
/// Buffers that are longer on average are copied one by one.
const LONG_BYTES: usize = 256 << 10;
/// The unit in which they are carried.
const WORD: usize = 16;

/// Pieces that one kernel carries, and their bytes.
#[derive(Default)]
struct Round {
    pieces: Vec<PieceData>,
    bytes: usize,
}

/// Cuts buffers (addresses and bytes) into rounds that a stage has room for.
fn rounds(bufs: impl Iterator<Item = (u64, usize)>, room: usize) -> Vec<Round> {
    let mut rounds = vec![Round::default()];
    for (address, bytes) in bufs {
        for at in (0..bytes).step_by(PIECE_BYTES) {
            let length = PIECE_BYTES.min(bytes - at);
            if rounds.last().is_none_or(|round| round.bytes + length > room) {
                rounds.push(Round::default());
            }
            let round = rounds.last_mut().expect("just made");
            round.pieces.push(PieceData {
                at: address + at as u64,
                first: (round.bytes / WORD) as u32,
                words: (length / WORD) as u32,
            });
            round.bytes += length;
        }
    }
    rounds
}

impl<D: Driver> GpuDevice<D> {
    /// Whether packing pays, and is possible.
    fn is_scattered(&self, bufs: &[Buf]) -> bool {
        let bytes: usize = bufs.iter().map(Buf::bytes).sum();
        let whole = |buf: &Buf| buf.bytes().is_multiple_of(WORD) && self.at(buf).is_multiple_of(WORD as u64);
        bufs.len() > 1 && bytes < bufs.len() * LONG_BYTES && bufs.iter().all(whole)
    }

    fn rounds(&self, bufs: &[Buf]) -> Vec<Round> {
        rounds(bufs.iter().map(|buf| (self.at(buf), buf.bytes())), STAGE_BYTES)
    }

    fn carry(&self, round: &Round, gather: bool) {
        let mut tables = self.tables(&[size_of::<PieceData>() / 4 * round.pieces.len()]);
        let pieces = tables.put(&self.driver, &round.pieces);
        let args = PiecesArgs { pieces, packed: self.stage(), gather: gather.into(), unused: 0 };
        self.launch(Module::Rows, "carry_pieces", [round.pieces.len(), 1], 256, &args);
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
            self.carry(&round, true);
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
            self.carry(&round, false);
            done += round.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_hold_no_more_than_the_stage_and_lose_nothing() {
        let bufs = [(1 << 20, 40 << 10), (5 << 20, 64), (3 << 20, 30 << 10)];
        let rounds = rounds(bufs.into_iter(), 48 << 10);
        assert_eq!(rounds.iter().map(|round| round.bytes).collect::<Vec<_>>(), [(40 << 10) + 64, 30 << 10]);
        let first: Vec<_> = rounds[0].pieces.iter().map(|p| (p.at, p.first, p.words)).collect();
        assert_eq!(first, [(1 << 20, 0, 2048), ((1 << 20) + (32 << 10), 2048, 512), (5 << 20, 2560, 4)]);
    }
}
