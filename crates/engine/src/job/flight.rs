//! Requests under way in the engine: all of their sequences, all events in one channel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use model::api::{ApiError, Choice, Generate};
use model::tokenizer::Tokenizer;

use super::hear::Hears;
use crate::engine::{Claim, Engine};
use crate::front::answer::{Gathering, sequences};
use crate::front::request::{Event, Failure};

/// Events taken at one go; between two of them answers are written.
const AT_ONCE: usize = 4096;

/// Requests under way, by number. Dropping them cancels all of their sequences.
pub(super) struct Flight {
    requests: BTreeMap<usize, UnderWay>,
    told: Sender<(usize, usize, Event)>,
    events: Receiver<(usize, usize, Event)>,
    /// Tokens that those under way have so far.
    tokens: u64,
    /// Tokens of their prompts, those of each sequence.
    prompt_tokens: usize,
}

struct UnderWay {
    request: Generate,
    /// A sequence's claim is dropped with its last piece.
    parts: Vec<(Option<Claim>, Gathering)>,
    open: usize,
    tokens: u64,
    prompt_tokens: usize,
    heard: Box<dyn Hears>,
}

/// What came of a request.
pub(super) type Landed = (usize, Outcome);
pub(super) type Outcome = Result<(Generate, Vec<Choice>), ApiError>;

impl Flight {
    pub(super) fn new() -> Flight {
        let (told, events) = channel();
        Flight { requests: BTreeMap::new(), told, events, tokens: 0, prompt_tokens: 0 }
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Tokens of their prompts, those of each sequence.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens that those have so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Hands a request in. `seed` makes requests without one differ; `heard` is told what becomes of it.
    pub(super) fn begin(
        &mut self,
        number: usize,
        request: Generate,
        seed: u64,
        (engine, tokenizer): (&Engine, &Arc<Tokenizer>),
        mut heard: Box<dyn Hears>,
    ) -> Result<(), Failure> {
        let (mut parts, mut prompt_tokens) = (Vec::new(), 0);
        for (part, (sequence, gathering)) in
            sequences(&request, tokenizer, &engine.spec().eos, seed).enumerate()
        {
            let told = self.told.clone();
            prompt_tokens += sequence.prompt.len();
            let mut hears = heard.sequence(sequence.prompt.len());
            let sink = Box::new(move |event| {
                hears(&event);
                // Whoever does not listen any more has dropped the claim too.
                let _ = told.send((number, part, event));
            });
            parts.push((Some(engine.submit_to(sequence, sink)?), gathering));
        }
        let open = parts.len();
        self.requests.insert(number, UnderWay { request, parts, open, tokens: 0, prompt_tokens, heard });
        self.prompt_tokens += prompt_tokens;
        Ok(())
    }

    /// Takes the events that are there, or waits so long for one; those whose last it was are done. An error is the engine's
    /// death: what came before it is done all the same.
    pub(super) fn wait(&mut self, most: Duration) -> (Vec<Landed>, Result<(), Failure>) {
        let mut landed = Vec::new();
        for taken in 0..AT_ONCE {
            let event =
                if taken == 0 { self.events.recv_timeout(most).ok() } else { self.events.try_recv().ok() };
            let Some((number, part, told)) = event else { break };
            match self.take(number, part, told) {
                Ok(done) => landed.extend(done),
                Err(why) => return (landed, Err(why)),
            }
        }
        (landed, Ok(()))
    }

    /// All that was told before the engine died: what was done then is done all the same.
    pub(super) fn drain(&mut self) -> Vec<Landed> {
        let mut landed = Vec::new();
        while let Ok((number, part, told)) = self.events.try_recv() {
            // Of other sequences it may have told behind their ends.
            landed.extend(self.take(number, part, told).ok().flatten());
        }
        landed
    }

    fn take(&mut self, number: usize, part: usize, event: Event) -> Result<Option<Landed>, Failure> {
        let Some(under_way) = self.requests.get_mut(&number) else { return Ok(None) };
        if let Event::Failed(why @ Failure::Engine(_)) = event {
            return Err(why);
        }
        let is_token = matches!(event, Event::Token(_));
        match under_way.take(part, event) {
            Ok(false) => {
                under_way.tokens += u64::from(is_token);
                self.tokens += u64::from(is_token);
                Ok(None)
            }
            Ok(true) => Ok(self.remove(number).map(|done| (number, Ok(done.into_answer())))),
            Err(error) => {
                self.remove(number);
                Ok(Some((number, Err(error))))
            }
        }
    }

    /// Gives up those that have no token yet, of which an engine may have many.
    pub(super) fn give_up_unbegun(&mut self) {
        let unbegun: Vec<usize> =
            self.requests.iter().filter(|(_, one)| one.tokens == 0).map(|(number, _)| *number).collect();
        unbegun.into_iter().for_each(|number| _ = self.remove(number));
    }

    fn remove(&mut self, number: usize) -> Option<UnderWay> {
        let removed = self.requests.remove(&number)?;
        self.tokens -= removed.tokens;
        self.prompt_tokens -= removed.prompt_tokens;
        Some(removed)
    }
}

impl UnderWay {
    /// Whether that was the last of all.
    fn take(&mut self, part: usize, event: Event) -> Result<bool, ApiError> {
        let (claim, gathering) = &mut self.parts[part];
        if claim.is_none() {
            return Ok(self.open == 0);
        }
        if let Event::Failed(why) = event {
            return Err(self.heard.failed(why));
        }
        if let Some(finish) = gathering.take(event)?.finish {
            *claim = None;
            self.open -= 1;
            self.heard.finished(finish.reason, gathering.choice().tokens.len());
        }
        Ok(self.open == 0)
    }

    fn into_answer(self) -> (Generate, Vec<Choice>) {
        (self.request, self.parts.into_iter().map(|(_, gathering)| gathering.into_choice()).collect())
    }
}
