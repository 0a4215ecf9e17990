//! The virtual world that the real scheduler is simulated in.
#![forbid(unsafe_code)]
