//! Numbers too small to carry anything.

/// Subnormal numbers cost a hundred cycles each and carry nothing here: flush them (FTZ and DAZ), as
/// the tile instructions always do. Every kernel runs under this, so all paths agree.
pub(super) fn flush_denormals() {
    #[cfg(target_arch = "x86_64")]
    {
        const FTZ_AND_DAZ: u32 = 1 << 15 | 1 << 6;
        let mut mxcsr = 0u32;
        // SAFETY: stmxcsr writes four bytes to `mxcsr`, ldmxcsr reads them back; only the two flush bits
        // change, exceptions stay masked.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut mxcsr, options(nostack, preserves_flags));
            if mxcsr & FTZ_AND_DAZ != FTZ_AND_DAZ {
                mxcsr |= FTZ_AND_DAZ;
                std::arch::asm!("ldmxcsr [{}]", in(reg) &mxcsr, options(nostack, preserves_flags, readonly));
            }
        }
    }
}
