//! Matrices that safetensors hold quantised, folded from their parts into tensors of the model.
//!
//! ```text
//! GPTQ                 P.qweight · P.qzeros · P.scales · P.g_idx
//! AWQ                  P.qweight · P.qzeros · P.scales
//! compressed-tensors   P.weight_packed · P.weight_shape · P.weight_scale · P.weight_zero_point · P.weight_g_idx
//!                      P.weight in whole numbers or floats of 8 bits · P.weight_scale · P.weight_zero_point
//! FP8                  P.weight in floats of 8 bits · P.weight_scale_inv, or P.weight_scale
//! NVFP4, MXFP4         as [`fp4`] says
//! bitsandbytes         as [`bitsandbytes`] says
//! ```
//!
//! Each becomes `P.weight`, which is read as [`matrix`] says. What files tell of activations and of KV is for arithmetic of 8 bits:
//! here both are as exact as in any other model.

mod bitsandbytes;
mod fold;
mod fp4;
mod matrix;
mod packed;
mod part;
mod scheme;

pub(crate) use fold::{fold, is_zero_bias};
pub(crate) use matrix::Matrix;
pub(crate) use scheme::Method;
pub use scheme::Scheme;

#[cfg(test)]
mod tests;
