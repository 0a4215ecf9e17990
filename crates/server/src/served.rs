//! The model behind a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Engine;
use model::api::schema::Offered;
use model::api::{Context, OwnTemplates, Streaming};
use model::sampling::GenerationConfig;
use model::template::{ChatTemplate, SpecialTexts, WallClock};
use model::thoughts::Manner;
use model::tokenizer::Tokenizer;

use crate::clock::unix_now;

/// A running engine, and what turns text into its tokens and back.
pub struct Served {
    /// Runs the model.
    pub engine: Engine,
    /// Names that requests may use; the first is the usual one.
    pub names: Vec<String>,
    /// Of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// For chats, if the model has one.
    pub template: Option<ChatTemplate>,
    /// For chats with tools, where that is another.
    pub tool_template: Option<ChatTemplate>,
    /// For templates.
    pub special: SpecialTexts,
    /// The publisher's defaults.
    pub generation: GenerationConfig,
    /// Everything beside a request that decides about its answer, by what it is called: a batch that another server began
    /// goes on where nothing of it has changed.
    pub settings: BTreeMap<String, String>,
    /// Log-probabilities per token that a request may ask for.
    pub max_logprobs: u32,
    /// Whether conversations may bring a chat template.
    pub own_templates: OwnTemplates,
    /// What becomes of thoughts where a request does not say.
    pub thoughts: Manner,
}

impl Served {
    /// What its API describes of it.
    pub(crate) fn offered(&self) -> Offered {
        Offered {
            vocab: self.engine.spec().vocab,
            max_logprobs: self.max_logprobs,
            own_templates: self.own_templates,
        }
    }

    /// What requests are read against.
    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            tokenizer: &self.tokenizer,
            template: self.template.as_ref(),
            tool_template: self.tool_template.as_ref(),
            special: self.special.clone(),
            generation: &self.generation,
            served: &self.names,
            vocab_size: self.engine.spec().vocab,
            context_len: self.engine.hold().max_model_len,
            max_logprobs: self.max_logprobs,
            own_templates: self.own_templates,
            thoughts: self.thoughts,
            streaming: Streaming::Offered,
            now: WallClock { unix_s: unix_now() as i64, utc_offset_s: 0 },
        }
    }
}
