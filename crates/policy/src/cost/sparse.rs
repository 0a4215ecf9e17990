//! What sparse attention brings of KV that is away from where it is attended (FlexGen, section 5): all keys, and of the
//! values the pages that some query chose; over the link between host and device those tokens of them alone.
//!
//! Queries choose for themselves, and a page of a head is brought for one of its tokens. If each token were chosen as likely as
//! any other, by each query on its own, a page of `T` tokens for `q` queries would be left out with `(1 - s)^(T q)`, a token
//! with `(1 - s)^q`. Trained heads choose neighbours together, which leaves more out: so much is brought at the most, on average.

use crate::pipeline::DiskPath;
use spec::{BLOCK_TOKENS, Load, Tier};

/// A share of the keys that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparse {
    /// Of the keys that a query sees, above 0 and up to 1; at least a page's worth.
    pub share: f64,
    /// Query heads that share a head of keys.
    pub queries: u32,
    /// What a link brings of a page.
    pub link: OverLink,
}

/// Pieces in which values pass the link between host and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLink {
    /// Pages: their numbers are packed together.
    Pages,
    /// Tokens.
    Tokens,
}

impl Sparse {
    /// The share of the values that a hop brings to a decode which sees so many positions.
    pub fn values(self, positions: f64, (from, to): (Tier, Tier)) -> f64 {
        let page = f64::from(BLOCK_TOKENS.0);
        let counts = (self.share * positions).max(page).min(positions) / positions.max(1.0);
        let by_token = self.link == OverLink::Tokens && (from, to) == (Tier::Host, Tier::Device);
        let piece = if by_token { 1.0 } else { page };
        1.0 - (1.0 - counts).max(0.0).powf(piece * f64::from(self.queries))
    }

    /// The share of a decode's KV that a hop brings: half of it is keys.
    pub fn brought(self, positions: f64, hop: (Tier, Tier)) -> f64 {
        0.5 + 0.5 * self.values(positions, hop)
    }
}

/// Positions' worth of KV that `CopyKv` of a batch carries in a layer: of what decodes attend the keys alone, if values are
/// chosen.
pub(super) fn with_keys(
    sparse: Option<Sparse>,
    path: DiskPath,
    load: &Load,
    (from, to): (Tier, Tier),
) -> f64 {
    let keys_alone = sparse.map_or(0, |_| path.decode_copied(load, from, to));
    path.kv_copied(load, from, to) as f64 - 0.5 * keys_alone as f64
}

/// The same of `CopyChosen`, by decodes that see so many positions each.
pub(super) fn chosen(
    sparse: Option<Sparse>,
    path: DiskPath,
    load: &Load,
    (from, to): (Tier, Tier),
    each: f64,
) -> f64 {
    let values = sparse.map_or(1.0, |sparse| sparse.values(each, (from, to)));
    0.5 * path.decode_copied(load, from, to) as f64 * values
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::ByTier;

    #[test]
    fn a_page_comes_if_any_query_chose_any_of_its_tokens() {
        let sparse = |share, queries| Sparse { share, queries, link: OverLink::Tokens };
        let pages = |share, queries, positions: f64| {
            sparse(share, queries).values(positions, (Tier::Disk, Tier::Device))
        };
        assert!((pages(0.1, 1, 2000.0) - (1.0 - 0.9_f64.powi(32))).abs() < 1e-9);
        assert!((pages(0.01, 4, 10_000.0) - (1.0 - 0.99_f64.powi(128))).abs() < 1e-9);
        // No fewer count than a page has tokens, and no more than there are.
        assert!((pages(0.001, 1, 320.0) - (1.0 - 0.9_f64.powi(32))).abs() < 1e-9);
        assert_eq!((pages(0.1, 1, 20.0), pages(1.0, 1, 1000.0)), (1.0, 1.0));
        let up = |link| Sparse { link, ..sparse(0.1, 2) }.values(2000.0, (Tier::Host, Tier::Device));
        assert!((up(OverLink::Tokens) - 0.19).abs() < 1e-9);
        assert_eq!(up(OverLink::Pages), pages(0.1, 2, 2000.0));
    }

    #[test]
    fn keys_come_first_and_what_is_chosen_of_the_values_then() {
        let (disk, device) = (Tier::Disk, Tier::Device);
        let kv_in = ByTier { device: 0, host: 0, disk: 1000 };
        let decode_in = ByTier { device: 0, host: 0, disk: 800 };
        let load = Load { kv_in, decode_in, disk_up: 1000, decode_up: 800, ..Load::default() };
        let sparse = Some(Sparse { share: 0.02, queries: 1, link: OverLink::Tokens });
        let path = DiskPath::Direct;
        assert_eq!(with_keys(sparse, path, &load, (disk, device)), 600.0);
        assert_eq!(with_keys(None, path, &load, (disk, device)), 1000.0);
        let pages = 1.0 - (1.0 - 0.04_f64).powi(32);
        assert!((chosen(sparse, path, &load, (disk, device), 800.0) - 400.0 * pages).abs() < 1e-9);
        assert_eq!(chosen(sparse, path, &load, (disk, Tier::Host), 800.0), 0.0);
        assert_eq!(chosen(sparse, DiskPath::ThroughHost, &load, (disk, device), 800.0), 0.0);
    }
}
