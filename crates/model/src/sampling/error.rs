//! What can be wrong with parameters and with logits.

use kernels::pick::NoPick;

/// A request's parameter that is out of range or of the wrong type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{param}: expected {expected}, found {found}")]
pub struct ParamError {
    /// Name of the parameter, as in the request.
    pub param: &'static str,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl ParamError {
    /// `param` should be `expected` but is `found`.
    pub fn new(param: &'static str, expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        ParamError { param, expected: expected.into(), found: found.to_string() }
    }
}

/// Why no token could be taken from a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model computed NaN or +infinity.
    #[error(
        "the logits hold NaN or infinity; the weights are damaged or overflow in this format, \
         check the file or use a wider one (or a drive that holds KV is failing: send it again, and see `--offload-dir`)"
    )]
    NotFinite,
    /// Every token is masked.
    #[error(
        "every token is masked: allowed_token_ids, bad_words, min_tokens and what the text must be leave none that may \
         come now; allow more"
    )]
    NothingAllowed,
    /// The next tokens of a constrained text could not be worked out.
    #[error(
        "the schema, regex or grammar of this request needs more work for one token than is allowed; \
         make it simpler"
    )]
    TooComplex,
}

impl From<NoPick> for SampleError {
    fn from(why: NoPick) -> SampleError {
        match why {
            NoPick::NotFinite => SampleError::NotFinite,
            NoPick::NothingAllowed => SampleError::NothingAllowed,
        }
    }
}
