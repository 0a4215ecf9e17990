//! Checksums of what was written to the drive: what it gives back is not taken on trust.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use model::store::CHECKED_EVERY;

/// Nothing was written yet, so there is nothing to compare with.
const UNWRITTEN: u8 = 0;
/// Not read since it was written.
const FRESH: u8 = 1;
/// It was read; from here the reads since it was compared are counted.
const READ: u8 = 2;

/// One for each piece that is written as a whole. The first read after a piece was written is compared with it, and then every
/// so many ([`CHECKED_EVERY`], as with weights), neighbours at other times.
pub(crate) struct Sums(Vec<Sum>);

#[derive(Default)]
struct Sum {
    crc32: AtomicU32,
    age: AtomicU8,
}

impl Sums {
    /// Of so many pieces.
    pub(crate) fn new(pieces: usize) -> Sums {
        Sums((0..pieces).map(|_| Sum::default()).collect())
    }

    /// Memory of so many.
    pub(crate) fn bytes(pieces: usize) -> u64 {
        (pieces * size_of::<Sum>()) as u64
    }

    /// This is what is written there.
    pub(crate) fn note(&self, piece: usize, bytes: &[u8]) {
        let Sum { crc32, age } = &self.0[piece];
        crc32.store(crc32fast::hash(bytes), Ordering::Relaxed);
        age.store(FRESH, Ordering::Relaxed);
    }

    /// Whether what was read is what was written.
    pub(crate) fn hold(&self, piece: usize, bytes: &[u8]) -> bool {
        let Sum { crc32, age } = &self.0[piece];
        age.load(Ordering::Relaxed) == UNWRITTEN || crc32fast::hash(bytes) == crc32.load(Ordering::Relaxed)
    }

    /// The same, as far as this read is compared. Reads of a piece follow one another, and its
    /// writes: programs keep their order.
    pub(crate) fn agree(&self, piece: usize, bytes: &[u8]) -> bool {
        let age = &self.0[piece].age;
        let last = READ + CHECKED_EVERY as u8 - 1;
        let (due, next) = match age.load(Ordering::Relaxed) {
            UNWRITTEN => return true,
            FRESH => (true, READ + (piece % CHECKED_EVERY as usize) as u8),
            reads if reads == last => (true, READ),
            reads => (false, reads + 1),
        };
        let agree = !due || self.hold(piece, bytes);
        // Whoever reads it again is told again.
        age.store(if agree { next } else { FRESH }, Ordering::Relaxed);
        agree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use kernels::AlignedBytes;
    use kernels::attention::{KvDtype, KvLayout};
    use model::store::Written;

    use crate::tiers::kv_file::KvFile;
    use crate::tiers::kv_sizes::KvFileSizes;
    use crate::watch::stats::Stats;

    #[test]
    fn the_first_read_is_compared_and_every_so_many_after_it() {
        assert!(Sums::new(1).agree(0, b"whatever"), "nothing was written");
        for piece in [0, 7, 31, 39] {
            let is_compared = |before: &usize| {
                let sums = Sums::new(40);
                sums.note(piece, b"so");
                assert!((0..*before).all(|_| sums.agree(piece, b"so")));
                !sums.agree(piece, b"no")
            };
            let compared: Vec<usize> = (0..100).filter(is_compared).collect();
            let first = CHECKED_EVERY as usize - piece % CHECKED_EVERY as usize;
            let every = (first..100).step_by(CHECKED_EVERY as usize);
            assert_eq!(compared, std::iter::once(0).chain(every).collect::<Vec<_>>(), "piece {piece}");
        }
    }

    /// Other bytes in the place of all that were written.
    fn damage(drive: &KvFile) {
        let bytes = drive.file().file().metadata().unwrap().len() as usize;
        // On huge pages, and so on whole sectors.
        let mut other = AlignedBytes::zeroed(2 << 20);
        other.fill(0x5a);
        drive.file().write(vec![Written { offset: 0, from: &other[..bytes] }]).unwrap();
    }

    #[test]
    fn what_a_drive_has_damaged_is_told() {
        let layout = KvLayout { kv_heads: 2, head_dim: 64, dtype: KvDtype::Bf16 };
        for halves in [None, Some(layout)] {
            let folder = tempfile::tempdir().unwrap();
            let block_bytes = layout.block_bytes();
            let sizes =
                KvFileSizes { layers: 2, blocks: 3, block_bytes, halves, batches: 2, hidden_bytes: 5000 };
            let drive = KvFile::new(folder.path(), sizes, Arc::new(Stats::default())).unwrap();
            let out: Vec<u8> = (0..2 * block_bytes).map(|i| (i % 251) as u8).collect();
            let mut back = vec![0; 2 * block_bytes];
            let pairs = [(0, 0), (2, 1)];
            drive.write_kv(1, &pairs, &out).unwrap();
            drive.write_hidden(1, &out[..3000]).unwrap();
            drive.read_kv(1, &pairs, &mut back).unwrap();
            drive.read_hidden(1, &mut back[..3000]).unwrap();
            // Written anew, as each step writes the newest block, they are compared anew.
            drive.write_kv(1, &pairs, &out).unwrap();
            drive.write_hidden(1, &out[..3000]).unwrap();
            damage(&drive);
            for _ in 0..2 {
                let kv = drive.read_kv(1, &pairs[1..], &mut back);
                for read in [kv, drive.read_hidden(1, &mut back[..3000])] {
                    let told = read.unwrap_err().to_string();
                    assert!(told.contains("kv-file") && told.contains("--offload-dir"), "{told}");
                }
            }
            drive.read_kv(0, &pairs, &mut back).expect("nothing was written there");
            if halves.is_none() {
                let runs = drive.runs(&[(0, 0)]);
                drive.write_runs(0, &runs, vec![&out[..block_bytes]]).unwrap();
                let mut read = || drive.read_runs(0, &runs, vec![&mut back[..block_bytes]]);
                read().unwrap();
                damage(&drive);
                // Whenever it comes: what is kept is given to others, and may be written again.
                (0..2).for_each(|_| assert!(read().is_err()));
            }
        }
    }
}
