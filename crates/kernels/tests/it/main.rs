//! What reaches every family of kernels at once: here, and not beside the code, it does not take the crate to be compiled twice.

mod attention;
mod bf12;
mod linear;
mod quant;
mod table;
