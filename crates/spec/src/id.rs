//! Names of things: integers that cannot be mistaken for one another.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// As an index into a dense table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id! {
    /// A sequence: one prompt and what is generated from it. Never used twice in a run.
    SeqId(u64)
}
id! {
    /// A KV block of one tier, over all layers that share it and all ranks. Dense from 0 in every tier.
    BlockId(u32)
}
id! {
    /// A step; grows by one from step to step, so that it also orders them.
    StepId(u64)
}
id! {
    /// A device with its worker, dense from 0; ranks of one pipeline stage are neighbours.
    RankId(u16)
}
id! {
    /// One of the `dp` copies of the model.
    ReplicaId(u16)
}

impl StepId {
    /// The step after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Hash of the tokens of a full block and of all blocks before it, and of everything else that its KV depends on
/// (adapter, image). 128 bits, since equal hashes share KV between requests. Hexadecimal in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u128);

impl BlockHash {
    /// Under which a group of layers keeps its block of these tokens: the first under the hash itself.
    pub fn of_group(self, group: usize) -> Self {
        Self(self.0 ^ (group as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }
}

impl Serialize for BlockHash {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        let hash = u128::from_str_radix(&text, 16);
        hash.map(Self).map_err(|e| {
            serde::de::Error::custom(format!("a block hash is hexadecimal, found {text:?}: {e}"))
        })
    }
}
