//! What the endpoints share: the fields that belong to generation, and what becomes of them.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::format::{Asked, asked};
use super::truncation::Truncation;
use super::{
    ApiError, Context, Kept, Streaming, UnknownFields, chat, completion, messages, responses, words,
};
use crate::sampling::{Overrides, SamplingParams};
use crate::thoughts::{Apart, Thoughts};
use crate::tokenizer::Special;
use crate::tools::Calls;

/// Most choices of one request.
pub const MAX_CHOICES: u32 = 128;
/// Most prompts of one request, as in vLLM.
pub const MAX_PROMPTS: usize = 1024;

/// Which endpoint a request came to; it decides the shape of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl Endpoint {
    /// Those that a batch may ask.
    pub const OF_BATCHES: [Endpoint; 3] = [Endpoint::Completions, Endpoint::Chat, Endpoint::Responses];

    /// Where it is.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Messages => "/v1/messages",
        }
    }

    /// That of a batch, by its path; else what would be one, in words.
    pub fn of_batch(path: &str) -> Result<Endpoint, String> {
        let found = Self::OF_BATCHES.into_iter().find(|endpoint| endpoint.path() == path);
        found.ok_or_else(|| format!("expected one of {}", Self::OF_BATCHES.map(Endpoint::path).join(", ")))
    }

    /// Reads the body of a request to it.
    ///
    /// # Errors
    /// What is wrong with the body, or not offered.
    pub fn read(self, body: &Value, context: &Context) -> Result<Generate, ApiError> {
        match self {
            Endpoint::Completions => completion(body, context),
            Endpoint::Chat => chat(body, context),
            Endpoint::Responses => responses(body, context),
            Endpoint::Messages => messages(body, context),
        }
    }
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In one body.
    Whole,
    /// As events; with a last one that counts tokens, or with counts in each.
    Stream {
        /// `stream_options.include_usage`
        usage: bool,
        /// `stream_options.continuous_usage_stats`
        continuous_usage: bool,
    },
}

/// A request as plain data: what to generate, and how to show it.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// Where it came to.
    pub endpoint: Endpoint,
    /// The served name that the answer carries.
    pub model: String,
    /// Token ids of each prompt; none is empty.
    pub prompts: Vec<Vec<u32>>,
    /// Parameters, complete and checked; without `max_tokens` an answer may be as long as there is room. With 0 only the prompt
    /// is evaluated.
    pub params: SamplingParams,
    /// Tokens of a prompt and its answer that there is room for.
    pub context_len: usize,
    /// Choices for each prompt.
    pub n: u32,
    /// Begin each text with its prompt: for each of these, which of its tokens the client gave. Those around them are the
    /// tokenizer's own, and not shown.
    pub echo: Option<Vec<Range<usize>>>,
    /// How the answer is sent.
    pub delivery: Delivery,
    /// Add `token_ids` and `prompt_token_ids`.
    pub return_token_ids: bool,
    /// Show tokens in logprobs as `token_id:17`.
    pub tokens_as_ids: bool,
    /// How tool calls in the text are read, if there may be some.
    pub calls: Option<Calls>,
    /// How thoughts are told from the answer, if there may be some.
    pub thoughts: Option<Thoughts>,
    /// Partitions the prefix cache: a digest of what the client sent, which may be long.
    pub cache_salt: Option<String>,
    /// What the client calls the answer.
    pub request_id: Option<String>,
    /// What an answer of `/v1/responses` needs of it.
    pub kept: Option<Arc<Kept>>,
    /// Fields that nobody knows: to be counted, not refused.
    pub unknown_fields: UnknownFields,
}

impl Generate {
    /// The same, if its choices do not repeat more of its prompts than anybody reads: those are computed once.
    ///
    /// # Errors
    /// What is too much.
    pub(super) fn checked(self) -> Result<Generate, ApiError> {
        let tokens = self.n as usize * self.prompts.iter().map(Vec::len).sum::<usize>();
        if self.n == 1 || tokens <= MAX_SCORES || (self.echo.is_none() && !self.return_token_ids) {
            return Ok(self);
        }
        let message = format!(
            "n: {tokens} tokens of prompts, which each choice repeats, where {MAX_SCORES} are possible; ask for fewer choices, or \
             without echo and return_token_ids"
        );
        Err(ApiError::invalid("n", message))
    }

    /// How many tokens an answer to a prompt of so many may have.
    pub fn answer_len(&self, prompt: usize) -> usize {
        let left = self.context_len.saturating_sub(prompt);
        self.params.max_tokens.map_or(left, |most| left.min(most as usize))
    }

    /// How many sequences it is: the choices of all its prompts.
    pub fn sequences(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// Whether the client is told what the model thinks.
    pub(super) fn tells_thoughts(&self) -> bool {
        self.thoughts.as_ref().is_some_and(Thoughts::are_told)
    }

    /// What its answers say and think, if that is to be told apart.
    pub(super) fn apart(&self, text: &str) -> Apart {
        match &self.thoughts {
            Some(thoughts) => thoughts.split().whole(text),
            None => Apart { text: text.to_owned(), ..Apart::default() },
        }
    }

    /// Parameters of one choice: a seed gives each its own, as in vLLM.
    pub fn params_of(&self, choice: u32) -> SamplingParams {
        let mut params = self.params.clone();
        params.seed = params.seed.map(|seed| seed.wrapping_add(u64::from(choice)));
        params
    }
}

/// Log-probabilities of prompts in one request, whose every choice has its own: some 70 bytes each, as they are sent.
const MAX_SCORES: usize = 1 << 20;
/// The same in a stream, whose first event has them all.
const MAX_STREAMED_SCORES: usize = 1 << 16;

/// The fields that both endpoints have, apart from prompts and logprobs.
pub(super) struct Common {
    pub(super) model: String,
    pub(super) overrides: Overrides,
    pub(super) format: Option<Asked>,
    pub(super) n: u32,
    pub(super) delivery: Delivery,
    pub(super) return_token_ids: bool,
    pub(super) tokens_as_ids: bool,
    pub(super) cache_salt: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) truncation: Truncation,
    /// Words that must not come.
    bad_words: Vec<String>,
    /// An answer may be shorter than is asked for, where there is no more room.
    pub(super) takes_what_fits: bool,
    /// The field that says how long an answer may be, for errors.
    pub(super) max_tokens_field: &'static str,
    /// The field that asks for scores of prompts.
    pub(super) prompt_scores_field: &'static str,
}

impl Common {
    pub(super) fn read(fields: &mut Fields, context: &Context) -> Result<Self, ApiError> {
        refuse_what_is_not_built(fields)?;
        let format = asked(fields)?;
        let n = fields.count("n")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            return Err(ApiError::invalid("n", format!("n: expected 1 to {MAX_CHOICES}, found {n}")));
        }
        if fields.count("best_of")?.is_some_and(|best_of| best_of != n) {
            return Err(ApiError::not_supported("best_of", "another value than n"));
        }
        let model = model(fields, context)?;
        let delivery = delivery(fields, context)?;
        let overrides = overrides(fields)?;
        if overrides.prompt_logprobs.is_some() && delivery != Delivery::Whole {
            return Err(ApiError::invalid("prompt_logprobs", "prompt_logprobs cannot be streamed"));
        }
        Ok(Common {
            model,
            overrides,
            format,
            n,
            delivery,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
            cache_salt: fields.digest("cache_salt")?,
            request_id: fields.text("request_id")?,
            truncation: Truncation::read(fields)?,
            bad_words: words::read(fields)?,
            takes_what_fits: false,
            max_tokens_field: "max_tokens",
            prompt_scores_field: "prompt_logprobs",
        })
    }

    /// Puts everything together, and checks what depends on the prompts.
    pub(super) fn finish(
        self,
        endpoint: Endpoint,
        prompts: Vec<Vec<u32>>,
        default_max_tokens: Option<u32>,
        fields: Fields,
        context: &Context,
    ) -> Result<Generate, ApiError> {
        let prompt_field = match endpoint {
            Endpoint::Completions => "prompt",
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => "messages",
        };
        let default =
            [default_max_tokens, context.generation.overrides.max_tokens].into_iter().flatten().min();
        let wanted = self.overrides.max_tokens.or(default);
        let prompts = self.checked_prompts(prompts, prompt_field, wanted, context)?;
        let limits = context.limits();
        let mut params = SamplingParams::resolve(&self.overrides, context.generation, limits)?;
        let room = self.room(&prompts, prompt_field, context)?;
        params.max_tokens = Some(wanted.map_or(room, |wanted| wanted.min(room)));
        params.check(limits)?;
        params.max_tokens = wanted;
        self.check_scores(&prompts, params.prompt_logprobs)?;
        params.bad_words = words::tokens(&self.bad_words, context)?;
        if let Some(format) = &self.format {
            params.grammar = Some(format.compile(context.tokenizer)?);
        }
        Generate {
            endpoint,
            model: self.model,
            prompts,
            params,
            context_len: context.context_len,
            n: self.n,
            echo: None,
            delivery: self.delivery,
            return_token_ids: self.return_token_ids,
            tokens_as_ids: self.tokens_as_ids,
            calls: None,
            thoughts: None,
            cache_salt: self.cache_salt,
            request_id: self.request_id,
            kept: None,
            unknown_fields: fields.unknown(),
        }
        .checked()
    }

    /// Cuts a text into tokens. What is too long whatever it says is refused before.
    pub(super) fn encode(
        &self,
        field: &str,
        text: &str,
        special: Special,
        context: &Context,
    ) -> Result<Vec<u32>, ApiError> {
        let least = context.tokenizer.least_tokens(text);
        if self.truncation.is_off() && least > context.context_len {
            return Err(ApiError::far_too_long(field, least, context.context_len));
        }
        context.tokenizer.encode(text, special).map_err(|error| ApiError::invalid(field, error.to_string()))
    }

    fn checked_prompts(
        &self,
        mut prompts: Vec<Vec<u32>>,
        field: &'static str,
        wanted: Option<u32>,
        context: &Context,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        // What is cut leaves room for the answer, unless that is a default for which there is none.
        let answer = wanted.map_or(1, |wanted| wanted.max(1)) as usize;
        let answer = if answer < context.context_len { answer } else { self.least_answer() };
        let fits = context.context_len.saturating_sub(answer);
        for prompt in &mut prompts {
            self.truncation.cut(prompt, fits);
            if prompt.is_empty() {
                return Err(ApiError::invalid(
                    field,
                    "the prompt is empty: there are no tokens to go on from",
                ));
            }
            if let Some(id) = prompt.iter().find(|&&id| id as usize >= context.vocab_size) {
                let message = format!("{field}: token id {id}; ids are below {}", context.vocab_size);
                return Err(ApiError::invalid(field, message));
            }
        }
        Ok(prompts)
    }

    /// Scores of an answer's own tokens come one by one, at the model's pace; those of prompts are there at once for a few bytes.
    fn check_scores(&self, prompts: &[Vec<u32>], rivals: Option<u32>) -> Result<(), ApiError> {
        let Some(rivals) = rivals else { return Ok(()) };
        let tokens = self.n as usize * prompts.iter().map(Vec::len).sum::<usize>();
        let scores = tokens * (rivals as usize + 1);
        let most = if self.delivery == Delivery::Whole { MAX_SCORES } else { MAX_STREAMED_SCORES };
        if scores <= most {
            return Ok(());
        }
        let field = self.prompt_scores_field;
        let message = format!(
            "{field}: {scores} log-probabilities of prompts, of all choices together, where {most} are possible; ask for fewer of \
             each token, for fewer choices, or for the prompts in several requests"
        );
        Err(ApiError::invalid(field, message))
    }

    /// Tokens that there must be room for behind a prompt: one is computed where only scores are asked for too.
    fn least_answer(&self) -> usize {
        if self.takes_what_fits {
            return 1;
        }
        self.overrides.max_tokens.map_or(1, |asked| asked.max(1)) as usize
    }

    /// How many tokens there is room for behind the longest prompt: as many as are asked for, at least.
    fn room(
        &self,
        prompts: &[Vec<u32>],
        prompt_field: &'static str,
        context: &Context,
    ) -> Result<u32, ApiError> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let left = context.context_len.saturating_sub(longest);
        if self.least_answer() > left {
            let shorten = [prompt_field, self.max_tokens_field];
            let asked = self.overrides.max_tokens.filter(|_| !self.takes_what_fits);
            let answer = asked.unwrap_or(0) as usize;
            return Err(ApiError::too_long(shorten, longest, answer, context.context_len));
        }
        Ok(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

pub(super) fn model(fields: &mut Fields, context: &Context) -> Result<String, ApiError> {
    let first = || context.served.first().cloned().unwrap_or_default();
    match fields.text("model")? {
        None => Ok(first()),
        Some(name) if context.served.contains(&name) => Ok(name),
        Some(name) => Err(ApiError::model_not_found(&name, context.served)),
    }
}

fn delivery(fields: &mut Fields, context: &Context) -> Result<Delivery, ApiError> {
    let options = fields.object("stream_options")?;
    let flag = |options: &Map<String, Value>, name: &str| options.get(name) == Some(&json!(true));
    if !fields.flag("stream")?.unwrap_or(false) {
        return match options {
            None => Ok(Delivery::Whole),
            Some(_) => Err(ApiError::invalid("stream_options", "stream_options without stream")),
        };
    }
    if context.streaming == Streaming::Refused {
        return Err(ApiError::not_supported("stream", "streaming in a batch"));
    }
    let says = |name: &str| options.is_some_and(|options| flag(options, name));
    let refuses = |name: &str| options.is_some_and(|options| options.get(name) == Some(&Value::Bool(false)));
    let continuous_usage = says("continuous_usage_stats") && !refuses("include_usage");
    Ok(Delivery::Stream { usage: says("include_usage") || continuous_usage, continuous_usage })
}

fn overrides(fields: &mut Fields) -> Result<Overrides, ApiError> {
    Ok(Overrides {
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        top_k: fields.integer("top_k")?,
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number_or("repetition_penalty", "repeat_penalty")?,
        presence_penalty: fields.number("presence_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        seed: fields.integer("seed")?,
        max_tokens: max_tokens(fields)?,
        min_tokens: fields.count("min_tokens")?,
        stop: fields.texts("stop")?,
        stop_token_ids: fields.ids("stop_token_ids")?,
        ignore_eos: fields.flag("ignore_eos")?,
        include_stop_str_in_output: fields.flag("include_stop_str_in_output")?,
        skip_special_tokens: fields.flag("skip_special_tokens")?,
        logit_bias: fields.bias("logit_bias")?,
        allowed_token_ids: fields.ids("allowed_token_ids")?,
        prompt_logprobs: fields.count("prompt_logprobs")?,
        logprobs: None,
    })
}

/// By llama.cpp's name too, whose -1 says nothing.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let (most, other) = (fields.count("max_tokens")?, fields.integer("n_predict")?);
    let other = other.filter(|most| *most >= 0).map(|most| u32::try_from(most).unwrap_or(u32::MAX));
    Ok(most.or(other))
}

/// Fields that change the answer and that nothing here obeys: silence would be a lie.
fn refuse_what_is_not_built(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("use_beam_search", &[json!(false)], "beam search")?;
    fields.refuse("suffix", &[json!("")], "filling in the middle")?;
    fields.refuse("priority", &[json!(0)], "a priority")?;
    fields.refuse("modalities", &[json!(["text"])], "another modality than text")?;
    fields.refuse("functions", &[json!([])], "the older form of `tools`")?;
    fields.refuse("function_call", &[json!("none"), json!("auto")], "the older form of `tool_choice`")?;
    fields.refuse("audio", &[], "audio")
}
