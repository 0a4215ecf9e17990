//! Virtual text: what stands at each position of a sequence, as a hash of everything up to it.

use crate::rng::mix;
use spec::{BLOCK_TOKENS, BlockHash, SeqId, Tokens};

/// The text of a sequence: a beginning that it has in common with others, then its own.
#[derive(Clone, Debug, Default)]
pub struct Text {
    seq: u64,
    topic: u64,
    common: u32,
    /// Hash of the tokens up to each position.
    chain: Vec<u64>,
}

impl Text {
    /// The text of `seq`, of which the first `common` tokens are those of every text on `topic`.
    pub fn new(seq: SeqId, topic: u64, common: Tokens) -> Self {
        Self { seq: seq.0, topic, common: common.0, chain: Vec::new() }
    }

    /// Hash of the tokens up to and including this position; whatever depends on them alone is equal where it is.
    pub fn upto(&mut self, position: u32) -> u64 {
        while self.chain.len() <= position as usize {
            let at = self.chain.len() as u64;
            let source = if at < u64::from(self.common) { mix(self.topic) } else { mix(!self.seq) };
            let before = self.chain.last().copied().unwrap_or_default();
            self.chain.push(mix(before ^ mix(source.wrapping_add(at))));
        }
        self.chain[position as usize]
    }

    /// Gives back what is only kept to be asked for again.
    pub fn forget(&mut self) {
        self.chain = Vec::new();
    }

    /// The hash of a full block, by its index.
    pub fn block(&mut self, index: u32) -> BlockHash {
        let last = self.upto((index + 1) * BLOCK_TOKENS.0 - 1);
        BlockHash(u128::from(last) << 64 | u128::from(mix(last)))
    }

    /// Hashes of all blocks that the first `tokens` fill.
    pub fn blocks(&mut self, tokens: Tokens) -> Vec<BlockHash> {
        (0..tokens.full_blocks() as u32).map(|index| self.block(index)).collect()
    }
}
