//! What becomes of a model's thoughts.

use clap::{Args, ValueEnum};
use model::template::ChatTemplate;

use crate::console::note;

#[derive(Args)]
pub(crate) struct ThoughtsArgs {
    /// What a model thinks before it answers: told beside the answer of a chat, as `reasoning_content`, or left in its text.
    #[arg(long, value_enum, default_value_t = ReasoningFormat::Auto, value_name = "FORMAT", help_heading = "Engine")]
    pub(crate) reasoning_format: ReasoningFormat,
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

    /// The template as requests are to be read by it.
    pub(crate) fn of(&self, template: ChatTemplate) -> ChatTemplate {
        match self.reasoning_format {
            ReasoningFormat::Auto => template,
            ReasoningFormat::None => template.with_thoughts(None),
        }
    }
}
