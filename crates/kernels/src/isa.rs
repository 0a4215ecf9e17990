//! Which instructions this machine has, and which of them a caller allows.

use std::fmt;
use std::str::FromStr;

/// A family of kernels, the plainest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: the reference that the others are held against.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with products of bf16 pairs and permutations of bytes (AVX512_BF16, AVX512_VBMI): Zen 4 and later. Sapphire Rapids and
    /// later have them too, and are faster without.
    Avx512Bf16,
    /// AMX tiles for bf16 (and int8), with AVX-512 around them.
    Amx,
}

/// In which order the products of a bf16 dot product are added. A family keeps to one for every row of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// What one tile instruction does: for each group of 32 k in order, two f32 sums from zero, over even and over odd
    /// k, by fused multiply-add in order of k; then `even + odd`; then that is added to the total.
    Groups,
    /// What one instruction on pairs of bf16 does: one f32 sum; of each pair of k in order, the odd product and then
    /// the even one are added to it by fused multiply-add, subnormal numbers being zero. Narrow weights have such a sum
    /// of their codes for each run of k that shares a scale, which is scaled and added to the total.
    Pairs,
    /// bf16 as [`Groups`](Order::Groups). A narrow weight is not rounded but the f32 value of its format, and an output one
    /// sum in order of k by fused multiply-add, as f32 weights have it: where products are those of f32 anyway, bf16
    /// would be a detour.
    Vectors,
}

impl Isa {
    /// Every family, the plainest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The best family that this machine can run. Asks the kernel for the AMX tile state (once per
    /// process: Linux grants it to all threads that the process makes afterwards).
    pub fn detect() -> Isa {
        let is_best = |isa: &Isa| isa.available() && !isa.has_slow_pairs();
        Isa::ALL.into_iter().rev().find(is_best).unwrap_or(Isa::Scalar)
    }

    /// Whether it multiplies pairs, which this machine does at half the rate of floats: so Intel's processors, whose tiles a virtual
    /// machine may have hidden (`bench/results/2026-11-30-pairs-and-plans.md`).
    fn has_slow_pairs(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Isa::Avx512Bf16 && x86::is_intel();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The best family that this machine can run of those that can add in [`Order::Groups`], their own order or not.
    pub(crate) fn best_in_groups() -> Isa {
        let can = |isa: &Isa| isa.order() != Order::Pairs && isa.available();
        Isa::ALL.into_iter().rev().find(can).unwrap_or(Isa::Scalar)
    }

    /// The family that `BALLAST_ISA` names, or the best one; a name that is empty is none.
    ///
    /// # Errors
    /// A name that is not a family, or a family that this machine lacks; the text says which it has.
    pub fn from_env() -> Result<Isa, String> {
        match std::env::var_os("BALLAST_ISA").filter(|name| !name.is_empty()) {
            None => Ok(Isa::detect()),
            Some(name) => {
                let isa: Isa = name.to_string_lossy().parse()?;
                if isa.available() {
                    Ok(isa)
                } else {
                    Err(format!(
                        "BALLAST_ISA={isa}: this machine cannot run it; it has {}",
                        Isa::names_here()
                    ))
                }
            }
        }
    }

    /// Whether this machine can run the family.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => {
                Isa::Avx512.available()
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(target_arch = "x86_64")]
            // Its attention rounds by instructions of AVX512_BF16, which a virtual machine may have hidden.
            Isa::Amx => Isa::Avx512Bf16.available() && x86::amx_granted(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// In which order the family adds the products of linears.
    pub fn order(self) -> Order {
        match self {
            Isa::Avx512Bf16 => Order::Pairs,
            Isa::Avx2 | Isa::Avx512 => Order::Vectors,
            Isa::Scalar | Isa::Amx => Order::Groups,
        }
    }

    fn names_here() -> String {
        let names: Vec<_> = Isa::ALL.into_iter().filter(|i| i.available()).map(|i| i.to_string()).collect();
        names.join(", ")
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        })
    }
}

impl FromStr for Isa {
    type Err = String;
    fn from_str(name: &str) -> Result<Isa, String> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
            let names = Isa::ALL.map(|isa| isa.to_string()).join(", ");
            format!("`{name}` is no instruction set: expected one of {names}")
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    /// CPUID leaf 7: EDX bits 22 (AMX-BF16), 24 (AMX-TILE) and 25 (AMX-INT8).
    const AMX_BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;

    /// Whether the CPU has AMX and Linux lets this process use the tile registers.
    pub(super) fn amx_granted() -> bool {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        *GRANTED.get_or_init(|| cpu_has_amx() && ask_for_tiles())
    }

    /// By the name that processors give their maker.
    pub(super) fn is_intel() -> bool {
        let leaf = __cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
    }

    fn cpu_has_amx() -> bool {
        __cpuid_count(7, 0).edx & AMX_BITS == AMX_BITS
    }

    #[cfg(target_os = "linux")]
    fn ask_for_tiles() -> bool {
        // SAFETY: arch_prctl with ARCH_REQ_XCOMP_PERM takes two integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_tiles() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>(), Ok(isa));
        }
        assert!("sse".parse::<Isa>().is_err());
    }

    #[test]
    fn detect_is_available() {
        let best = Isa::detect();
        assert!(best.available());
        let better = Isa::ALL.into_iter().filter(|isa| *isa > best && isa.available());
        assert!(better.into_iter().all(Isa::has_slow_pairs), "{best}");
    }
}
