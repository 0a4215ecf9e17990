//! Flags that choose tokens, and what is told of them.

use clap::Args;
use model::sampling::Overrides;

/// Flags that choose the next token.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Most tokens to generate [default: 256 for one prompt, in a chat as many as there is room for].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Sampling")]
    pub(crate) max_tokens: Option<u32>,
    /// Fewest tokens to generate.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) min_tokens: Option<u32>,
    /// 0 takes the likeliest token every time [default: the model's own; else 0, or 1 with --top-k, --top-p, --min-p, --seed or several answers].
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) temperature: Option<f32>,
    /// Choose among so many of the likeliest tokens.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) top_k: Option<i64>,
    /// Choose among the likeliest tokens that make up this share of probability.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens at least this probable, relative to the likeliest.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) min_p: Option<f32>,
    /// Divides the logits of tokens already there.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of tokens already generated.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens already generated, for each time.
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) frequency_penalty: Option<f32>,
    /// The same seed gives the same tokens, whatever else runs (on a GPU but for large batches).
    #[arg(long, allow_negative_numbers = true, help_heading = "Sampling")]
    pub(crate) seed: Option<i64>,
    /// End before this text; may be given several times.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) stop: Vec<String>,
    /// End at these tokens, which are not shown; ids with commas between, or given several times.
    #[arg(long, value_name = "IDS", value_delimiter = ',', help_heading = "Sampling")]
    pub(crate) stop_token_ids: Vec<u32>,
    /// Add to the logits of tokens, from -100 (never) to 100 (always): `ID=BIAS`, with commas between, or given several times.
    #[arg(long, value_name = "ID=BIAS", value_delimiter = ',', value_parser = parse_bias, help_heading = "Sampling")]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Go on after end-of-text.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    /// Whether something was given that means nothing where the likeliest token is taken every time.
    pub(crate) fn chooses(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some() || self.seed.is_some()
    }

    /// What was given, by the names of the API.
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop: (!self.stop.is_empty()).then(|| self.stop.clone()),
            stop_token_ids: (!self.stop_token_ids.is_empty()).then(|| self.stop_token_ids.clone()),
            logit_bias: (!self.logit_bias.is_empty()).then(|| self.logit_bias.clone()),
            ignore_eos: self.ignore_eos.then_some(true),
            ..Overrides::default()
        }
    }
}

/// Flags for the answers to one prompt; a chat has none of these.
#[derive(Args)]
pub(crate) struct AnswerArgs {
    /// Answers, one after the other; each has a seed of its own, from --seed on.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Answers")]
    pub(crate) n: Option<u32>,
    /// After an answer, list the log-probability of each of its tokens and of so many of the likeliest in its place.
    #[arg(long, value_name = "TOKENS", help_heading = "Answers")]
    pub(crate) logprobs: Option<u32>,
    /// The same for each token of the prompt.
    #[arg(long, value_name = "TOKENS", help_heading = "Answers")]
    pub(crate) prompt_logprobs: Option<u32>,
}

impl AnswerArgs {
    /// A flag that was given, if one was.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--n", self.n.is_some()),
            ("--logprobs", self.logprobs.is_some()),
            ("--prompt-logprobs", self.prompt_logprobs.is_some()),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once(['=', ':']).and_then(|(id, bias)| {
        Some((id.trim().parse().ok()?, bias.trim().parse::<f32>().ok().filter(|b| b.is_finite())?))
    });
    parsed.ok_or_else(|| "expected a token's id, `=` and a number, as in 42=-100".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases() {
        assert_eq!(parse_bias("42=-100"), Ok((42, -100.0)));
        assert_eq!(parse_bias("0: 1.5"), Ok((0, 1.5)));
        for wrong in ["", "42", "=1", "-1=2", "1=much", "1=nan", "4294967296=1"] {
            assert!(parse_bias(wrong).is_err(), "{wrong:?}");
        }
    }
}
