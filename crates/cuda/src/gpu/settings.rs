//! What variables of the environment say of a device.

use crate::module::Prefill;
use crate::{Architecture, CudaError};

/// Who computes large products.
pub(super) const PRODUCTS: &str = "BALLAST_CUDA_PRODUCTS";
/// Whether kernels that come again are started as graphs.
pub(super) const GRAPHS: &str = "BALLAST_CUDA_GRAPHS";
/// Which kernel attends of many rows.
pub(super) const PREFILL: &str = "BALLAST_CUDA_PREFILL";

/// Who is to compute large products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductsBy {
    Own,
    /// The library, if it is there.
    LibraryIfThere,
    Library,
}

/// The library, unless somebody says otherwise, or the device has no units for products of bf16, which own kernels make of those of
/// f16. Whoever names it is to have it.
pub(super) fn products_by(
    said: Option<&str>,
    Architecture(architecture): Architecture,
) -> Result<ProductsBy, CudaError> {
    match said {
        None | Some("") if architecture >= 80 => Ok(ProductsBy::LibraryIfThere),
        Some("cublaslt") => Ok(ProductsBy::Library),
        None | Some("" | "own") => Ok(ProductsBy::Own),
        Some(other) => Err(unknown(PRODUCTS, other, "cublaslt, or own for kernels of Ballast's own")),
    }
}

/// Whether graphs are wanted; they are, unless somebody says otherwise.
pub(super) fn wants_graphs(said: Option<&str>) -> Result<bool, CudaError> {
    match said {
        None | Some("" | "on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(unknown(GRAPHS, other, "on, or off for kernels that are started one by one")),
    }
}

/// The kernels by products of warpgroups where they run and pass their trials, unless somebody says otherwise.
pub(super) fn prefill(said: Option<&str>, device: Architecture) -> Result<Prefill, CudaError> {
    let has_both = device == Architecture::WARPGROUPS;
    match said {
        None | Some("") if has_both => Ok(Prefill::Tried),
        None | Some("" | "mma") => Ok(Prefill::Warps),
        Some("wgmma") if has_both => Ok(Prefill::Warpgroups),
        Some("turns") if has_both => Ok(Prefill::Turns),
        Some(other) => {
            Err(unknown(PREFILL, other, "mma, or wgmma or turns on a GPU of compute capability 9.0"))
        }
    }
}

fn unknown(variable: &'static str, found: &str, choices: &'static str) -> CudaError {
    CudaError::Setting { variable, found: found.to_string(), choices }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_and_graphs_are_wanted_unless_somebody_says_otherwise() {
        let wanted = |architecture| {
            [None, Some("cublaslt"), Some("own")]
                .map(|said| products_by(said, Architecture(architecture)).unwrap())
        };
        let [own, if_there, library] = [ProductsBy::Own, ProductsBy::LibraryIfThere, ProductsBy::Library];
        assert_eq!(wanted(80), [if_there, library, own]);
        assert_eq!(wanted(75), [own, library, own]);
        assert_eq!([None, Some("on"), Some("off")].map(wants_graphs), [Ok(true), Ok(true), Ok(false)]);
        let why = products_by(Some("magma"), Architecture(80)).unwrap_err().to_string();
        assert!(why.contains("BALLAST_CUDA_PRODUCTS is `magma`") && why.contains("own"), "{why}");
        let why = wants_graphs(Some("maybe")).unwrap_err().to_string();
        assert!(why.contains("BALLAST_CUDA_GRAPHS is `maybe`") && why.contains("off"), "{why}");
    }

    #[test]
    fn products_of_warpgroups_are_asked_for_where_there_are_some() {
        let of = |said, architecture| prefill(said, Architecture(architecture));
        let [warps, warpgroups, tried] = [Prefill::Warps, Prefill::Warpgroups, Prefill::Tried];
        assert_eq!(
            [of(None, 90), of(None, 80), of(Some("mma"), 90), of(Some("wgmma"), 90)],
            [Ok(tried), Ok(warps), Ok(warps), Ok(warpgroups)]
        );
        assert_eq!(of(Some("turns"), 90), Ok(Prefill::Turns));
        for (architecture, said) in [(89, "wgmma"), (100, "wgmma"), (80, "turns")] {
            let why = of(Some(said), architecture).unwrap_err().to_string();
            assert!(
                why.contains(&format!("BALLAST_CUDA_PREFILL is `{said}`")) && why.contains("9.0"),
                "{why}"
            );
        }
    }
}
