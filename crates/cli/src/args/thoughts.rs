//! What becomes of a model's thoughts, and how many there may be.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use model::template::ChatTemplate;
use model::thoughts::{Manner, Shown};
use model::tokenizer::Tokenizer;

use crate::console::note;

#[derive(Args)]
pub(crate) struct ThoughtsArgs {
    /// What a model thinks before it answers: told beside the answer of a chat, as `reasoning_content`, or left in its text.
    #[arg(long, value_enum, default_value_t = ReasoningFormat::Auto, value_name = "FORMAT", help_heading = "Engine")]
    pub(crate) reasoning_format: ReasoningFormat,
    /// Tokens that thoughts may have where a request does not say (thinking_token_budget); then they are closed, and the model
    /// answers. 0: it does not think; -1: no limit.
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)),
        help_heading = "Engine"
    )]
    reasoning_budget: i64,
    /// Taken, and changes nothing: thoughts are told apart wherever the template shows how the model marks them.
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    reasoning_parser: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningFormat {
    /// Beside the answer, where the chat template shows how the model marks them; a form holds behind them.
    #[value(alias = "deepseek")]
    Auto,
    /// In the text.
    None,
}

impl ThoughtsArgs {
    /// Says what changes nothing.
    pub(crate) fn note(&self) {
        if let Some(name) = &self.reasoning_parser {
            note!(
                "--reasoning-parser {name}: the chat template says how thoughts are marked (--reasoning-format)"
            );
        }
    }

    /// Refuses a limit that cannot be kept.
    pub(crate) fn check(&self, template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Result<()> {
        if self.most().is_none() {
            return Ok(());
        }
        let markers = template.and_then(ChatTemplate::thoughts);
        if markers.is_some_and(|markers| !markers.are_tokens(tokenizer)) {
            bail!(
                "--reasoning-budget: what marks this model's thoughts is no token of it, so that nothing closes them"
            );
        }
        Ok(())
    }

    fn most(&self) -> Option<u32> {
        u32::try_from(self.reasoning_budget).ok()
    }

    /// Their limit, for the record of a batch.
    pub(crate) fn budget(&self) -> String {
        self.most().map_or("none".into(), |most| most.to_string())
    }

    /// What becomes of thoughts where a request does not say.
    pub(crate) fn manner(&self) -> Manner {
        let shown = match self.reasoning_format {
            ReasoningFormat::Auto => Shown::Beside,
            ReasoningFormat::None => Shown::InText,
        };
        Manner { shown, most: self.most() }
    }
}
