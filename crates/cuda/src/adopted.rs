//! Host memory that copies and kernels reach as it lies there: where it is.

use std::collections::BTreeMap;
use std::ops::Range;

use kernels::arena::Lasting;

/// Pieces of it, by number. A device may have other addresses for them than the host (under WSL2 it may).
#[derive(Default)]
pub(crate) struct Adopted {
    pieces: Vec<Piece>,
    /// Their numbers, by the first of their addresses on the host.
    by_host: BTreeMap<u64, usize>,
}

#[derive(Clone, Copy)]
struct Piece {
    host: u64,
    device: u64,
    bytes: u64,
}

/// The addresses of host memory, on the host.
pub(crate) fn addresses(memory: &Lasting) -> Range<u64> {
    let first = memory.address().addr() as u64;
    first..first + memory.bytes() as u64
}

impl Adopted {
    /// One more, which begins at `device` there; its number.
    pub(crate) fn add(&mut self, host: &Range<u64>, device: u64) -> usize {
        let number = self.pieces.len();
        self.by_host.insert(host.start, number);
        self.pieces.push(Piece { host: host.start, device, bytes: host.end - host.start });
        number
    }

    /// Where the device finds these addresses of the host, if all of them are of one piece: CUDA does not promise that a copy may pass
    /// from one to another, even where they are neighbours there as well.
    pub(crate) fn on_device(&self, host: &Range<u64>) -> Option<u64> {
        if host.is_empty() {
            return Some(host.start);
        }
        let piece = self.piece_at(host.start)?;
        (host.end <= piece.host + piece.bytes).then(|| piece.device + (host.start - piece.host))
    }

    fn piece_at(&self, host: u64) -> Option<Piece> {
        let (_, number) = self.by_host.range(..=host).next_back()?;
        Some(self.pieces[*number]).filter(|piece| host < piece.host + piece.bytes)
    }

    /// Where the device finds byte `first` of piece `number`.
    ///
    /// # Panics
    /// If there are not `bytes` from there on.
    pub(crate) fn at(&self, number: usize, first: usize, bytes: usize) -> u64 {
        let Piece { device, bytes: all, .. } = self.pieces[number];
        let all = all as usize;
        assert!(
            first <= all && bytes <= all - first,
            "{bytes} bytes from {first} of {all} that were adopted"
        );
        device + first as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_inside_is_found_and_nothing_else() {
        let mut adopted = Adopted::default();
        assert_eq!(adopted.add(&(16384..20480), 16384), 0);
        assert_eq!(adopted.add(&(4096..8192), 1 << 40), 1);
        assert_eq!(adopted.on_device(&(5000..8192)), Some((1 << 40) + 904));
        assert_eq!(adopted.on_device(&(16384..20480)), Some(16384));
        for other in [8000..8193, 8192..16384, 4000..5000, 20480..20481] {
            assert_eq!(adopted.on_device(&other), None, "{other:?}");
        }
        assert_eq!(adopted.on_device(&(9000..9000)), Some(9000), "nothing is everywhere");
        assert_eq!((adopted.at(0, 96, 4000), adopted.at(1, 4096, 0)), (16480, (1 << 40) + 4096));
    }

    #[test]
    fn pieces_beside_each_other_are_not_one() {
        let mut adopted = Adopted::default();
        adopted.add(&(8192..12288), 108_192);
        adopted.add(&(4096..8192), 104_096);
        assert_eq!(
            [5000..8192, 8192..12288].map(|host| adopted.on_device(&host)),
            [105_000, 108_192].map(Some)
        );
        assert_eq!(adopted.on_device(&(5000..8193)), None);
    }

    #[test]
    #[should_panic(expected = "2 bytes from 4095 of 4096")]
    fn what_does_not_is_refused() {
        let mut adopted = Adopted::default();
        adopted.add(&(4096..8192), 4096);
        adopted.at(0, 4095, 2);
    }
}
