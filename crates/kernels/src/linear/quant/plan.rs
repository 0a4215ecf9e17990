//! How a narrow format lies in a panel: one description that the packer and every kernel follow.
//!
//! A panel is 32 output rows, as two tiles of 16. Along K it is a run of **units** (the span that shares the
//! stored scales: 32, 64 or 256 of k), each contiguous:
//!
//! ```text
//! unit  = d [32 rows] u16 · m [32 rows] u16, where the format has one · groups, one for each 32 of k
//!         (of floats of 8 bits d is the upper half of an f32, and m the lower one)
//! group = sub [2][32 rows] u8, where the format has them
//!       · low bits of tile 0 · of tile 1 · high bits of tile 0 · of tile 1
//! ```
//!
//! Every piece is a multiple of 64 bytes. The codes of a tile lie in one of two orders:
//!
//! - **By line**, the order in which a bf16 VNNI tile is written: lane `2 * (row % 8) + k % 2` of 16, half-vector
//!   `2 * (k / 2) + row / 8` of 32. A plane of `b` bits stores half-vector `h` in bits `b * (h % (32 / b))..` of the
//!   16 little-endian words of 32 bits at vector `h / (32 / b)`; 8 bits are plain bytes `16 * h + lane`. So 64 bytes
//!   are loaded, all lanes shifted and masked alike, 16 floats scaled by 16 scales, and two such vectors round into
//!   one line of the tile.
//! - **By row**, for the formats of 4 bits and no more: vector `row / 4` is 32 words of 16 bits, one for each k, with
//!   nibble `row % 4` for the row. A row has few values, so its 16 are computed once and a permutation of words looks
//!   up all 32 k at once: half the work of the other order, but it yields rows of k, not lines of outputs. AMX takes
//!   them as its left operand; AVX2 transposes, and AVX-512 takes eight k of all rows and does as with the other order.

use super::Narrow;

/// Rows of a panel.
pub(super) const PANEL: usize = 32;
/// Rows of a tile.
pub(super) const TILE: usize = 16;
/// Elements along K of a tile, and of a group.
pub(super) const GROUP: usize = 32;

/// What the two bytes that a group stores for each row mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sub {
    /// There are none: the unit's scale and min are the group's.
    None,
    /// A multiplier of the scale and one of the (negated) min, for all 32 k.
    ScaleMin,
    /// For each 16 k a byte: its low nibble multiplies the scale, its high one the (negated) min.
    Nibbles,
    /// For each 16 k a signed multiplier of the scale.
    Signed,
}

/// The layout of one narrow format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Elements along K that share the words of a unit.
    pub(super) unit_k: usize,
    /// Whether the unit stores a min beside its scale.
    pub(super) has_min: bool,
    /// Whether the unit's words are bf16 (our own formats) or f16 (GGUF's).
    pub(super) bf16_scales: bool,
    /// The group's bytes beside the codes.
    pub(super) sub: Sub,
    /// Bits of a code in the low plane: 2, 4 or 8 (signed).
    pub(super) low_bits: usize,
    /// Bits of a code in the high plane, above those: 0, 1 or 2.
    pub(super) high_bits: usize,
    /// What is subtracted from a code, for the symmetric formats.
    pub(super) offset: u8,
    /// Whether codes are no whole numbers but floats, 2^-8 of what E4M3 has (see [`half_bits`](super::block::half_bits)), and the
    /// unit's two words are a scale of 32 bits.
    pub(super) floats: bool,
}

impl Plan {
    /// The layout of `format`.
    pub(super) const fn of(format: Narrow) -> Plan {
        match format {
            Narrow::Int8 => plan(64, false, Sub::None, 8, 0, 0),
            Narrow::Int4 => plan(64, true, Sub::None, 4, 0, 0),
            Narrow::Q4_0 => plan(32, false, Sub::None, 4, 0, 8),
            Narrow::Q4_1 => plan(32, true, Sub::None, 4, 0, 0),
            Narrow::Q5_0 => plan(32, false, Sub::None, 4, 1, 16),
            Narrow::Q5_1 => plan(32, true, Sub::None, 4, 1, 0),
            Narrow::Q8_0 => plan(32, false, Sub::None, 8, 0, 0),
            Narrow::Q2K => plan(256, true, Sub::Nibbles, 2, 0, 0),
            Narrow::Q3K => plan(256, false, Sub::Signed, 2, 1, 4),
            Narrow::Q4K => plan(256, true, Sub::ScaleMin, 4, 0, 0),
            Narrow::Q5K => plan(256, true, Sub::ScaleMin, 4, 1, 0),
            Narrow::Q6K => plan(256, false, Sub::Signed, 4, 2, 32),
            Narrow::Fp8 => Plan { floats: true, ..Plan::of(Narrow::Int8) },
        }
    }

    /// Bytes of a unit's scales and mins.
    pub(super) fn head_bytes(&self) -> usize {
        2 * PANEL * if self.has_second_word() { 2 } else { 1 }
    }

    /// Whether a unit has two words for a row.
    pub(super) const fn has_second_word(&self) -> bool {
        self.has_min || self.floats
    }

    /// Bytes of a group's own multipliers.
    pub(super) fn sub_bytes(&self) -> usize {
        if self.sub == Sub::None { 0 } else { 2 * PANEL }
    }

    /// Bytes of one tile's low plane.
    pub(super) fn low_bytes(&self) -> usize {
        TILE * GROUP * self.low_bits / 8
    }

    /// Bytes of one tile's high plane.
    pub(super) fn high_bytes(&self) -> usize {
        TILE * GROUP * self.high_bits / 8
    }

    /// Bytes of a group of 32 k of a panel.
    pub(super) fn group_bytes(&self) -> usize {
        self.sub_bytes() + 2 * (self.low_bytes() + self.high_bytes())
    }

    /// Bytes of a whole unit of a panel.
    pub(super) fn unit_bytes(&self) -> usize {
        self.head_bytes() + self.unit_k / GROUP * self.group_bytes()
    }

    /// Bytes of a panel of rows of `k` elements; the last unit of our own formats may be cut to whole groups.
    pub(super) fn panel_bytes(&self, k: usize) -> usize {
        let groups = k.div_ceil(GROUP);
        groups * self.group_bytes() + k.div_ceil(self.unit_k) * self.head_bytes()
    }

    /// Where unit and group of group number `group` of a panel begin.
    pub(super) fn locate(&self, group: usize) -> Place {
        let each = self.unit_k / GROUP;
        let unit = group / each * self.unit_bytes();
        Place { unit, group: unit + self.head_bytes() + group % each * self.group_bytes() }
    }
}

const fn plan(unit_k: usize, has_min: bool, sub: Sub, low_bits: usize, high_bits: usize, offset: u8) -> Plan {
    Plan { unit_k, has_min, bf16_scales: unit_k == 64, sub, low_bits, high_bits, offset, floats: false }
}

/// A plan that is known when a kernel is compiled, so that nothing of it is computed for each group.
pub(super) trait Layout {
    /// The plan.
    const PLAN: Plan;
    /// The first of the formats whose codes, once they are read, are multiplied alike: kernels are compiled for it alone.
    type Alike: Layout;
}

/// The layout of the format of this number.
pub(super) struct Of<const FORMAT: u8>;

macro_rules! layouts {
    ($($name:ident),+) => {
        $(impl Layout for Of<{ Narrow::$name as u8 }> {
            const PLAN: Plan = Plan::of(Narrow::$name);
            type Alike = Of<{ Narrow::$name.alike() as u8 }>;
        })+
    };
}
layouts!(Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Fp8);

/// Runs an expression with a type alias for the [`Layout`] of a format, those formats only that are listed.
macro_rules! with_layout {
    ($format:expr, [$($name:ident),+], $layout:ident => $run:expr) => {
        match $format {
            $(Narrow::$name => {
                type $layout = $crate::linear::quant::plan::Of<{ Narrow::$name as u8 }>;
                $run
            })+
            #[allow(unreachable_patterns)] // Where all are listed.
            other => unreachable!("{other:?} has no such path"),
        }
    };
}
pub(super) use with_layout;

impl Narrow {
    /// The first format with as many bits of such a kind, runs and terms of a sum.
    const fn alike(self) -> Narrow {
        let (ours, mut i) = (Plan::of(self), 0);
        loop {
            let plan = Plan::of(Narrow::ALL[i]);
            let bits = plan.low_bits + plan.high_bits == ours.low_bits + ours.high_bits;
            let kind = plan.floats == ours.floats && plan.shifted() == ours.shifted();
            if bits && kind && plan.runs() == ours.runs() {
                return Narrow::ALL[i];
            }
            i += 1;
        }
    }
}

/// Byte offsets into a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The first scale of the unit.
    pub(super) unit: usize,
    /// The first byte of the group.
    pub(super) group: usize,
}

/// In which order a tile's codes lie; see the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeOrder {
    /// As the lines of a VNNI tile.
    ByLine,
    /// As rows of k.
    ByRow,
}

impl Plan {
    /// The order of this format's codes.
    pub(super) const fn order(&self) -> CodeOrder {
        if self.low_bits == 4 && self.high_bits == 0 { CodeOrder::ByRow } else { CodeOrder::ByLine }
    }

    /// Where a code lies in a plane of `bits` bits: byte and shift. `row` in its tile, `k` in its group.
    pub(super) fn code_at(&self, bits: usize, row: usize, k: usize) -> (usize, usize) {
        if self.order() == CodeOrder::ByRow {
            return (64 * (row / 4) + 2 * k + row % 4 / 2, 4 * (row % 2));
        }
        let lane = 2 * (row % 8) + k % 2;
        let half = 2 * (k / 2) + row / 8;
        if bits == 8 {
            return (16 * half + lane, 0);
        }
        let (vector, shift) = (half * bits / 32, half * bits % 32);
        (64 * vector + 4 * lane + shift / 8, shift % 8)
    }
}
