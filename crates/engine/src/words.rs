//! Numbers as people read them.

use std::fmt::Display;

/// `1 request`, `2 requests`: so many of what is named by the word for one of it.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, one: &str) -> String {
    let ending = match one {
        _ if n == N::from(1) => "",
        _ if one.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{n} {one}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_one() {
        assert_eq!(
            [0, 1, 2, 21].map(|n: u64| counted(n, "token")),
            ["0 tokens", "1 token", "2 tokens", "21 tokens"]
        );
        assert_eq!([1, 3].map(|n: usize| counted(n, "batch")), ["1 batch", "3 batches"]);
    }
}
