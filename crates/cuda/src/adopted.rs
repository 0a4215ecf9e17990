//! Host memory that copies and kernels reach as it lies there: where it is.

use std::ops::Range;

use kernels::arena::Lasting;

use crate::ranges::Ranges;

/// Pieces of it, by number. Their addresses are the same on the device.
#[derive(Default)]
pub(crate) struct Adopted {
    pieces: Vec<Range<u64>>,
    all: Ranges,
}

/// The addresses of host memory.
pub(crate) fn addresses(memory: &Lasting) -> Range<u64> {
    let first = memory.address().addr() as u64;
    first..first + memory.bytes() as u64
}

impl Adopted {
    /// One more; its number.
    pub(crate) fn add(&mut self, addresses: Range<u64>) -> usize {
        self.all.add(&addresses);
        self.pieces.push(addresses);
        self.pieces.len() - 1
    }

    /// Whether every byte is of some piece.
    pub(crate) fn has(&self, addresses: &Range<u64>) -> bool {
        self.all.without(addresses).is_empty()
    }

    /// The address of byte `first` of piece `number`.
    ///
    /// # Panics
    /// If there are not `bytes` from there on.
    pub(crate) fn at(&self, number: usize, first: usize, bytes: usize) -> u64 {
        let piece = &self.pieces[number];
        let all = (piece.end - piece.start) as usize;
        assert!(
            first <= all && bytes <= all - first,
            "{bytes} bytes from {first} of {all} that were adopted"
        );
        piece.start + first as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_inside_is_known_and_nothing_else() {
        let mut adopted = Adopted::default();
        assert_eq!([adopted.add(4096..8192), adopted.add(16384..20480)], [0, 1]);
        assert!(adopted.has(&(5000..8192)) && adopted.has(&(16384..20480)) && adopted.has(&(9000..9000)));
        assert!(!adopted.has(&(8000..8193)) && !adopted.has(&(8192..16384)) && !adopted.has(&(4000..5000)));
        assert_eq!((adopted.at(1, 96, 4000), adopted.at(0, 4096, 0)), (16480, 8192));
    }

    #[test]
    #[should_panic(expected = "2 bytes from 4095 of 4096")]
    fn what_does_not_is_refused() {
        let mut adopted = Adopted::default();
        adopted.add(4096..8192);
        adopted.at(0, 4095, 2);
    }
}
