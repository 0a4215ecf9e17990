//! Values as f32 ([`values`](super::super::values)): of a few rows of x where they come about, of more by the driver of vectors, a
//! chunk of a panel at a time in L1. By AVX2 ([`few`], [`ready`]), or by AVX-512 with permutations of bytes ([`wide`], [`placed`]).

mod few;
mod placed;
mod ready;
mod wide;

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{CodeOrder, GROUP, Layout, PANEL, Plan};
use super::fused::fetch_at;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::linear::vector::{Values, Width, run_values};
use crate::mat::Mat;
use crate::team::Team;
use placed::place;
use ready::{AHEAD, Bytes, EIGHT, Floats, Form, Prepare, Ready, Signed, VECTORS, Words, prepare};
use wide::Wide;

/// `x: [m, k]` by a weight, many rows by vectors of this width.
pub(super) fn run<L: Layout>(
    width: Width,
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let wide = Wide { plan: &L::PLAN, place: place::<L> };
    let kind = Kind { plan: &L::PLAN, prepare: prepare::<L> };
    if width == Width::Sixteen && is_x86_feature_detected!("avx512vbmi") {
        if x.rows() <= wide::ROWS_MAX {
            return wide.run(team, x, w, epilogue);
        }
        // SAFETY: the machine has AVX-512 and permutations of bytes.
        let expand = |panel: &[u8], groups, out: &mut [f32]| unsafe { wide.expand(panel, groups, out) };
        run_values(width, team, x, w, &Values(expand), epilogue);
    } else if x.rows() <= few::ROWS_MAX {
        few::run(kind, team, x, w, epilogue);
    } else {
        // SAFETY: the caller's machine has AVX2.
        let expand = |panel: &[u8], groups, out: &mut [f32]| unsafe { kind.expand(panel, groups, out) };
        run_values(width, team, x, w, &Values(expand), epilogue);
    }
}

/// In which form the codes of a format are made ready.
enum Lies {
    Bytes,
    Signed,
    Floats,
    Words,
}

/// A format.
#[derive(Clone, Copy)]
struct Kind {
    plan: &'static Plan,
    prepare: Prepare,
}

impl Kind {
    fn lies(&self) -> Lies {
        match (self.plan.order(), self.plan.low_bits) {
            (CodeOrder::ByRow, _) => Lies::Bytes,
            (CodeOrder::ByLine, 8) if self.plan.floats => Lies::Floats,
            (CodeOrder::ByLine, 8) => Lies::Signed,
            (CodeOrder::ByLine, _) => Lies::Words,
        }
    }

    /// Writes the values of groups of a panel: for each k those of its 32 outputs.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    unsafe fn expand(&self, panel: &[u8], groups: Range<usize>, out: &mut [f32]) {
        assert!(self.plan.panel_bytes(groups.end * GROUP) <= panel.len());
        let (outs, _) = out.as_chunks_mut::<{ GROUP * PANEL }>();
        let mut ready = [Ready::NOTHING];
        for (group, out) in groups.zip(outs) {
            if matches!(self.lies(), Lies::Signed | Lies::Floats) {
                fetch_at(
                    panel.as_ptr().wrapping_add(self.plan.locate(group + AHEAD).group),
                    self.plan.group_bytes(),
                );
            }
            // SAFETY: the panel holds the group; the features are the caller's.
            unsafe {
                (self.prepare)(panel.as_ptr(), group..group + 1, &mut ready);
                match (self.plan.runs(), self.lies()) {
                    (1, Lies::Bytes) => write::<1, Bytes>(&ready[0], out),
                    (1, Lies::Signed) => write::<1, Signed>(&ready[0], out),
                    (1, Lies::Floats) => write::<1, Floats>(&ready[0], out),
                    (1, Lies::Words) => write::<1, Words>(&ready[0], out),
                    _ => write::<2, Words>(&ready[0], out),
                }
            }
        }
    }
}

/// # Safety
/// The machine has these features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn write<const RUNS: usize, F: Form>(ready: &Ready, out: &mut [f32; GROUP * PANEL]) {
    for run in 0..RUNS {
        for k in run * GROUP / RUNS..(run + 1) * GROUP / RUNS {
            for vector in 0..VECTORS {
                // SAFETY: four vectors for each k.
                unsafe {
                    let at = out.as_mut_ptr().add(PANEL * k + EIGHT * vector);
                    _mm256_storeu_ps(at, ready.values::<F>(run, vector, k));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::super::Narrow;
    use super::super::super::plan::with_layout;
    use super::placed::Placed;
    use super::*;

    const GROUPS: usize = 8;

    fn kinds(format: Narrow) -> (Kind, Wide) {
        with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Fp8], L => (
            Kind { plan: &L::PLAN, prepare: prepare::<L> },
            Wide { plan: &L::PLAN, place: place::<L> },
        ))
    }

    /// Whether there are two to compare.
    fn has_both() -> bool {
        let has = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi");
        if !has {
            eprintln!("skipped: this machine has no AVX-512 with permutations of bytes");
        }
        has
    }

    fn values(write: impl Fn(&mut [f32]) + Send) -> Vec<u32> {
        let mut out = vec![0.0; GROUPS * GROUP * PANEL];
        // In a team, so that subnormals are flushed as they are in use.
        let cell = Mutex::new((write, &mut out));
        Team::new(1).run(|_| {
            let (write, out) = &mut *cell.lock().unwrap();
            write(out);
        });
        // One number that is none is as good as another, and so are zeros.
        out.into_iter().map(|v| if v.is_nan() { u32::MAX } else { (v + 0.0).to_bits() }).collect()
    }

    /// Whatever the bytes: scales that are no numbers, mins that are tiny beside their scales.
    #[test]
    fn both_widths_write_the_same_values() {
        if !has_both() {
            return;
        }
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        for format in (0..20).flat_map(|_| Narrow::ALL) {
            let (eight, sixteen) = kinds(format);
            let panel: Vec<u8> = (0..format.panel_bytes(GROUPS * GROUP)).map(|_| byte()).collect();
            // SAFETY: the machine has these instructions; the panel holds the groups.
            unsafe {
                let ours = values(|out| sixteen.expand(&panel, 0..GROUPS, out));
                assert_eq!(ours, values(|out| eight.expand(&panel, 0..GROUPS, out)), "{format:?}");
            }
        }
    }

    #[test]
    fn mins_that_are_tiny_beside_their_scales_keep_their_bits() {
        if !has_both() {
            return;
        }
        let (eight, sixteen) = kinds(Narrow::Q4_1);
        let mut panel = vec![0x5a; Narrow::Q4_1.panel_bytes(GROUPS * GROUP)];
        for group in 0..GROUPS {
            let words = &mut panel[sixteen.plan.locate(group).unit..][..4 * PANEL];
            // 1.0005, and as min the same at 2^-5 of it or, of one output of every other group, at 2^-13.
            words[..2 * PANEL].as_chunks_mut().0.fill(0x3c01_u16.to_le_bytes());
            words[2 * PANEL..].as_chunks_mut().0.fill(0x2801_u16.to_le_bytes());
            if group % 2 == 1 {
                words[2 * PANEL + 40..][..2].copy_from_slice(&0x0801_u16.to_le_bytes());
            }
        }
        // SAFETY: the machine has these instructions; the panel holds the groups.
        unsafe {
            for group in 0..GROUPS {
                let mut placed = Placed::NOTHING;
                (sixteen.place)(panel.as_ptr(), group, &mut placed);
                assert_eq!(placed.exact(0), group % 2 == 0, "group {group}");
            }
            let ours = values(|out| sixteen.expand(&panel, 0..GROUPS, out));
            assert_eq!(ours, values(|out| eight.expand(&panel, 0..GROUPS, out)));
        }
    }
}
