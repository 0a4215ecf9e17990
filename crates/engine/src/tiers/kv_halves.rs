//! KV blocks of a drive whose values are read apart from their keys: where heads' planes are in the file, and which sectors
//! they lie in.
//!
//! ```text
//! file     layer 0: |keys of block 0: head 0, head 1 ..|keys of block 1| .. |values of block 0: head 0, head 1 ..| ..
//! memory   block 0: |head 0: keys, values|head 1: keys, values| ..
//! ```
//!
//! Keys of neighbouring blocks come in one request, and so do values; both pass through the bounce buffer, which sorts
//! them. The drive gives whole sectors: where planes are smaller, their neighbours come along.

use kernels::arena::Buf;
use kernels::attention::KvLayout;
use kernels::device::KvPages;
use model::store::SECTOR;

/// A half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// The keys or the values of a head in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plane {
    /// The block of the file, or of the memory that it is copied from.
    pub(crate) here: u32,
    /// The block of the other memory.
    pub(crate) there: u32,
    pub(crate) head: usize,
    pub(crate) half: Half,
}

impl Plane {
    /// All planes of a half of a block.
    pub(crate) fn all(
        layout: KvLayout,
        (here, there): (u32, u32),
        half: Half,
    ) -> impl Iterator<Item = Plane> {
        (0..layout.kv_heads).map(move |head| Plane { here, there, head, half })
    }

    /// The same of a whole block.
    pub(crate) fn of_block(layout: KvLayout, pair: (u32, u32)) -> impl Iterator<Item = Plane> {
        [Half::Keys, Half::Values].into_iter().flat_map(move |half| Plane::all(layout, pair, half))
    }

    /// Its place among those of its block.
    pub(crate) fn number(&self) -> usize {
        2 * self.head + usize::from(self.half == Half::Values)
    }

    /// It, of a block of these pages.
    pub(crate) fn of(&self, pages: KvPages, block: u32) -> Buf {
        pages.buf.slice(self.start(pages.layout, block), pages.layout.plane_bytes())
    }

    /// Where a block's plane begins in memory, in bytes.
    pub(crate) fn start(&self, layout: KvLayout, block: u32) -> usize {
        let values = if self.half == Half::Values { layout.plane_bytes() } else { 0 };
        layout.k_start(block, self.head) + values
    }
}

/// The part of a file that has blocks in halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Halves {
    pub(crate) layout: KvLayout,
    /// Of a layer.
    pub(crate) blocks: usize,
}

/// Sectors that follow one another, and the planes in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sectors {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Where each begins here, and in memory.
    pub(crate) planes: Vec<(usize, usize)>,
}

impl Sectors {
    /// Those of one plane of so many bytes, which begins at `at` here.
    fn of(at: u64, bytes: usize, to: usize) -> Sectors {
        let offset = at / SECTOR as u64 * SECTOR as u64;
        let end = (at + bytes as u64).next_multiple_of(SECTOR as u64);
        Sectors { offset, bytes: (end - offset) as usize, planes: vec![((at - offset) as usize, to)] }
    }

    fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }

    /// `next` begins no earlier, and no later than where these end.
    fn join(&mut self, next: Sectors) {
        let behind = (next.offset - self.offset) as usize;
        self.bytes = self.bytes.max(behind + next.bytes);
        self.planes.extend(next.planes.into_iter().map(|(at, to)| (behind + at, to)));
    }
}

/// Neighbours in one, where `are` says so.
fn joined(sectors: impl Iterator<Item = Sectors>, are: impl Fn(&Sectors, &Sectors) -> bool) -> Vec<Sectors> {
    let mut all: Vec<Sectors> = Vec::new();
    for next in sectors {
        match all.last_mut().filter(|last| are(last, &next)) {
            Some(last) => last.join(next),
            None => all.push(next),
        }
    }
    all
}

impl Halves {
    /// Bytes of a layer.
    pub(crate) fn layer_bytes(&self) -> u64 {
        (2 * self.blocks * self.half_bytes()) as u64
    }

    /// Whole sectors, which hold nothing else.
    pub(crate) fn half_bytes(&self) -> usize {
        (self.layout.kv_heads * self.layout.plane_bytes()).next_multiple_of(SECTOR)
    }

    /// The sectors of planes of a layer: those that follow one another together, up to so many bytes. No sector is in two.
    pub(crate) fn sectors(&self, layer: usize, planes: &[Plane], most: usize) -> Vec<Sectors> {
        let place = |plane: &Plane| (self.offset(layer, plane), plane.start(self.layout, plane.there));
        let mut places: Vec<(u64, usize)> = planes.iter().map(place).collect();
        places.sort_unstable();
        let bytes = self.layout.plane_bytes();
        let shared = joined(places.into_iter().map(|(at, to)| Sectors::of(at, bytes, to)), |last, next| {
            next.offset < last.end()
        });
        joined(shared.into_iter(), |last, next| {
            next.offset == last.end() && next.end() - last.offset <= most as u64
        })
    }

    fn offset(&self, layer: usize, plane: &Plane) -> u64 {
        let values = if plane.half == Half::Values { self.blocks } else { 0 };
        let half = (values + plane.here as usize) * self.half_bytes();
        layer as u64 * self.layer_bytes() + (half + plane.head * self.layout.plane_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::attention::KvDtype;

    fn halves(kv_heads: usize, head_dim: usize) -> Halves {
        Halves { layout: KvLayout { kv_heads, head_dim, dtype: KvDtype::Bf16 }, blocks: 10 }
    }

    #[test]
    fn keys_of_neighbours_come_in_one_request_and_pages_of_values_by_themselves() {
        // Planes of a sector each.
        let halves = halves(4, 64);
        let keys =
            [3, 4].map(|here| Plane::all(halves.layout, (here, here - 3), Half::Keys)).into_iter().flatten();
        let runs = halves.sectors(1, &keys.collect::<Vec<_>>(), 1 << 20);
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].offset, runs[0].bytes), (halves.layer_bytes() + 3 * 4 * 4096, 2 * 4 * 4096));
        assert_eq!(runs[0].planes[5], (5 * 4096, halves.layout.k_start(1, 1)));
        let value = |head| Plane { here: 2, there: 0, head, half: Half::Values };
        let some = halves.sectors(0, &[value(3), value(0), value(1)], 1 << 20);
        let begin = (10 + 2) * 4 * 4096;
        assert_eq!(
            some.iter().map(|s| (s.offset, s.bytes)).collect::<Vec<_>>(),
            [(begin, 8192), (begin + 12288, 4096)]
        );
        assert_eq!(some[1].planes, [(0, halves.layout.k_start(0, 3) + 4096)]);
        // No more together than there is room for.
        assert_eq!(halves.sectors(0, &[value(0), value(1)], 4096).len(), 2);
    }

    #[test]
    fn no_sector_is_in_two_requests() {
        // 4 bits of heads of 128 and 64, 8 of 80 and 48: planes of 2304, 1152, 2560 and 1536 bytes.
        for (dtype, kv_heads, head_dim) in
            [(KvDtype::Int4, 32, 128), (KvDtype::Int4, 5, 64), (KvDtype::Fp8, 7, 80), (KvDtype::Fp8, 8, 48)]
        {
            let halves = Halves { layout: KvLayout { kv_heads, head_dim, dtype }, blocks: 40 };
            let blocks = (0..40).filter(|block| block % 17 != 3);
            let planes: Vec<Plane> =
                blocks.flat_map(|block| Plane::of_block(halves.layout, (block, block))).collect();
            for most in [halves.half_bytes(), 300_000, 1 << 20] {
                let all = halves.sectors(1, &planes, most);
                assert!(all.is_sorted_by(|a, b| a.end() <= b.offset), "{dtype:?} {most}");
                assert!(all.iter().all(|sectors| sectors.bytes <= most.max(halves.half_bytes())));
                assert_eq!(all.iter().map(|sectors| sectors.planes.len()).sum::<usize>(), planes.len());
            }
        }
    }

    #[test]
    fn planes_that_are_no_whole_sectors_bring_their_neighbours() {
        let halves = halves(3, 16);
        assert_eq!(halves.layer_bytes(), 2 * 10 * 4096);
        let value = Plane { here: 1, there: 7, head: 2, half: Half::Values };
        let some = halves.sectors(0, &[value], 1 << 20);
        let planes = vec![(2048, halves.layout.k_start(7, 2) + 1024)];
        assert_eq!(some, [Sectors { offset: 11 * 4096, bytes: 4096, planes }]);
    }
}
