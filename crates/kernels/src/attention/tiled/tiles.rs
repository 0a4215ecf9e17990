//! The tile instructions: a page of keys against queries, a group's weights against values.
//!
//! Tiles 0 to 3 are sums, 4 and 5 the left operand (keys or values), 6 and 7 the right one (queries or
//! weights). All are full, 16 rows of 64 bytes. The compiler uses no tile register itself.

use std::arch::asm;

/// Bytes of a tile.
pub(super) const TILE: usize = 1024;
/// Queries in a tile: its columns.
pub(super) const LANES: usize = 16;

/// Scores of one page's 32 tokens against 16 queries: `s: [32][16] = k q`.
///
/// `k: [32]` rows `stride` bytes apart, `q: [steps]` tiles of `[16 pairs of dims][16 queries]`.
///
/// # Safety
/// Tiles are configured; `k` reads 32 rows of `64 * steps` bytes, `q` reads `steps` tiles, `s` takes 2 KB.
pub(super) unsafe fn scores(k: *const u8, stride: usize, steps: usize, q: *const u8, s: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm2",
            "2:",
            "tileloadd tmm6, [{q} + {row}]",
            "tileloadd tmm4, [{k} + {stride}]",
            "tileloadd tmm5, [{k16} + {stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {k}, 64",
            "add {k16}, 64",
            "add {q}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{s} + {row}], tmm0",
            "add {s}, 1024",
            "tilestored [{s} + {row}], tmm2",
            k = inout(reg) k => _,
            k16 = inout(reg) k.add(16 * stride) => _,
            q = inout(reg) q => _,
            s = inout(reg) s => _,
            steps = inout(reg) steps => _,
            stride = in(reg) stride,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// The same against two tiles of queries.
///
/// # Safety
/// As for [`scores`], for both.
pub(super) unsafe fn scores_two(
    k: *const u8,
    stride: usize,
    steps: usize,
    q: [*const u8; 2],
    s: [*mut f32; 2],
) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm6, [{q0} + {row}]",
            "tileloadd tmm4, [{k} + {stride}]",
            "tileloadd tmm7, [{q1} + {row}]",
            "tileloadd tmm5, [{k16} + {stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {k}, 64",
            "add {k16}, 64",
            "add {q0}, 1024",
            "add {q1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{s0} + {row}], tmm0",
            "tilestored [{s1} + {row}], tmm1",
            "add {s0}, 1024",
            "add {s1}, 1024",
            "tilestored [{s0} + {row}], tmm2",
            "tilestored [{s1} + {row}], tmm3",
            k = inout(reg) k => _,
            k16 = inout(reg) k.add(16 * stride) => _,
            q0 = inout(reg) q[0] => _,
            q1 = inout(reg) q[1] => _,
            s0 = inout(reg) s[0] => _,
            s1 = inout(reg) s[1] => _,
            steps = inout(reg) steps => _,
            stride = in(reg) stride,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// Adds a group's values, weighted, to 16 queries' sums of 32 dims: `sums: [32 dims][16] += v p`.
///
/// `v` holds each page's values of these dims, `[32 dims][32 tokens]` bf16; `p` a tile
/// `[16 pairs of tokens][16 queries]` for each page.
///
/// # Safety
/// Tiles are configured; `v` has `pages` pointers to 2 KB, `p` reads `pages` tiles, `sums` has 2 KB.
pub(super) unsafe fn weigh(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {row}]",
            "tileloadd tmm2, [{sums2} + {row}]",
            "2:",
            "mov {page}, [{v}]",
            "add {page}, {offset}",
            "tileloadd tmm6, [{p} + {row}]",
            "tileloadd tmm4, [{page} + {row}]",
            "add {page}, 1024",
            "tileloadd tmm5, [{page} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {p}, 1024",
            "add {v}, 8",
            "dec {pages}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums2} + {row}], tmm2",
            sums = in(reg) sums,
            sums2 = in(reg) sums.byte_add(TILE),
            v = inout(reg) v.as_ptr() => _,
            pages = inout(reg) v.len() => _,
            p = inout(reg) p => _,
            page = out(reg) _,
            offset = in(reg) offset,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// [`weigh`] for 64 dims: four sums at once, since each waits for its own last product.
///
/// # Safety
/// As for [`weigh`], with 4 KB at each page and at `sums`.
pub(super) unsafe fn weigh_64(v: &[*const u8], p: *const u8, sums: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {row}]",
            "tileloadd tmm1, [{sums} + {row} + 1024]",
            "tileloadd tmm2, [{sums} + {row} + 2048]",
            "tileloadd tmm3, [{sums} + {row} + 3072]",
            "2:",
            "mov {page}, [{v}]",
            "tileloadd tmm6, [{p} + {row}]",
            "tileloadd tmm4, [{page} + {row}]",
            "tileloadd tmm5, [{page} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{page} + {row} + 2048]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloadd tmm4, [{page} + {row} + 3072]",
            "tdpbf16ps tmm2, tmm7, tmm6",
            "add {p}, 1024",
            "add {v}, 8",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "dec {pages}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 1024], tmm1",
            "tilestored [{sums} + {row} + 2048], tmm2",
            "tilestored [{sums} + {row} + 3072], tmm3",
            sums = in(reg) sums,
            v = inout(reg) v.as_ptr() => _,
            pages = inout(reg) v.len() => _,
            p = inout(reg) p => _,
            page = out(reg) _,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// The same for two tiles of queries.
///
/// # Safety
/// As for [`weigh`], for both.
pub(super) unsafe fn weigh_two(v: &[*const u8], offset: usize, p: [*const u8; 2], sums: [*mut f32; 2]) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tileloadd tmm0, [{s0} + {row}]",
            "tileloadd tmm1, [{s1} + {row}]",
            "tileloadd tmm2, [{s0} + {row} + 1024]",
            "tileloadd tmm3, [{s1} + {row} + 1024]",
            "2:",
            "mov {page}, [{v}]",
            "add {page}, {offset}",
            "tileloadd tmm6, [{p0} + {row}]",
            "tileloadd tmm4, [{page} + {row}]",
            "tileloadd tmm7, [{p1} + {row}]",
            "tileloadd tmm5, [{page} + {row} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {p0}, 1024",
            "add {p1}, 1024",
            "add {v}, 8",
            "dec {pages}",
            "jnz 2b",
            "tilestored [{s0} + {row}], tmm0",
            "tilestored [{s1} + {row}], tmm1",
            "tilestored [{s0} + {row} + 1024], tmm2",
            "tilestored [{s1} + {row} + 1024], tmm3",
            s0 = in(reg) sums[0],
            s1 = in(reg) sums[1],
            v = inout(reg) v.as_ptr() => _,
            pages = inout(reg) v.len() => _,
            p0 = inout(reg) p[0] => _,
            p1 = inout(reg) p[1] => _,
            page = out(reg) _,
            offset = in(reg) offset,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}

/// [`weigh`] for 16 dims, the last of a head whose dims are an odd multiple of 16.
///
/// # Safety
/// As for [`weigh`], with 1 KB at each page and at `sums`.
pub(super) unsafe fn weigh_half(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {row}]",
            "2:",
            "mov {page}, [{v}]",
            "tileloadd tmm6, [{p} + {row}]",
            "add {page}, {offset}",
            "tileloadd tmm4, [{page} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "add {p}, 1024",
            "add {v}, 8",
            "dec {pages}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            sums = in(reg) sums,
            v = inout(reg) v.as_ptr() => _,
            pages = inout(reg) v.len() => _,
            p = inout(reg) p => _,
            page = out(reg) _,
            offset = in(reg) offset,
            row = in(reg) 64usize,
            options(nostack),
        );
    }
}
