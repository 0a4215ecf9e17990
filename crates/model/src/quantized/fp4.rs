//! Floats of 4 bits, a sign, two bits of the exponent and one of the fraction: NVFP4 and MXFP4.
//!
//! ```text
//! P.weight_packed, P.weight   U8 [outputs, inputs / 2], two in a byte, the first below
//! NVFP4: P.weight_scale       a float of 8 bits for each 16 inputs; all are divided by P.weight_global_scale, or multiplied by
//!                             P.weight_scale_2 (ModelOpt)
//! MXFP4: P.weight_scale       an exponent of two for each 32
//! ```

use super::fold::{Found, Parts, Pieces};
use super::matrix::{Codes, Scales, Zeros};
use super::part::{Kind, Part};

/// What each code is.
const FP4: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Parts<'_> {
    pub(super) fn fp4(&mut self, codes: Part) -> Found<Pieces> {
        let [outputs, bytes] = codes.matrix();
        if codes.dims.len() != 2 {
            return Err(codes.expected("a matrix of floats of 4 bits"));
        }
        let shape = [outputs, bytes.saturating_mul(2)];
        let scale = self.needed("weight_scale")?;
        let global = [self.optional("weight_global_scale")?, self.optional("weight_scale_2")?];
        let (group, times) = match (scale.kind(), global) {
            (Kind::Fp8, [Some(part), None]) => (16, 1.0 / self.number(part)?),
            (Kind::Fp8, [None, Some(part)]) => (16, self.number(part)?),
            (Kind::Fp8, [None, None]) => {
                return Err(format!("`{}.weight_global_scale` is missing", self.base).into());
            }
            (Kind::Octets, [None, None]) => (32, 1.0),
            (Kind::Fp8 | Kind::Octets, [Some(part), _] | [_, Some(part)]) => {
                return Err(part.expected("no such scale beside those that there are"));
            }
            _ => return Err(scale.expected("floats of 8 bits or exponents of two")),
        };
        let scales = Scales { times, ..Scales::beside(scale, shape, None)? };
        if scales.inputs != group {
            return Err(scales.part.expected(&format!("a scale for each {group} inputs")));
        }
        let codes = Codes::Named { part: codes, values: Box::new(FP4), is_low_first: true };
        Ok(Pieces { codes, scales, zeros: Zeros::All(0), groups: None, shape, levels: [0, 0] })
    }

    /// What a part that is one number is.
    fn number(&self, part: Part) -> Found<f32> {
        if part.count() != 1 || !matches!(part.kind(), Kind::Float(_)) {
            return Err(part.expected("a number"));
        }
        let number = part.all_floats(self.files)?[0];
        if number > 0.0 { Ok(number) } else { Err(part.expected("a number above 0")) }
    }
}
