//! Groups of a panel made ready for vectors of 16: a permutation of bytes puts the codes of 16 outputs into as many floats at once,
//! which neither widens nor converts them.
//!
//! ```text
//! 2^b     | code << (23 - b)   = 2^b + code        a code of b bits, fewer than 8, at the top of its byte
//! 32768.0 | code << 8          = 32768 + code      a code of 8 bits, counted from -128
//! ```
//!
//! Floats of 8 bits become halves, with nothing too much ([`floats`]).
//!
//! What a float has too much, `excess * scale`, comes off the min beforehand where that is exact: `scale * (excess + code) +
//! (min - excess * scale)` is then rounded once, as `scale * code + min` is. Where it is not, as with a min that is tiny beside
//! its scale, the excess comes off each float.

use std::arch::x86_64::*;

use super::super::super::plan::{GROUP, Layout, PANEL, Plan, TILE};
use super::super::avx512::by_row;
use super::super::bytes::eight_k_by_row;
use super::super::floats;

/// Tiles of a panel: a vector of outputs each.
pub(super) const TILES: usize = PANEL / TILE;
/// k whose codes are two vectors of a tile.
pub(super) const EIGHT: usize = 8;
/// 2^-90: what is added to a number of that size has an error that is none or no subnormal number.
const SMALLEST: f32 = f32::from_bits((127 - 90) << 23);
/// Eights of a group.
const EIGHTS: usize = GROUP / EIGHT;

/// A group of a panel.
#[repr(align(64))]
pub(super) struct Placed {
    /// For each half of its k, where those differ.
    scale: [[f32; PANEL]; 2],
    min: [[f32; PANEL]; 2],
    /// The min, less the excess.
    less: [[f32; PANEL]; 2],
    /// Whether that is exact for all outputs.
    exact: [bool; 2],
    /// For each tile and eight k two vectors, in the order that their [`Form`] says.
    codes: [[[Codes; 2]; EIGHTS]; TILES],
}

/// Those of 16 outputs for four k, each where a float's byte is to be.
type Codes = [u8; 64];

/// Scales and mins of a panel's outputs over a run of k.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    scale: [__m512; TILES],
    min: [__m512; TILES],
}

/// In which order codes lie in [`Placed`].
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Four rows of two k, then of the same two four further on, for each four rows.
    Nibbles,
    /// Eight rows by pairs of k.
    Bytes,
    /// Four k of a row, and of the row eight further down, for each eight rows.
    Planes,
}

impl Order {
    /// Of k in eight: in which of two vectors, and which of its four.
    const fn place(self, k: usize) -> (usize, usize) {
        match self {
            Order::Nibbles => (k % 4 / 2, k / 4 * 2 + k % 2),
            Order::Bytes | Order::Planes => (k / 4, k % 4),
        }
    }

    /// The byte of a vector in which the code of a row and the k of that number lies.
    const fn byte(self, row: usize, number: usize) -> usize {
        match self {
            Order::Nibbles => 16 * (row / 4) + 8 * (number / 2) + 4 * (number % 2) + row % 4,
            Order::Bytes => 32 * (number / 2) + 16 * (row / 8) + 2 * (row % 8) + number % 2,
            Order::Planes => 8 * (row % 8) + 4 * (row / 8) + number,
        }
    }

    /// For each number the bytes of 16 rows, each at all `width` bytes of what it becomes.
    const fn indices(self, width: usize) -> [[u8; 64]; 4] {
        let (mut indices, mut i) = ([[0; 64]; 4], 0);
        while i < 4 * 64 {
            indices[i / 64][i % 64] = self.byte(i % 64 / width % TILE, i / 64) as u8;
            i += 1;
        }
        indices
    }
}

/// An [`Order`] that is known when a kernel is compiled.
pub(super) trait Form {
    /// The order.
    const ORDER: Order;
    /// Whether they are floats.
    const FLOATS: bool = false;
    /// Its indices: for floats, or for halves.
    const INDICES: [[u8; 64]; 4] = Self::ORDER.indices(if Self::FLOATS { 2 } else { 4 });
}

pub(super) struct Nibbles;
pub(super) struct Bytes;
pub(super) struct Floats;
pub(super) struct Planes;

impl Form for Nibbles {
    const ORDER: Order = Order::Nibbles;
}
impl Form for Bytes {
    const ORDER: Order = Order::Bytes;
}
impl Form for Floats {
    const ORDER: Order = Order::Bytes;
    const FLOATS: bool = true;
}
impl Form for Planes {
    const ORDER: Order = Order::Planes;
}

impl Plan {
    const fn bits(&self) -> usize {
        self.low_bits + self.high_bits
    }

    /// A float that codes are put into, and at which of its bytes.
    const fn carrier(&self) -> (f32, usize) {
        if self.bits() == 8 { (32_768.0, 1) } else { ((1 << self.bits()) as f32, 2) }
    }

    /// What that float is for a code that stands for zero.
    const fn excess(&self) -> f32 {
        match self.bits() {
            _ if self.floats => 0.0,
            8 => self.carrier().0 + 128.0,
            _ => self.carrier().0,
        }
    }

    /// How many bits lie below a code of fewer than 8 in its byte.
    const fn below(&self) -> usize {
        7 - self.bits() % 8
    }

    /// The lowest bit of the float's exponent, which lies above such a code.
    const fn exponent(&self) -> u8 {
        (self.carrier().0.to_bits() >> 16) as u8 & 0x80
    }

    /// Where in its byte so many bits are, from the code's lowest on.
    const fn mask(&self, bits: usize) -> u8 {
        (((1 << bits) - 1) << self.below()) as u8
    }
}

/// What puts codes into floats.
#[derive(Clone, Copy)]
pub(super) struct Placing {
    float: __m512i,
    places: u64,
    indices: [__m512i; 4],
    excess: __m512,
}

impl Placing {
    /// # Safety
    /// The machine has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) fn of<F: Form>(plan: &Plan) -> Placing {
        let (float, byte) = plan.carrier();
        // A compiler that knew them would make two instructions out of one where they stay in their quarter.
        let indices: &[[u8; 64]; 4] = std::hint::black_box(const { &F::INDICES });
        // SAFETY: 64 bytes.
        let indices = |number: usize| unsafe { _mm512_loadu_si512(indices[number].as_ptr().cast()) };
        Placing {
            float: _mm512_castps_si512(_mm512_set1_ps(float)),
            places: 0x1111_1111_1111_1111 << byte,
            indices: [indices(0), indices(1), indices(2), indices(3)],
            excess: _mm512_set1_ps(plan.excess()),
        }
    }
}

impl Placed {
    pub(super) const NOTHING: Placed = Placed {
        scale: [[0.0; PANEL]; 2],
        min: [[0.0; PANEL]; 2],
        less: [[0.0; PANEL]; 2],
        exact: [false; 2],
        codes: [[[[0; 64]; 2]; EIGHTS]; TILES],
    };

    /// Whether the excess is off the mins of a run.
    pub(super) fn exact(&self, run: usize) -> bool {
        self.exact[run]
    }

    /// Those of a run: with the excess off the min, or not.
    ///
    /// # Safety
    /// The machine has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn affine<const EXACT: bool>(&self, run: usize) -> Affine {
        let min = if EXACT { &self.less[run] } else { &self.min[run] };
        // SAFETY: 16 of 32 numbers.
        let of = |all: &[f32; PANEL], tile: usize| unsafe { _mm512_loadu_ps(all.as_ptr().add(TILE * tile)) };
        Affine { scale: [of(&self.scale[run], 0), of(&self.scale[run], 1)], min: [of(min, 0), of(min, 1)] }
    }

    /// What the weights of a tile are at k `K` of an eight.
    ///
    /// # Safety
    /// The machine has these features; the codes lie in this form; `affine` is that of k's run.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2")]
    pub(super) unsafe fn values<F: Form, const EXACT: bool, const K: usize>(
        &self,
        placing: &Placing,
        affine: &Affine,
        tile: usize,
        eight: usize,
    ) -> __m512 {
        let (vector, number) = const { F::ORDER.place(K) };
        // SAFETY: 64 bytes.
        let codes = unsafe { _mm512_loadu_si512(self.codes[tile][eight][vector].as_ptr().cast()) };
        let index = placing.indices[number];
        if F::FLOATS {
            const UPPER: u64 = 0xaaaa_aaaa;
            let words = _mm512_maskz_permutexvar_epi8(UPPER, index, codes);
            let floats = floats::sixteen(_mm512_castsi512_si256(words));
            return _mm512_fmadd_ps(floats, affine.scale[tile], affine.min[tile]);
        }
        let floats = _mm512_mask_permutexvar_epi8(placing.float, placing.places, index, codes);
        let floats = _mm512_castsi512_ps(floats);
        let codes = if EXACT { floats } else { _mm512_sub_ps(floats, placing.excess) };
        _mm512_fmadd_ps(codes, affine.scale[tile], affine.min[tile])
    }
}

/// Makes a group of a panel ready.
///
/// # Safety
/// The machine has AVX-512 with permutations of bytes; the panel holds the group.
pub(super) type Place = unsafe fn(panel: *const u8, group: usize, out: &mut Placed);

/// Of one format.
///
/// # Safety
/// As [`Place`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) unsafe fn place<L: Layout>(panel: *const u8, group: usize, out: &mut Placed) {
    let place = L::PLAN.locate(group);
    // SAFETY: unit and group lie in the panel, and the planes in the group.
    unsafe {
        let (unit, group) = (panel.add(place.unit), panel.add(place.group));
        out.exact = [true; 2];
        for tile in 0..TILES {
            out.take_affine::<L>(by_row::<L>(unit, group, tile), tile);
            let (low, high) = L::PLAN.planes(tile);
            let codes = &mut out.codes[tile];
            match (L::PLAN.low_bits, L::PLAN.high_bits) {
                (4, 0) => nibbles(group.add(low), codes),
                (8, _) => bytes::<L>(group.add(low), codes),
                _ => planes::<L>(group.add(low), group.add(high), codes),
            }
        }
    }
}

impl Placed {
    /// Scales and mins of a tile for each 16 k.
    ///
    /// # Safety
    /// The machine has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn take_affine<L: Layout>(&mut self, [scales, mins]: [[__m512; 2]; 2], tile: usize) {
        let excess = _mm512_set1_ps(L::PLAN.excess());
        for run in 0..L::PLAN.runs() {
            let off = _mm512_mul_ps(scales[run], excess);
            let less = _mm512_sub_ps(mins[run], off);
            self.exact[run] &= is_difference(less, mins[run], off);
            let store = |all: &mut [f32; PANEL], v| {
                // SAFETY: 16 of 32 numbers.
                unsafe { _mm512_storeu_ps(all.as_mut_ptr().add(TILE * tile), v) };
            };
            store(&mut self.scale[run], scales[run]);
            store(&mut self.min[run], mins[run]);
            store(&mut self.less[run], less);
        }
    }
}

/// Whether `a - b` is `difference`, which it was rounded to, to the last bit, in all lanes: Knuth's sum of two numbers and its error. Not
/// where that error could be a subnormal number, which is flushed to zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn is_difference(difference: __m512, a: __m512, b: __m512) -> bool {
    let part_of_b = _mm512_sub_ps(a, difference);
    let part_of_a = _mm512_add_ps(difference, part_of_b);
    let of_a = _mm512_sub_ps(a, part_of_a);
    let of_b = _mm512_sub_ps(part_of_b, b);
    // Of what is not finite neither is zero.
    let error = _mm512_add_ps(of_a, of_b);
    let size = _mm512_abs_ps(b);
    let tiny = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(SMALLEST));
    let none = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(size, _mm512_setzero_ps());
    _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(error, _mm512_setzero_ps()) & (!tiny | none) == 0xffff
}

/// Nibbles of four rows in a word for each k.
///
/// # Safety
/// As [`place`]; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn nibbles(low: *const u8, out: &mut [[Codes; 2]; EIGHTS]) {
    static TAKEN: [[u8; 64]; 2] = [nibbles_of_pair(0), nibbles_of_pair(1)];
    let (code, exponent) = (_mm512_set1_epi8(0x78), _mm512_set1_epi8(-128));
    for (eight, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller's.
        let words = unsafe { eight_k_by_row(low, eight) };
        for (taken, out) in TAKEN.iter().zip(out) {
            // SAFETY: 64 bytes each.
            unsafe {
                let codes = _mm512_multishift_epi64_epi8(_mm512_loadu_si512(taken.as_ptr().cast()), words);
                let codes = _mm512_ternarylogic_epi32::<0xf8>(exponent, codes, code);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), codes);
            }
        }
    }
}

/// From which bit on each byte is taken, of four k of four rows: a pair of those k, so that a code is three bits up.
const fn nibbles_of_pair(pair: usize) -> [u8; 64] {
    let mut taken = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (row, k) = (i % 4, 2 * pair + i / 4 % 2);
        taken[i] = ((16 * k + 4 * row + 64 - 3) % 64) as u8;
        i += 1;
    }
    taken
}

/// Bytes of pairs of k of eight rows, as they lie.
///
/// # Safety
/// As [`nibbles`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes<L: Layout>(low: *const u8, out: &mut [[Codes; 2]; EIGHTS]) {
    let from = _mm512_set1_epi8(if L::PLAN.floats { 0 } else { -128 });
    for (i, out) in out.as_flattened_mut().iter_mut().enumerate() {
        // SAFETY: 64 bytes for each four k.
        unsafe {
            let codes = _mm512_loadu_si512(low.add(64 * i).cast());
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_xor_si512(codes, from));
        }
    }
}

/// Planes of bits.
///
/// # Safety
/// As [`nibbles`]; both point at a tile's planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn planes<L: Layout>(low: *const u8, high: *const u8, out: &mut [[Codes; 2]; EIGHTS]) {
    let byte = |bits: u8| _mm512_set1_epi8(bits.cast_signed());
    let of_low = byte(const { L::PLAN.mask(L::PLAN.low_bits) });
    let (code, exponent) = (byte(const { L::PLAN.mask(L::PLAN.bits()) }), byte(const { L::PLAN.exponent() }));
    for (eight, out) in out.iter_mut().enumerate() {
        for (four, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller's; 64 bytes.
            unsafe {
                let mut codes = taken(low, L::PLAN.low_bits, eight, &Taken::<L>::LOW[eight][four]);
                if L::PLAN.high_bits > 0 {
                    let high = taken(high, L::PLAN.high_bits, eight, &Taken::<L>::HIGH[eight][four]);
                    codes = _mm512_ternarylogic_epi32::<0xca>(of_low, codes, high);
                }
                let codes = _mm512_ternarylogic_epi32::<0xf8>(exponent, codes, code);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), codes);
            }
        }
    }
}

/// Bits of a plane in eight k.
///
/// # Safety
/// As [`planes`].
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
unsafe fn taken(plane: *const u8, bits: usize, eight: usize, taken: &[u8; 64]) -> __m512i {
    // SAFETY: a vector has 32 / bits half-vectors, eight of them eight k.
    unsafe {
        let words = _mm512_loadu_si512(plane.add(64 * (8 * eight * bits / 32)).cast());
        _mm512_multishift_epi64_epi8(_mm512_loadu_si512(taken.as_ptr().cast()), words)
    }
}

/// From which bit on each byte is taken, out of two lanes' 64, of each plane.
struct Taken<L>(L);

impl<L: Layout> Taken<L> {
    const LOW: [[[u8; 64]; 2]; EIGHTS] = places_of(L::PLAN.low_bits, L::PLAN.below());
    const HIGH: [[[u8; 64]; 2]; EIGHTS] = places_of(L::PLAN.high_bits, L::PLAN.below() + L::PLAN.low_bits);
}

/// For each eight k and four of them: so that what the plane has of a code is `up` bits up in its byte.
const fn places_of(bits: usize, up: usize) -> [[[u8; 64]; 2]; EIGHTS] {
    let mut places = [[[0; 64]; 2]; EIGHTS];
    let mut i = 0;
    while bits > 0 && i < EIGHTS * 2 * 64 {
        let (eight, four, byte) = (i / 128, i / 64 % 2, i % 64);
        let (k, eight_down) = (EIGHT * eight + 4 * four + byte % 4, byte / 4 % 2);
        let half_vector = k / 2 * 2 + eight_down;
        let place = 32 * (k % 2) + half_vector % (32 / bits) * bits;
        places[eight][four][byte] = ((place + 64 - up) % 64) as u8;
        i += 1;
    }
    places
}
