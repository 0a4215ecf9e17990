//! The heap of the process.

/// Gives back to the system what is free of the heap of every thread. After work that took much of it for a while: it would count
/// against the memory that is allowed as long as the process runs.
///
/// A wish: where the system's heap has no such call, nothing happens.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: takes no memory that anybody holds.
    unsafe { libc::malloc_trim(0) };
}

/// Gives back to the system what is free of the heap. This system has no such call: nothing happens.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
