//! A whole request of the API: every prompt and choice a sequence, their events gathered into answers.

use std::ops::Range;
use std::sync::Arc;

use model::api::{ApiError, Choice, Generate};
use model::output::{Delta, Finish, FinishReason, TextStream};
use model::sampling::{SampleError, SamplingParams};
use model::tokenizer::Tokenizer;
use policy::sched::Why;

use crate::engine::{Engine, Ticket};
use crate::front::request::{Event, Failure, Request};

/// A request under way. Dropping it cancels all of its sequences.
pub struct Answer {
    choices: Vec<(Ticket, Gathering)>,
}

/// One choice, as far as it has come.
#[derive(Clone, Debug)]
pub struct Gathering {
    stream: TextStream,
    choice: Choice,
    /// Only the prompt is wanted: the one token that the engine must draw is not shown.
    scores_only: bool,
    finished: bool,
    cached_tokens: usize,
}

/// What one event added to a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text that can be shown now.
    pub text: String,
    /// Which of the choice's tokens are new.
    pub tokens: Range<usize>,
    /// Present with the last piece: the sequence may be dropped.
    pub finish: Option<Finish>,
}

/// The seed that the `n`th of many requests hands to [`sequences`], far from its neighbours': a request's sequences have the
/// numbers that follow its own.
pub fn seed_of(first: u64, n: u64) -> u64 {
    first.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The sequences of a request, each with what gathers its events: all choices of the first prompt, then of the
/// second, ... `eos`: the model's ends of text; `seed` makes requests without one differ.
pub fn sequences<'a>(
    request: &'a Generate,
    tokenizer: &'a Arc<Tokenizer>,
    eos: &'a [u32],
    seed: u64,
) -> impl Iterator<Item = (Request, Gathering)> + 'a {
    (0..request.sequences()).map(move |index| sequence(request, index, tokenizer, eos, seed))
}

/// One of [`sequences`].
pub(crate) fn sequence(
    request: &Generate,
    index: usize,
    tokenizer: &Arc<Tokenizer>,
    eos: &[u32],
    seed: u64,
) -> (Request, Gathering) {
    let (prompt, n) = (index / request.n as usize, index % request.n as usize);
    let tokens = &request.prompts[prompt];
    let params = request.params_of(n as u32);
    let max = request.answer_len(tokens.len());
    let sequence = Request {
        prompt: tokens.clone(),
        params: SamplingParams { max_tokens: params.max_tokens.map(|max| max.max(1)), ..params.clone() },
        seed: seed.wrapping_add(index as u64),
        salt: salt(request.cache_salt.as_deref()),
    };
    let gathering = Gathering {
        stream: TextStream::new(Arc::clone(tokenizer), &params, eos, max.max(1)).after(tokens),
        choice: empty(prompt),
        scores_only: max == 0,
        finished: false,
        cached_tokens: 0,
    };
    (sequence, gathering)
}

impl Answer {
    /// Hands in all sequences of a request. `seed` makes requests without one differ.
    ///
    /// # Errors
    /// What the engine refuses, as the API says it.
    pub fn begin(
        engine: &Engine,
        tokenizer: &Arc<Tokenizer>,
        request: &Generate,
        seed: u64,
    ) -> Result<Answer, ApiError> {
        let sequences = sequences(request, tokenizer, &engine.spec().eos, seed);
        let begin = |(request, gathering)| Ok((engine.submit(request)?, gathering));
        Ok(Answer { choices: sequences.map(begin).collect::<Result<_, Failure>>()? })
    }

    /// Waits for all choices, of the first prompt first.
    ///
    /// # Errors
    /// What went wrong with the first of them that failed, as the API says it.
    pub fn wait(self) -> Result<Vec<Choice>, ApiError> {
        self.choices.into_iter().map(|(ticket, gathering)| gathering.wait(&ticket)).collect()
    }
}

impl Gathering {
    fn wait(mut self, ticket: &Ticket) -> Result<Choice, ApiError> {
        while !self.finished {
            let event = ticket.events.recv();
            self.take(event.unwrap_or_else(|_| Event::Failed(Failure::Engine("it ended".into()))))?;
        }
        Ok(self.choice)
    }

    /// Takes the next event. After the last piece nothing is added any more.
    ///
    /// # Errors
    /// What went wrong, as the API says it.
    pub fn take(&mut self, event: Event) -> Result<Piece, ApiError> {
        if self.finished {
            return Ok(Piece::default());
        }
        match event {
            Event::Began(began) => {
                self.cached_tokens = began.cached_tokens;
                Ok(Piece::default())
            }
            Event::Prompt(_, scores) => {
                self.choice.prompt_logprobs.push(Some(scores));
                Ok(Piece::default())
            }
            Event::Token(_) if self.scores_only => {
                Ok(self.piece(0, Delta { finish: Some(self.choice.finish.clone()), text: String::new() }))
            }
            Event::Token(token) => {
                let before = self.choice.tokens.len();
                self.choice.tokens.push(token.id);
                self.choice.logprobs.extend(token.logprobs);
                let delta = self.stream.push(token.id);
                Ok(self.piece(before, delta))
            }
            Event::Finished(_) => {
                let delta = self.stream.abort();
                Ok(self.piece(self.choice.tokens.len(), delta))
            }
            Event::Failed(why) => Err(why.into()),
        }
    }

    /// Tokens of its prompt whose KV was in memory when it began.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// What has been gathered.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What has been gathered.
    pub fn into_choice(self) -> Choice {
        self.choice
    }

    fn piece(&mut self, before: usize, delta: Delta) -> Piece {
        self.choice.text.push_str(&delta.text);
        if let Some(finish) = &delta.finish {
            self.choice.finish = finish.clone();
            self.finished = true;
        }
        Piece { text: delta.text, tokens: before..self.choice.tokens.len(), finish: delta.finish }
    }
}

/// The first token of a prompt has no log-probability.
fn empty(prompt: usize) -> Choice {
    Choice {
        prompt,
        text: String::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: vec![None],
        finish: Finish { reason: FinishReason::Length, cause: None },
    }
}

/// Requests with different salts share nothing.
fn salt(text: Option<&str>) -> u128 {
    text.map_or(0, crate::step::hash::of_text)
}

impl From<Failure> for ApiError {
    fn from(why: Failure) -> ApiError {
        match &why {
            Failure::TooLong { .. } => ApiError {
                code: Some("context_length_exceeded"),
                ..ApiError::invalid("prompt", why.to_string())
            },
            Failure::UnknownToken { .. } | Failure::Refused(Why::NeverFits { .. } | Why::Empty { .. }) => {
                ApiError::invalid("prompt", why.to_string())
            }
            Failure::Refused(Why::QueueFull { .. }) => ApiError {
                status: 503,
                kind: "overloaded_error",
                message: why.to_string(),
                param: None,
                code: Some("server_overloaded"),
            },
            // Which of the fields that forbid tokens it was, nobody knows: all of them together.
            Failure::Sample(SampleError::NothingAllowed) => ApiError::invalid("", why.to_string()),
            Failure::Sample(SampleError::TooComplex) => {
                ApiError { code: Some("grammar_limit"), ..ApiError::invalid("", why.to_string()) }
            }
            Failure::Sample(_) | Failure::Drive(_) | Failure::Engine(_) => {
                ApiError { message: why.to_string(), ..ApiError::internal() }
            }
        }
    }
}
