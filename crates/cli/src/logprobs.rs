//! Log-probabilities as a table that a person reads: a line for each token.

use model::sampling::TokenLogprobs;
use model::tokenizer::Tokenizer;

/// Log-probability, rank (1 is the likeliest), id and text of each token; then the likeliest in its place.
pub(crate) fn table(tokenizer: &Tokenizer, scores: &[TokenLogprobs]) -> String {
    let text = |id: u32| format!("{:?}", tokenizer.token_text(id));
    let rows: Vec<String> = scores.iter().map(|of| row(of, &text)).collect();
    format!("{:>10} {:>6} {:>7}  token\n{}", "log p", "rank", "id", rows.join("\n"))
}

fn row(of: &TokenLogprobs, text: &dyn Fn(u32) -> String) -> String {
    let taken = format!("{:>10.4} {:>6} {:>7}  {}", of.logprob, of.rank, of.token, text(of.token));
    let likeliest = of.top.iter().map(|&(id, logprob)| format!("{} {logprob:.4}", text(id)));
    match of.top.is_empty() {
        true => taken,
        false => format!("{taken}  likeliest: {}", likeliest.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_and_its_rivals() {
        let of = TokenLogprobs { token: 42, logprob: -1.5, rank: 2, top: vec![(7, -0.25), (42, -1.5)] };
        let text = |id: u32| format!("\"t{id}\"");
        let expected = "   -1.5000      2      42  \"t42\"  likeliest: \"t7\" -0.2500, \"t42\" -1.5000";
        assert_eq!(row(&of, &text), expected);
        assert_eq!(row(&TokenLogprobs { top: vec![], ..of }, &text), "   -1.5000      2      42  \"t42\"");
    }
}
