//! A whole request of the API: every prompt and choice a sequence, their events gathered into answers.

use std::sync::Arc;

use model::api::{ApiError, Choice, Generate};
use model::output::{Finish, FinishReason, TextStream};
use model::sampling::SamplingParams;
use model::tokenizer::Tokenizer;
use policy::sched::Why;

use crate::engine::{Engine, Ticket};
use crate::request::{Event, Failure, Request};

/// A request under way. Dropping it cancels all of its sequences.
pub struct Answer {
    choices: Vec<Gathering>,
}

/// One choice, as far as it has come.
struct Gathering {
    ticket: Ticket,
    stream: TextStream,
    choice: Choice,
    /// Only the prompt is wanted: the one token that the engine must draw is not shown.
    scores_only: bool,
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
        let each = request.prompts.iter().enumerate().flat_map(|p| (0..request.n).map(move |n| (p, n)));
        let begin = |(index, ((prompt, tokens), n)): (usize, ((usize, &Vec<u32>), u32))| {
            let params = request.params_of(n);
            let sequence = Request {
                prompt: tokens.clone(),
                params: SamplingParams {
                    max_tokens: params.max_tokens.map(|max| max.max(1)),
                    ..params.clone()
                },
                seed: seed.wrapping_add(index as u64),
                salt: salt(request.cache_salt.as_deref()),
            };
            let max = params.max_tokens.map_or(usize::MAX, |max| max as usize);
            Ok(Gathering {
                ticket: engine.submit(sequence)?,
                stream: TextStream::new(Arc::clone(tokenizer), &params, &engine.spec().eos, max.max(1)),
                choice: empty(prompt),
                scores_only: max == 0,
            })
        };
        let choices = each.enumerate().map(begin).collect::<Result<_, Failure>>()?;
        Ok(Answer { choices })
    }

    /// Waits for all choices, of the first prompt first.
    ///
    /// # Errors
    /// What went wrong with the first of them that failed, as the API says it.
    pub fn wait(self) -> Result<Vec<Choice>, ApiError> {
        self.choices.into_iter().map(Gathering::wait).collect()
    }
}

impl Gathering {
    fn wait(mut self) -> Result<Choice, ApiError> {
        while !self.stream.is_finished() {
            let event = self.ticket.events.recv();
            match event.unwrap_or_else(|_| Event::Failed(Failure::Engine("it ended".into()))) {
                Event::Prompt(_, scores) => self.choice.prompt_logprobs.push(Some(scores)),
                Event::Token(_) if self.scores_only => return Ok(self.choice),
                Event::Token(token) => {
                    self.choice.tokens.push(token.id);
                    self.choice.logprobs.extend(token.logprobs);
                    let delta = self.stream.push(token.id);
                    self.choice.text.push_str(&delta.text);
                    if let Some(finish) = delta.finish {
                        self.choice.finish = finish;
                    }
                }
                Event::Finished(_) => {
                    let delta = self.stream.abort();
                    self.choice.text.push_str(&delta.text);
                }
                Event::Failed(why) => return Err(why.into()),
            }
        }
        Ok(self.choice)
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
    text.map_or(0, crate::hash::of_text)
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
            Failure::Sample(_) | Failure::Engine(_) => {
                ApiError { message: why.to_string(), ..ApiError::internal() }
            }
        }
    }
}
