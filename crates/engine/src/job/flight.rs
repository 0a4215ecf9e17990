//! Requests under way in the engine: all of their sequences, all events in one channel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use model::api::{ApiError, Choice, Generate};
use model::sampling::Grammar;
use model::tokenizer::Tokenizer;

use super::hear::Hears;
use crate::engine::{Claim, Engine};
use crate::front::answer::{Gathering, sequence};
use crate::front::request::{Event, Failure};
use crate::step::sequence::queue_bytes;

/// Events taken at one go; between two of them answers are written.
const AT_ONCE: usize = 4096;

/// What sequences in the engine may have together; but for the last one, since one always may be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// Tokens of their prompts.
    pub(super) prompt_tokens: usize,
    /// Bytes of all else, and of the grammars that they are held to.
    pub(super) bytes: usize,
}

/// Requests under way, by number. Dropping them cancels all of their sequences.
pub(super) struct Flight {
    requests: BTreeMap<usize, UnderWay>,
    told: Sender<(usize, usize, Event)>,
    events: Receiver<(usize, usize, Event)>,
    most: Most,
    /// Of the newest one there was no room for all sequences yet.
    unfinished: Option<usize>,
    /// Tokens that those under way have so far.
    tokens: u64,
    /// Sequences in the engine,
    sequences: usize,
    /// tokens of their prompts,
    prompt_tokens: usize,
    /// and what these are held to, each with how many requests are.
    grammars: Vec<(Grammar, usize)>,
}

struct UnderWay {
    request: Generate,
    seed: u64,
    /// Sequences that were handed in; a claim is dropped with its last piece.
    parts: Vec<Option<(Claim, Gathering)>>,
    choices: Vec<Option<Choice>>,
    /// Sequences without an end, those not handed in among them.
    open: usize,
    tokens: u64,
    heard: Box<dyn Hears>,
}

/// What came of a request.
pub(super) type Landed = (usize, Outcome);
pub(super) type Outcome = Result<(Generate, Vec<Choice>), ApiError>;

impl Flight {
    pub(super) fn new(most: Most) -> Flight {
        let (told, events) = channel();
        Flight {
            requests: BTreeMap::new(),
            told,
            events,
            most,
            unfinished: None,
            tokens: 0,
            sequences: 0,
            prompt_tokens: 0,
            grammars: Vec::new(),
        }
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is room for another.
    pub(super) fn has_room(&self) -> bool {
        self.unfinished.is_none() && self.has_room_for_sequence()
    }

    fn has_room_for_sequence(&self) -> bool {
        let grammars: usize = self.grammars.iter().map(|(grammar, _)| grammar.bytes()).sum();
        let bytes = queue_bytes(self.sequences, 0) as usize + grammars;
        self.sequences == 0 || self.prompt_tokens < self.most.prompt_tokens && bytes < self.most.bytes
    }

    /// Tokens that those have so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Takes a request in, for [`Flight::go_on`]. `seed` makes requests without one differ; `heard` is told what becomes of it.
    pub(super) fn begin(&mut self, number: usize, request: Generate, seed: u64, heard: Box<dyn Hears>) {
        let open = request.sequences();
        if let Some(grammar) = &request.params.grammar {
            match self.grammars.iter_mut().find(|(held, _)| held.shares_memory(grammar)) {
                Some((_, requests)) => *requests += 1,
                None => self.grammars.push((grammar.clone(), 1)),
            }
        }
        let (parts, choices) = (Vec::new(), Vec::new());
        self.requests.insert(number, UnderWay { request, seed, parts, choices, open, tokens: 0, heard });
        self.unfinished = Some(number);
    }

    /// Hands in sequences of the newest request, as there is room; what it came to, if one is refused.
    ///
    /// # Errors
    /// The engine's death.
    pub(super) fn go_on(&mut self, runs: (&Engine, &Arc<Tokenizer>)) -> Result<Option<Landed>, Failure> {
        while let Some(number) = self.unfinished
            && self.has_room_for_sequence()
            && let Some(under_way) = self.requests.get_mut(&number)
        {
            match under_way.hand_in(number, &self.told, runs) {
                Ok(prompt_tokens) => {
                    self.sequences += 1;
                    self.prompt_tokens += prompt_tokens;
                    self.unfinished = under_way.is_partly_here().then_some(number);
                }
                Err(why @ Failure::Engine(_)) => return Err(why),
                Err(why) => {
                    self.remove(number);
                    return Ok(Some((number, Err(why.into()))));
                }
            }
        }
        Ok(None)
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
            Ok(ended) => {
                under_way.tokens += u64::from(is_token);
                self.tokens += u64::from(is_token);
                if let Some(prompt_tokens) = ended {
                    self.sequences -= 1;
                    self.prompt_tokens -= prompt_tokens;
                }
                let done = if under_way.open == 0 { self.remove(number) } else { None };
                Ok(done.map(|done| (number, Ok(done.into_answer()))))
            }
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
        self.unfinished = self.unfinished.filter(|unfinished| *unfinished != number);
        self.tokens -= removed.tokens;
        if let Some(grammar) = &removed.request.params.grammar {
            self.grammars.retain_mut(|(held, requests)| {
                *requests -= usize::from(held.shares_memory(grammar));
                *requests > 0
            });
        }
        for part in removed.parts.iter().flatten() {
            self.sequences -= 1;
            self.prompt_tokens -= removed.prompt_tokens(&part.1);
        }
        Some(removed)
    }
}

impl UnderWay {
    /// Hands in the next sequence: how many tokens its prompt has.
    fn hand_in(
        &mut self,
        number: usize,
        told: &Sender<(usize, usize, Event)>,
        (engine, tokenizer): (&Engine, &Arc<Tokenizer>),
    ) -> Result<usize, Failure> {
        let (part, told) = (self.parts.len(), told.clone());
        let (sequence, gathering) = sequence(&self.request, part, tokenizer, &engine.spec().eos, self.seed);
        let prompt_tokens = sequence.prompt.len();
        let mut hears = self.heard.sequence(prompt_tokens);
        let sink = Box::new(move |event| {
            hears(&event);
            // Whoever does not listen any more has dropped the claim too.
            let _ = told.send((number, part, event));
        });
        self.parts.push(Some((engine.submit_to(sequence, sink)?, gathering)));
        self.choices.push(None);
        Ok(prompt_tokens)
    }

    /// Whether some sequences wait to be handed in.
    fn is_partly_here(&self) -> bool {
        self.parts.len() < self.request.sequences()
    }

    fn prompt_tokens(&self, part: &Gathering) -> usize {
        self.request.prompts[part.choice().prompt].len()
    }

    /// Takes a sequence's event. Where that was its last, how many tokens its prompt has.
    fn take(&mut self, part: usize, event: Event) -> Result<Option<usize>, ApiError> {
        let Some((_, gathering)) = &mut self.parts[part] else { return Ok(None) };
        if let Event::Failed(why) = event {
            return Err(self.heard.failed(why));
        }
        let Some(finish) = gathering.take(event)?.finish else { return Ok(None) };
        let Some((_, gathering)) = self.parts[part].take() else { return Ok(None) };
        self.open -= 1;
        self.heard.finished(finish.reason, gathering.choice().tokens.len());
        let prompt_tokens = self.prompt_tokens(&gathering);
        self.choices[part] = Some(gathering.into_choice());
        Ok(Some(prompt_tokens))
    }

    fn into_answer(self) -> (Generate, Vec<Choice>) {
        (self.request, self.choices.into_iter().flatten().collect())
    }
}
