//! Which widths of a head attention is built for.

use crate::model::{SpecError, expect};

/// What attention's tiles take of a head at a time.
const STEP: usize = 16;
/// Elements of the widest head.
const WIDEST: usize = 256;

/// Whether attention is built for heads of this many elements.
pub fn head_dim_supported(head_dim: usize) -> bool {
    head_dim.is_multiple_of(STEP) && (STEP..=WIDEST).contains(&head_dim)
}

pub(crate) fn check(head_dim: usize) -> Result<(), SpecError> {
    expect("head_dim", head_dim, head_dim_supported(head_dim), || {
        format!("a supported width of a head: a multiple of {STEP}, at most {WIDEST}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_refused_by_name() {
        for head_dim in [16, 64, 80, 256] {
            assert_eq!(check(head_dim), Ok(()));
        }
        for head_dim in [0, 2, 8, 24, 40, 82, 100, 272, 320, 512, 65536] {
            let told = check(head_dim).unwrap_err().to_string();
            let expected = format!("the model's `head_dim` is {head_dim}: expected a supported width");
            assert!(told.starts_with(&expected) && told.ends_with("a multiple of 16, at most 256"), "{told}");
        }
    }
}
