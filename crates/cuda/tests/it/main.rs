//! The device and its kernels, on a GPU where there is one and emulated, in one program: its tests share the cores.

mod attention;
mod conformance;
mod copies;
mod delayed;
mod emulator;
mod engine;
mod gpu;
mod host;
mod in_rows;
mod sample;
mod sampling;
mod scattered;
mod stand_in;
