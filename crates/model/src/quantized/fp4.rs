//! Floats of 4 bits, a sign, two bits of the exponent and one of the fraction: NVFP4 and MXFP4.
//!
//! ```text
//! P.weight_packed, P.weight   U8 [outputs, inputs / 2], two in a byte, the first below
//! P.weight_scale              for each 16 inputs a float of 8 bits (NVFP4), for each 32 a power of two (MXFP4)
//! P.weight_global_scale       what all scales are divided by, P.weight_scale_2 multiplied by; neither with powers of two
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
        let of_a_power = match scale.kind() {
            Kind::Fp8 => false,
            Kind::Octets => true,
            _ => return Err(scale.expected("floats of 8 bits or powers of two")),
        };
        let times = match (self.optional("weight_global_scale")?, self.optional("weight_scale_2")?) {
            (None, None) if of_a_power => 1.0,
            (None, None) => return Err(format!("`{}.weight_global_scale` is missing", self.base).into()),
            (Some(part), None) => 1.0 / self.number(part)?,
            (None, Some(part)) => self.number(part)?,
            (Some(part), Some(_)) => return Err(part.expected("no weight_scale_2 beside it")),
        };
        let scales = Scales { times, ..Scales::beside(scale, shape, None)? };
        let codes = Codes::Named { part: codes, values: Box::new(FP4), is_low_first: true };
        Ok(Pieces { codes, scales, zeros: Zeros::All(0), groups: None, shape, levels: [0, 0] })
    }

    /// What a part that is one number is.
    fn number(&self, part: Part) -> Found<f32> {
        if part.count() != 1 || !matches!(part.kind(), Kind::Float(_)) {
            return Err(part.expected("a number"));
        }
        let number = part.clone().of_shape(vec![1]).floats(self.files, 0..1, 0..1)?[0];
        if number > 0.0 { Ok(number) } else { Err(part.expected("a number above 0")) }
    }
}
