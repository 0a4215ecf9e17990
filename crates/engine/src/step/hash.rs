//! Names of full KV blocks: a hash of their tokens and of everything before them.
//!
//! KV is shared between requests on equal hashes, so they must not collide even for somebody who tries: SHA-256 with a key
//! that is drawn when the process begins, cut to 128 bits. Without the key nobody can look for texts that collide.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use kernels::attention::BLOCK_TOKENS;
use sha2::{Digest, Sha256};
use spec::BlockHash;

/// Hashes of the full blocks of a sequence, extended as it grows.
#[derive(Clone, Debug)]
pub(crate) struct BlockHashes {
    salt: u128,
    hashes: Vec<BlockHash>,
}

impl BlockHashes {
    /// No blocks yet. Sequences with different salts never share.
    pub(crate) fn new(salt: u128) -> BlockHashes {
        BlockHashes { salt, hashes: Vec::new() }
    }

    /// The hash of block `index`, which must be full in `tokens` (the whole sequence so far).
    pub(crate) fn of_block(&mut self, tokens: &[u32], index: usize) -> BlockHash {
        while self.hashes.len() <= index {
            let next = self.hashes.len();
            let before = self.hashes.last().map_or(self.salt, |hash| hash.0);
            self.hashes.push(chain(*KEY, before, &tokens[next * BLOCK_TOKENS..][..BLOCK_TOKENS]));
        }
        self.hashes[index]
    }

    /// Hashes of all blocks that `tokens` fills.
    pub(crate) fn all(&mut self, tokens: &[u32]) -> Vec<BlockHash> {
        (0..tokens.len() / BLOCK_TOKENS).map(|index| self.of_block(tokens, index)).collect()
    }
}

/// A number for a text, different for different texts, never 0 but by a collision.
pub(crate) fn of_text(text: &str) -> u128 {
    cut(Sha256::digest(text.as_bytes()).as_slice())
}

fn cut(digest: &[u8]) -> u128 {
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(first)
}

/// This process's: hashes mean nothing outside it.
static KEY: LazyLock<u128> = LazyLock::new(|| {
    let drawn = RandomState::new();
    u128::from(drawn.hash_one(0)) << 64 | u128::from(drawn.hash_one(1))
});

fn chain(key: u128, before: u128, tokens: &[u32]) -> BlockHash {
    let mut hash = Sha256::new();
    hash.update(key.to_le_bytes());
    hash.update(before.to_le_bytes());
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    BlockHash(cut(hash.finalize().as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_everything_before_it() {
        let tokens: Vec<u32> = (0..100).collect();
        let mut other = tokens.clone();
        other[3] = 9;
        let (a, b) = (BlockHashes::new(0).all(&tokens), BlockHashes::new(0).all(&other));
        assert_eq!(a.len(), 3);
        assert!(a.iter().zip(&b).all(|(a, b)| a != b));
        assert_ne!(a, BlockHashes::new(1).all(&tokens));
    }

    #[test]
    fn a_hash_depends_on_the_key_which_nobody_knows() {
        assert_ne!(chain(1, 7, &[1, 2, 3]), chain(2, 7, &[1, 2, 3]));
        let tokens: Vec<u32> = (0..BLOCK_TOKENS as u32).collect();
        assert_ne!(BlockHashes::new(0).all(&tokens), [chain(0, 0, &tokens)], "a key was drawn");
    }

    #[test]
    fn growing_gives_the_hashes_of_the_whole() {
        let tokens: Vec<u32> = (0..96).map(|t| t * 7).collect();
        let mut grown = BlockHashes::new(5);
        let first = grown.of_block(&tokens[..40], 0);
        assert_eq!(
            vec![first, grown.of_block(&tokens, 1), grown.of_block(&tokens, 2)],
            BlockHashes::new(5).all(&tokens)
        );
    }
}
