//! Sampling parameters: as asked for ([`Overrides`]) and as resolved ([`SamplingParams`]). Names,
//! ranges and defaults are those of OpenAI's API and of vLLM.

use std::sync::Arc;

use super::{GenerationConfig, Grammar, ParamError};

/// Most log-probabilities per token that may be asked for, where nobody says otherwise.
pub const MAX_LOGPROBS: u32 = 20;
/// Most ids that end a text by name.
pub const MAX_STOP_IDS: usize = 1024;
/// Most words that must not come.
pub const MAX_BAD_WORDS: usize = 128;
/// Most stop strings. vLLM has no limit, and code evaluations ask for more than the four of OpenAI's API; every token is
/// compared with each of them.
pub const MAX_STOPS: usize = 128;
/// Longest stop string, in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Below this temperature the most probable token is taken.
pub(super) const GREEDY_BELOW: f32 = 1e-5;

/// Parameters as someone asked for them; what is absent is up to the next in line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// At least 0; 0 takes the most probable token.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// At least 1; 0 and -1 are off.
    pub top_k: Option<i64>,
    /// In [0, 1]; 0 is off.
    pub min_p: Option<f32>,
    /// Above 0; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// In [-2, 2].
    pub presence_penalty: Option<f32>,
    /// In [-2, 2].
    pub frequency_penalty: Option<f32>,
    /// Any 64 bits.
    pub seed: Option<i64>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Tokens before a text may end.
    pub min_tokens: Option<u32>,
    /// Strings that end a text.
    pub stop: Option<Vec<String>>,
    /// Ids that end a text, at most [`MAX_STOP_IDS`].
    pub stop_token_ids: Option<Vec<u32>>,
    /// Go on past end-of-sequence ids.
    pub ignore_eos: Option<bool>,
    /// Keep the stop string in the text.
    pub include_stop_str_in_output: Option<bool>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: Option<bool>,
    /// Added to the logits of tokens: in [-100, 100]. At most one for each id that there is.
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// The only tokens that may come; at most as many as there are ids.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of this many tokens beside the one taken.
    pub logprobs: Option<u32>,
    /// The same for each token of the prompt.
    pub prompt_logprobs: Option<u32>,
}

/// What a model allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ids are below this.
    pub vocab_size: u32,
    /// Most log-probabilities per token that may be asked for.
    pub max_logprobs: u32,
}

impl Limits {
    /// Checks how many log-probabilities per token `param` asks for.
    pub(crate) fn check_logprobs(self, param: &'static str, asked: Option<u32>) -> Result<(), ParamError> {
        let most = self.max_logprobs;
        let Some(found) = asked.filter(|&asked| asked > most) else { return Ok(()) };
        let expected = match most >= self.vocab_size {
            true => format!("at most {most}: the model has no more tokens"),
            false => format!("at most {most} (`ballast serve --max-logprobs N` offers more)"),
        };
        Err(ParamError::new(param, expected, found))
    }
}

/// Parameters of one sequence, complete and within their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// At least 0; 0 takes the most probable token.
    pub temperature: f32,
    /// In (0, 1]; 1 is off.
    pub top_p: f32,
    /// None is off.
    pub top_k: Option<u32>,
    /// In [0, 1]; 0 is off.
    pub min_p: f32,
    /// Above 0; 1 is off.
    pub repetition_penalty: f32,
    /// In [-2, 2]; 0 is off.
    pub presence_penalty: f32,
    /// In [-2, 2]; 0 is off.
    pub frequency_penalty: f32,
    /// None: the one who starts the sequence chooses one.
    pub seed: Option<u64>,
    /// None: as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Tokens before a text may end.
    pub min_tokens: u32,
    /// Strings that end a text; all choices of a request share the list, and those below.
    pub stop: Arc<[String]>,
    /// Ids that end a text.
    pub stop_token_ids: Arc<[u32]>,
    /// Go on past end-of-sequence ids.
    pub ignore_eos: bool,
    /// Keep the stop string in the text.
    pub include_stop_str_in_output: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Added to the logits of tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// The only tokens that may come.
    pub allowed_token_ids: Option<Arc<[u32]>>,
    /// Words that must not come, as tokens; none is empty.
    pub bad_words: Arc<[Vec<u32>]>,
    /// Log-probabilities of this many tokens beside the one taken.
    pub logprobs: Option<u32>,
    /// The same for each token of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// What the text must match.
    pub grammar: Option<Grammar>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            max_tokens: None,
            min_tokens: 0,
            stop: Arc::default(),
            stop_token_ids: Arc::default(),
            ignore_eos: false,
            include_stop_str_in_output: false,
            skip_special_tokens: true,
            logit_bias: Arc::default(),
            allowed_token_ids: None,
            bad_words: Arc::default(),
            logprobs: None,
            prompt_logprobs: None,
            grammar: None,
        }
    }
}

impl SamplingParams {
    /// The most probable token each time.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Whether the most probable token is taken, so that no random number is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Request first, then `generation_config.json`, then OpenAI's defaults; checked.
    pub fn resolve(
        request: &Overrides,
        published: &GenerationConfig,
        limits: Limits,
    ) -> Result<Self, ParamError> {
        let mut params = SamplingParams::default();
        params.apply(&published.overrides)?;
        params.apply(request)?;
        params.check(limits)?;
        Ok(params)
    }

    pub(super) fn apply(&mut self, o: &Overrides) -> Result<(), ParamError> {
        set(&mut self.temperature, &o.temperature);
        set(&mut self.top_p, &o.top_p);
        set(&mut self.min_p, &o.min_p);
        set(&mut self.repetition_penalty, &o.repetition_penalty);
        set(&mut self.presence_penalty, &o.presence_penalty);
        set(&mut self.frequency_penalty, &o.frequency_penalty);
        set(&mut self.min_tokens, &o.min_tokens);
        share(&mut self.stop, &o.stop);
        share(&mut self.stop_token_ids, &o.stop_token_ids);
        set(&mut self.ignore_eos, &o.ignore_eos);
        set(&mut self.include_stop_str_in_output, &o.include_stop_str_in_output);
        set(&mut self.skip_special_tokens, &o.skip_special_tokens);
        share(&mut self.logit_bias, &o.logit_bias);
        if let Some(k) = o.top_k {
            self.top_k = top_k(k)?;
        }
        self.seed = o.seed.map(|seed| seed as u64).or(self.seed);
        self.max_tokens = o.max_tokens.or(self.max_tokens);
        self.allowed_token_ids =
            o.allowed_token_ids.as_deref().map(Arc::from).or(self.allowed_token_ids.take());
        self.logprobs = o.logprobs.or(self.logprobs);
        self.prompt_logprobs = o.prompt_logprobs.or(self.prompt_logprobs);
        Ok(())
    }

    /// Checks every range.
    pub fn check(&self, limits: Limits) -> Result<(), ParamError> {
        self.check_numbers()?;
        self.check_ids(limits)?;
        self.check_stops()?;
        limits.check_logprobs("logprobs", self.logprobs)?;
        limits.check_logprobs("prompt_logprobs", self.prompt_logprobs)
    }

    pub(super) fn check_numbers(&self) -> Result<(), ParamError> {
        let rules = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a number of at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number in (0, 1]"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number in [0, 1]"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "a number above 0",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty.abs() <= 2.0,
                "a number in [-2, 2]",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.abs() <= 2.0,
                "a number in [-2, 2]",
            ),
        ];
        for (param, value, sound, expected) in rules {
            if !sound || !value.is_finite() {
                return Err(ParamError::new(param, expected, value));
            }
        }
        Ok(())
    }

    fn check_ids(&self, limits: Limits) -> Result<(), ParamError> {
        let allowed = self.allowed_token_ids.as_deref();
        if allowed.is_some_and(<[u32]>::is_empty) {
            return Err(ParamError::new("allowed_token_ids", "at least one id", "none"));
        }
        self.check_lengths(limits)?;
        let biased = self.logit_bias.iter().map(|&(id, _)| ("logit_bias", id));
        let stops = self.stop_token_ids.iter().map(|&id| ("stop_token_ids", id));
        let allowed = allowed.into_iter().flatten().map(|&id| ("allowed_token_ids", id));
        for (param, id) in biased.chain(stops).chain(allowed) {
            if id >= limits.vocab_size {
                let expected = format!("token ids below {}", limits.vocab_size);
                return Err(ParamError::new(param, expected, id));
            }
        }
        match self.logit_bias.iter().find(|(_, b)| !(-100.0..=100.0).contains(b)) {
            Some((_, b)) => Err(ParamError::new("logit_bias", "numbers in [-100, 100]", b)),
            None => Ok(()),
        }
    }

    /// Lists are as long as they can be of use, and no longer: every sequence looks at them for every token.
    fn check_lengths(&self, limits: Limits) -> Result<(), ParamError> {
        let vocab = limits.vocab_size as usize;
        let allowed = self.allowed_token_ids.as_deref().map_or(0, <[u32]>::len);
        for (param, found, most) in [
            ("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_IDS),
            ("logit_bias", self.logit_bias.len(), vocab),
            ("allowed_token_ids", allowed, vocab),
        ] {
            if found > most {
                return Err(ParamError::new(param, format!("at most {most} entries"), found));
            }
        }
        Ok(())
    }

    /// Whether the model's own ids end a text. They do where a format leaves nothing but an end, even if they are to be
    /// ignored as long as anything else may come.
    pub fn ends_at_eos(&self) -> bool {
        !self.ignore_eos || self.grammar.is_some()
    }

    fn check_stops(&self) -> Result<(), ParamError> {
        if self.stop.len() > MAX_STOPS {
            return Err(ParamError::new("stop", format!("at most {MAX_STOPS} strings"), self.stop.len()));
        }
        let sound = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
        if let Some(stop) = self.stop.iter().find(|stop| !sound(stop)) {
            let expected = format!("strings of 1 to {MAX_STOP_BYTES} bytes");
            return Err(ParamError::new("stop", expected, format!("{} bytes", stop.len())));
        }
        match self.max_tokens {
            Some(max) if self.min_tokens > max => {
                let expected = format!("at most max_tokens ({max})");
                Err(ParamError::new("min_tokens", expected, self.min_tokens))
            }
            _ => Ok(()),
        }
    }
}

fn set<T: Clone>(value: &mut T, asked: &Option<T>) {
    if let Some(asked) = asked {
        *value = asked.clone();
    }
}

fn share<T: Clone>(list: &mut Arc<[T]>, asked: &Option<Vec<T>>) {
    if let Some(asked) = asked {
        *list = asked.as_slice().into();
    }
}

fn top_k(k: i64) -> Result<Option<u32>, ParamError> {
    match k {
        -1 | 0 => Ok(None),
        k => match u32::try_from(k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(ParamError::new("top_k", "-1 or 0 (off), or a count", k)),
        },
    }
}
