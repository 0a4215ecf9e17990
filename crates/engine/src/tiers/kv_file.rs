//! KV and activations on the drive: a file without a name, of sectors, read and written past the page cache.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use kernels::AlignedBytes;
use model::store::{Access, DirectFile, SECTOR, Stretch, Written};
use spec::Lane;

use crate::tiers::kv_halves::{Halves, Plane, Sectors};
use crate::tiers::kv_sizes::{BOUNCE_BYTES, KvFileSizes};
use crate::tiers::kv_sums::Sums;
use crate::tiers::travel::runs;
use crate::watch::stats::{Moved, Stats};
use kernels::lock::lock;

/// Blocks that follow one another on both sides: first here, first in memory, how many.
pub(crate) type Run = (u32, u32, usize);

/// The file.
pub(crate) struct KvFile {
    file: DirectFile,
    sizes: KvFileSizes,
    sums: Sums,
    bounce: Mutex<AlignedBytes>,
    stats: Arc<Stats>,
}

impl KvFile {
    /// Makes the file, with room for all of it.
    ///
    /// # Errors
    /// The system's own; a full drive among them.
    pub(crate) fn new(folder: &Path, sizes: KvFileSizes, stats: Arc<Stats>) -> model::Result<KvFile> {
        std::fs::create_dir_all(folder).map_err(|source| model::Error::Io {
            doing: "create",
            path: folder.to_owned(),
            source,
        })?;
        let file = DirectFile::nameless(&folder.join("kv-file"), sizes.bytes())?;
        let bounce = Mutex::new(AlignedBytes::zeroed(sizes.bounce_bytes()));
        Ok(KvFile { file, sizes, sums: Sums::new(sizes.pieces()), bounce, stats })
    }

    /// The file itself, to damage it.
    #[cfg(test)]
    pub(crate) fn file(&self) -> &DirectFile {
        &self.file
    }

    /// How the drive is reached.
    pub(crate) fn access(&self) -> Access {
        self.file.access()
    }

    /// Reads blocks of a layer: pairs (block here, block of `into`), the latter ascending.
    pub(crate) fn read_kv(&self, layer: usize, pairs: &[(u32, u32)], into: &mut [u8]) -> model::Result<()> {
        if let Some(layout) = self.sizes.halves {
            let planes = pairs.iter().flat_map(|pair| Plane::of_block(layout, *pair));
            return self.read_planes(layer, &planes.collect::<Vec<_>>(), into);
        }
        let bytes = self.sizes.block_bytes;
        let (mut rest, mut at) = (&mut *into, 0);
        let mut stretches = Vec::new();
        for (here, there, count) in self.runs(pairs) {
            let begin = there as usize * bytes;
            let (piece, after) = std::mem::take(&mut rest)[begin - at..].split_at_mut(count * bytes);
            stretches.push(Stretch { offset: self.sizes.block_at(layer, here), into: piece });
            (rest, at) = (after, begin + count * bytes);
        }
        self.read(Moved::Kv, stretches)?;
        pairs.iter().try_for_each(|&(here, there)| {
            self.check(self.sizes.piece(layer, here), &into[there as usize * bytes..][..bytes])
        })
    }

    /// Writes blocks of a layer: pairs (block here, block of `from`).
    pub(crate) fn write_kv(&self, layer: usize, pairs: &[(u32, u32)], from: &[u8]) -> model::Result<()> {
        if let Some(halves) = self.sizes.halves() {
            return self.write_halves(layer, halves, pairs, from);
        }
        let bytes = self.sizes.block_bytes;
        for &(here, there) in pairs {
            self.sums.note(self.sizes.piece(layer, here), &from[there as usize * bytes..][..bytes]);
        }
        let written = self.runs(pairs).into_iter().map(|(here, there, count)| Written {
            offset: self.sizes.block_at(layer, here),
            from: &from[there as usize * bytes..][..count * bytes],
        });
        self.write(Moved::Kv, written.collect())
    }

    /// Reads planes of a layer's blocks, of a file that has them in halves.
    pub(crate) fn read_planes(&self, layer: usize, planes: &[Plane], into: &mut [u8]) -> model::Result<()> {
        let halves = self.sizes.halves().expect("planes are of a file in halves");
        let all = halves.sectors(layer, planes, self.sizes.bounce_bytes());
        self.stats.moved(Lane::DiskRead, Moved::Kv, all.iter().map(|sectors| sectors.bytes).sum());
        self.file.reaches(self.sizes.bytes())?;
        let bytes = halves.layout.plane_bytes();
        self.through(all, |load| {
            let stretches =
                load.iter_mut().map(|(sectors, room)| Stretch { offset: sectors.offset, into: room });
            self.file.read(stretches.collect())?;
            for (sectors, room) in load {
                for &(from, to) in &sectors.planes {
                    into[to..][..bytes].copy_from_slice(&room[from..][..bytes]);
                }
            }
            Ok(())
        })?;
        planes.iter().try_for_each(|plane| {
            let piece = self.sizes.piece(layer, plane.here) + plane.number();
            self.check(piece, &into[plane.start(halves.layout, plane.there)..][..bytes])
        })
    }

    /// Writes whole blocks, whose halves fill their sectors.
    fn write_halves(
        &self,
        layer: usize,
        halves: Halves,
        pairs: &[(u32, u32)],
        from: &[u8],
    ) -> model::Result<()> {
        let planes: Vec<Plane> =
            pairs.iter().flat_map(|pair| Plane::of_block(halves.layout, *pair)).collect();
        let all = halves.sectors(layer, &planes, self.sizes.bounce_bytes());
        self.stats.moved(Lane::DiskWrite, Moved::Kv, all.iter().map(|sectors| sectors.bytes).sum());
        self.file.reaches(self.sizes.bytes())?;
        let bytes = halves.layout.plane_bytes();
        for plane in &planes {
            let piece = self.sizes.piece(layer, plane.here) + plane.number();
            self.sums.note(piece, &from[plane.start(halves.layout, plane.there)..][..bytes]);
        }
        self.through(all, |load| {
            for (sectors, room) in load.iter_mut() {
                for &(to, at) in &sectors.planes {
                    room[to..][..bytes].copy_from_slice(&from[at..][..bytes]);
                }
            }
            let written = load.iter().map(|(sectors, room)| Written { offset: sectors.offset, from: room });
            self.file.write(written.collect())
        })
    }

    /// Hands sectors to `pass` with room in the bounce buffer, as many at a time as there is room for.
    fn through(
        &self,
        all: Vec<Sectors>,
        mut pass: impl FnMut(&mut Vec<(Sectors, &mut [u8])>) -> model::Result<()>,
    ) -> model::Result<()> {
        for load in loads(all.into_iter(), self.sizes.bounce_bytes(), |sectors| sectors.bytes) {
            let mut bounce = lock(&self.bounce);
            let mut rest = &mut bounce[..];
            let with_room = |sectors: Sectors| {
                let room = rest.split_off_mut(..sectors.bytes).expect("loads are no larger");
                (sectors, room)
            };
            pass(&mut load.into_iter().map(with_room).collect())?;
        }
        Ok(())
    }

    /// Reads runs of blocks of a layer: (first here, .., how many), the bytes of each into its own memory. All are compared with what was
    /// written: they are what was kept for others, who go on from it, and which may be written again.
    pub(crate) fn read_runs(
        &self,
        layer: usize,
        runs: &[Run],
        mut into: Vec<&mut [u8]>,
    ) -> model::Result<()> {
        let at = |&(here, ..): &Run| self.sizes.block_at(layer, here);
        let stretches = runs.iter().zip(&mut into).map(|(run, into)| Stretch { offset: at(run), into });
        self.read(Moved::Kv, stretches.collect())?;
        let mut blocks = runs.iter().zip(&into).flat_map(|(run, into)| self.blocks_of(layer, run, into));
        blocks.try_for_each(
            |(piece, bytes)| {
                if self.sums.hold(piece, bytes) { Ok(()) } else { Err(self.changed()) }
            },
        )
    }

    /// Writes runs of blocks of a layer: (first here, .., how many), the bytes of each from its own memory.
    pub(crate) fn write_runs(&self, layer: usize, runs: &[Run], from: Vec<&[u8]>) -> model::Result<()> {
        let blocks = runs.iter().zip(&from).flat_map(|(run, from)| self.blocks_of(layer, run, from));
        blocks.for_each(|(piece, bytes)| self.sums.note(piece, bytes));
        let at = |&(here, ..): &Run| self.sizes.block_at(layer, here);
        let written = runs.iter().zip(from).map(|(run, from)| Written { offset: at(run), from });
        self.write(Moved::Kv, written.collect())
    }

    /// The blocks of a run, by their numbers, in its bytes.
    fn blocks_of<'a>(
        &self,
        layer: usize,
        &(here, ..): &Run,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (usize, &'a [u8])> {
        (self.sizes.piece(layer, here)..).zip(bytes.chunks_exact(self.sizes.block_bytes))
    }

    /// Reads a batch's activation.
    pub(crate) fn read_hidden(&self, batch: usize, into: &mut [u8]) -> model::Result<()> {
        let stretch = Stretch { offset: self.sizes.hidden_at(batch), into: &mut *into };
        self.read(Moved::Activations, vec![stretch])?;
        self.check(self.sizes.piece_of_hidden(batch), into)
    }

    /// Writes a batch's activation.
    pub(crate) fn write_hidden(&self, batch: usize, from: &[u8]) -> model::Result<()> {
        self.sums.note(self.sizes.piece_of_hidden(batch), from);
        self.write(Moved::Activations, vec![Written { offset: self.sizes.hidden_at(batch), from }])
    }

    fn check(&self, piece: usize, bytes: &[u8]) -> model::Result<()> {
        if self.sums.agree(piece, bytes) { Ok(()) } else { Err(self.changed()) }
    }

    /// What was read is not what was written.
    fn changed(&self) -> model::Error {
        let why = "the drive gave back other bytes than it was given; try --offload-dir on another one";
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        model::Error::Io { doing: "read", path: self.file.path().to_owned(), source }
    }

    /// Pairs of blocks as (first here, first there, how many): those that lie together are read and written together.
    pub(crate) fn runs(&self, pairs: &[(u32, u32)]) -> Vec<Run> {
        runs(pairs, self.sizes.joins())
    }

    fn read(&self, what: Moved, stretches: Vec<Stretch<'_>>) -> model::Result<()> {
        let bytes: usize = stretches.iter().map(|stretch| stretch.into.len()).sum();
        self.stats.moved(Lane::DiskRead, what, bytes);
        self.file.reaches(self.sizes.bytes())?;
        let (direct, others): (Vec<_>, Vec<_>) =
            stretches.into_iter().partition(|stretch| is_aligned(stretch.into));
        self.file.read(direct)?;
        let pieces = others.into_iter().flat_map(|Stretch { offset, into }| {
            (offset..).step_by(BOUNCE_BYTES).zip(into.chunks_mut(BOUNCE_BYTES))
        });
        self.bounced(pieces, |mut load| {
            let through = load.iter_mut().map(|(offset, _, room)| Stretch { offset: *offset, into: room });
            self.file.read(through.collect())?;
            load.into_iter().for_each(|(_, into, room)| into.copy_from_slice(&room[..into.len()]));
            Ok(())
        })
    }

    fn write(&self, what: Moved, stretches: Vec<Written<'_>>) -> model::Result<()> {
        let bytes: usize = stretches.iter().map(|stretch| stretch.from.len()).sum();
        self.stats.moved(Lane::DiskWrite, what, bytes);
        self.file.reaches(self.sizes.bytes())?;
        let (direct, others): (Vec<_>, Vec<_>) =
            stretches.into_iter().partition(|stretch| is_aligned(stretch.from));
        self.file.write(direct)?;
        let pieces = others.into_iter().flat_map(|Written { offset, from }| {
            (offset..).step_by(BOUNCE_BYTES).zip(from.chunks(BOUNCE_BYTES))
        });
        self.bounced(pieces, |load| {
            let through = load.into_iter().map(|(offset, from, room)| {
                room[..from.len()].copy_from_slice(from);
                Written { offset, from: room }
            });
            self.file.write(through.collect())
        })
    }

    /// Hands pieces (an offset, and memory that is not aligned) to `pass`, as many at a time as have room in the bounce buffer,
    /// each with whole sectors of that.
    fn bounced<B: AsRef<[u8]>>(
        &self,
        pieces: impl Iterator<Item = (u64, B)>,
        pass: impl Fn(Vec<(u64, B, &mut [u8])>) -> model::Result<()>,
    ) -> model::Result<()> {
        for load in loads(pieces, self.sizes.bounce_bytes(), |(_, piece)| piece.as_ref().len()) {
            let mut bounce = lock(&self.bounce);
            let mut rest = &mut bounce[..];
            let with_room = |(offset, piece): (u64, B)| {
                let room = rest.split_off_mut(..sectors(piece.as_ref().len())).expect("loads are no larger");
                (offset, piece, room)
            };
            pass(load.into_iter().map(with_room).collect())?;
        }
        Ok(())
    }
}

/// Pieces that have room in the bounce buffer together, and so are on their way together.
fn loads<P>(pieces: impl Iterator<Item = P>, room: usize, bytes: impl Fn(&P) -> usize) -> Vec<Vec<P>> {
    let (mut loads, mut left) = (Vec::<Vec<P>>::new(), 0);
    for piece in pieces {
        let bytes = sectors(bytes(&piece));
        match loads.last_mut().filter(|_| bytes <= left) {
            Some(load) => load.push(piece),
            None => {
                loads.push(vec![piece]);
                left = room;
            }
        }
        left -= bytes;
    }
    loads
}

fn sectors(bytes: usize) -> usize {
    bytes.next_multiple_of(SECTOR)
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(SECTOR) && bytes.as_ptr().addr().is_multiple_of(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_room_together_is_on_its_way_together() {
        let of = |sizes: &[usize]| -> Vec<usize> {
            loads(sizes.iter(), BOUNCE_BYTES, |bytes| **bytes).iter().map(Vec::len).collect()
        };
        // KV blocks of 18,432 bytes take five sectors each.
        assert_eq!(of(&[18_432; 52]), [51, 1]);
        assert_eq!(of(&[BOUNCE_BYTES, 1, BOUNCE_BYTES]), [1, 1, 1]);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn a_file_that_was_cut_short_is_named_and_not_written_on() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = KvFileSizes { layers: 2, blocks: 8, block_bytes: SECTOR, ..KvFileSizes::default() };
        let drive = KvFile::new(folder.path(), sizes, Arc::new(Stats::default())).unwrap();
        let mut block = vec![1; SECTOR];
        drive.write_kv(0, &[(0, 0)], &block).unwrap();
        drive.file.file().set_len(15 * SECTOR as u64).unwrap();
        for result in [drive.write_kv(1, &[(7, 0)], &block), drive.read_kv(0, &[(0, 0)], &mut block)] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("torn") && text.contains("kv-"), "{text}");
        }
    }

    #[test]
    fn blocks_and_activations_come_back_wherever_they_lie_in_memory() {
        for block_bytes in [SECTOR, 1536] {
            let folder = tempfile::tempdir().unwrap();
            let sizes = KvFileSizes {
                layers: 2,
                blocks: 8,
                block_bytes,
                batches: 2,
                hidden_bytes: 5000,
                halves: None,
            };
            let stats = Arc::new(Stats::default());
            let drive = KvFile::new(folder.path(), sizes, Arc::clone(&stats)).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of it");
            let out: Vec<u8> = (0..4 * block_bytes).map(|i| (i % 251) as u8).collect();
            drive.write_kv(1, &[(5, 0), (6, 1), (2, 3)], &out).unwrap();
            drive.write_hidden(1, &out[..3000]).unwrap();
            let mut back = vec![0; 5 * block_bytes];
            drive.read_kv(1, &[(2, 1), (5, 3), (6, 4)], &mut back).unwrap();
            let block = |bytes: &[u8], i: usize| bytes[i * block_bytes..][..block_bytes].to_vec();
            assert_eq!(block(&back, 1), block(&out, 3));
            assert_eq!((block(&back, 3), block(&back, 4)), (block(&out, 0), block(&out, 1)));
            let mut hidden = vec![0; 3000];
            drive.read_hidden(1, &mut hidden).unwrap();
            assert_eq!(hidden, out[..3000]);
            let moved = [Lane::DiskRead, Lane::DiskWrite].map(|link| stats.counts().moved_by(link));
            assert_eq!(moved, [3 * block_bytes as u64 + 3000; 2]);
        }
    }

    /// More than passes through the bounce buffer at a time, of planes of 2304 bytes (of 32 heads, 4 bits of 128 dims), and halves of
    /// blocks that are more than that by themselves.
    #[test]
    fn many_blocks_in_halves_come_back() {
        use kernels::attention::{KvDtype, KvLayout};
        for (kv_heads, head_dim, count) in [(32, 128, 40), (457, 128, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let layout = KvLayout { kv_heads, head_dim, dtype: KvDtype::Int4 };
            let block_bytes = layout.block_bytes();
            let sizes = KvFileSizes {
                layers: 1,
                blocks: count,
                block_bytes,
                halves: Some(layout),
                ..KvFileSizes::default()
            };
            let drive = KvFile::new(folder.path(), sizes, Arc::new(Stats::default())).unwrap();
            let out: Vec<u8> =
                (0..count * block_bytes).map(|i| ((i % 251) ^ (i / 251 % 256)) as u8).collect();
            let pairs: Vec<(u32, u32)> = (0..count as u32).map(|block| (block, block)).collect();
            drive.write_kv(0, &pairs, &out).unwrap();
            let mut back = vec![0; out.len()];
            drive.read_kv(0, &pairs, &mut back).unwrap();
            assert!(back == out, "{kv_heads} heads");
        }
    }

    #[test]
    fn blocks_in_halves_come_back_whole_or_plane_by_plane() {
        use crate::tiers::kv_halves::Half;
        use kernels::attention::{KvDtype, KvLayout};
        // Planes of whole sectors, and of less than one.
        for head_dim in [64, 16] {
            let folder = tempfile::tempdir().unwrap();
            let layout = KvLayout { kv_heads: 3, head_dim, dtype: KvDtype::Bf16 };
            let (block_bytes, plane) = (layout.block_bytes(), layout.plane_bytes());
            let sizes = KvFileSizes {
                layers: 2,
                blocks: 8,
                block_bytes,
                halves: Some(layout),
                ..KvFileSizes::default()
            };
            let stats = Arc::new(Stats::default());
            let drive = KvFile::new(folder.path(), sizes, Arc::clone(&stats)).unwrap();
            let out: Vec<u8> = (0..4 * block_bytes).map(|i| (i % 251) as u8).collect();
            drive.write_kv(1, &[(5, 0), (6, 1), (2, 3)], &out).unwrap();
            // Neighbours in the file are left alone.
            drive.write_kv(1, &[(4, 2), (7, 2)], &out).unwrap();
            drive.write_kv(0, &[(6, 2)], &out).unwrap();
            let mut back = vec![0; 5 * block_bytes];
            drive.read_kv(1, &[(2, 1), (5, 3), (6, 4)], &mut back).unwrap();
            let block = |bytes: &[u8], i: usize| bytes[i * block_bytes..][..block_bytes].to_vec();
            assert_eq!(block(&back, 1), block(&out, 3));
            assert_eq!((block(&back, 3), block(&back, 4)), (block(&out, 0), block(&out, 1)));
            let before = stats.counts().moved_by(Lane::DiskRead);
            let mut part = vec![0; 2 * block_bytes];
            let keys = Plane { here: 6, there: 1, head: 1, half: Half::Keys };
            let values = Plane { here: 5, there: 0, head: 2, half: Half::Values };
            drive.read_planes(1, &[keys, values], &mut part).unwrap();
            let (k, v) = (keys.start(layout, 1), values.start(layout, 0));
            assert_eq!(part[k..][..plane], out[k..][..plane]);
            assert_eq!(part[v..][..plane], out[v..][..plane]);
            part[k..][..plane].fill(0);
            part[v..][..plane].fill(0);
            assert!(part.iter().all(|byte| *byte == 0), "nothing else was written");
            let read = stats.counts().moved_by(Lane::DiskRead) - before;
            assert_eq!(read, 2 * plane.next_multiple_of(SECTOR) as u64);
        }
    }
}
