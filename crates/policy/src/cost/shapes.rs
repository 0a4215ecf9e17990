//! Sizes of published models by name, for simulations of machines and models that are not at hand.

use super::Dims;

/// A model that papers name: what it is called, layers, hidden width, heads, KV heads, width inside the MLP, vocabulary.
type Row = (&'static str, u64, u64, u64, u64, u64, u64);

/// OPT (Zhang et al., 2022, table 1): a plain MLP four times as wide.
const OPT: [Row; 9] = [
    ("opt-125m", 12, 768, 12, 12, 3072, 50272),
    ("opt-350m", 24, 1024, 16, 16, 4096, 50272),
    ("opt-1.3b", 24, 2048, 32, 32, 8192, 50272),
    ("opt-2.7b", 32, 2560, 32, 32, 10240, 50272),
    ("opt-6.7b", 32, 4096, 32, 32, 16384, 50272),
    ("opt-13b", 40, 5120, 40, 40, 20480, 50272),
    ("opt-30b", 48, 7168, 56, 56, 28672, 50272),
    ("opt-66b", 64, 9216, 72, 72, 36864, 50272),
    ("opt-175b", 96, 12288, 96, 96, 49152, 50272),
];

/// Llama and its kin: a gated MLP.
const LLAMA: [Row; 7] = [
    ("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    ("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
    ("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
    ("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
    ("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256),
    ("llama-3-15b", 64, 4096, 32, 8, 14336, 128256),
    ("codellama-34b", 48, 8192, 64, 8, 22016, 32000),
];

/// Positions that models read whose names begin so.
const POSITIONS: [(&str, u64); 5] =
    [("opt-", 2048), ("llama-2-", 4096), ("llama-3.1-", 131_072), ("llama-3-", 8192), ("codellama-", 16384)];

impl Dims {
    /// The sizes of a published model. Spelling is free in case, in hyphens and in the name of the organisation:
    /// `facebook/OPT-30B`, `llama2-13b`; `llama3-8b` is `llama-3.1-8b`, whose sizes are the same.
    pub fn named(name: &str) -> Option<Dims> {
        let wanted = plain(name);
        let find = |rows: &[Row]| rows.iter().find(|row| plain(row.0) == wanted).copied();
        find(&OPT).map(|row| of(row, 2)).or_else(|| find(&LLAMA).map(|row| of(row, 3)))
    }

    /// How many positions a published model reads.
    pub fn positions_of(name: &str) -> Option<u64> {
        let (name, known) = (plain(name), Dims::named(name).is_some());
        let of = POSITIONS.iter().find(|(family, _)| name.starts_with(&plain(family)));
        of.filter(|_| known).map(|(_, positions)| *positions)
    }

    /// Every name that [`Dims::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OPT.iter().chain(&LLAMA).map(|row| row.0)
    }
}

fn plain(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
    name.trim_end_matches("hf").replace("llama38b", "llama3.18b").replace("llama370b", "llama3.170b")
}

fn of((_, layers, hidden, heads, kv_heads, ffn, vocab): Row, mlp_matrices: u64) -> Dims {
    // Of these those with a plain MLP are tied.
    let tied_head = mlp_matrices == 2;
    Dims { layers, hidden, heads, kv_heads, head_dim: hidden / heads, ffn, mlp_matrices, vocab, tied_head }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_name() {
        for (name, layers) in [
            ("opt-6.7b", 32),
            ("facebook/OPT-175B", 96),
            ("llama2-13b", 40),
            ("Llama-2-7b-hf", 32),
            ("meta-llama/Llama-3-70B", 80),
            ("codellama-34b", 48),
        ] {
            assert_eq!(Dims::named(name).map(|dims| dims.layers), Some(layers), "{name}");
        }
        assert_eq!(Dims::named("opt-7b"), None);
        assert!(Dims::names().all(|name| Dims::named(name).and(Dims::positions_of(name)).is_some()));
        assert_eq!(
            ["facebook/OPT-30B", "llama2-13b", "opt-7b"].map(Dims::positions_of),
            [Some(2048), Some(4096), None]
        );
    }

    #[test]
    fn sizes_are_the_published_ones() {
        let parameters = |name: &str| {
            let dims = Dims::named(name).expect("named");
            dims.layers as f64 * dims.layer() + dims.part(spec::Part::Embed)
        };
        for (name, billions) in [("opt-6.7b", 6.65), ("opt-30b", 29.97), ("opt-175b", 174.6)] {
            assert!(
                (parameters(name) / 1e9 - billions).abs() < 0.01 * billions,
                "{name}: {}",
                parameters(name)
            );
        }
    }
}
