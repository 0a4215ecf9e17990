//! A request under way in the engine: all of its sequences, their events in one channel.

use std::sync::Arc;
use std::time::Instant;

use engine::{Claim, Event, Failure, Gathering, Piece, Request, sequences};
use model::api::{ApiError, Choice, Generate};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::app::{App, Phase};
use crate::gate::Permit;
use crate::metrics::Outcome;
use crate::refusal;
use crate::served::Served;
use crate::timing::Timing;

/// A request whose answer is coming. Dropping it cancels all of its sequences.
pub(crate) struct Live {
    app: Arc<App>,
    began: Instant,
    events: UnboundedReceiver<(usize, Event)>,
    phase: watch::Receiver<Phase>,
    parts: Vec<Part>,
    /// Parts that each prompt has.
    per_prompt: usize,
    open: usize,
    /// Whether something has come of it.
    moving: bool,
}

/// One sequence.
struct Part {
    /// While it is wanted.
    claim: Option<Claim>,
    gathering: Gathering,
}

/// Which sequence, and what came of it.
pub(crate) type News = (usize, Piece);

impl Live {
    /// Hands the sequences to the engine. The channel is unbounded, what goes through it is not: a sequence has as
    /// many events as it has tokens, and the lanes never wait for a slow reader.
    pub(crate) fn begin(
        app: &Arc<App>,
        served: &Served,
        request: &Generate,
        permit: Permit,
        seed: u64,
    ) -> Result<Live, ApiError> {
        let (sender, events) = unbounded_channel();
        let lengths: Vec<usize> = request
            .prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt.len(), request.n as usize))
            .collect();
        let limit = app.gate.limits().requests;
        if lengths.len() > limit {
            let message = format!("{} sequences in one request; at most {limit}", lengths.len());
            return Err(ApiError::invalid("n", message));
        }
        let permits = permit.split(&lengths).map_err(|full| app.refuse_full(full))?;
        let mut live = Live {
            app: Arc::clone(app),
            began: Instant::now(),
            events,
            phase: app.phase.subscribe(),
            parts: Vec::with_capacity(lengths.len()),
            per_prompt: request.n as usize,
            open: 0,
            moving: false,
        };
        app.metrics.request_began(request);
        let sequences = sequences(request, &served.tokenizer, &served.engine.spec().eos, seed);
        for ((index, (sequence, gathering)), permit) in sequences.enumerate().zip(permits) {
            let claim = live.submit(served, sequence, index, sender.clone(), permit)?;
            live.parts.push(Part { claim: Some(claim), gathering });
            live.open += 1;
        }
        Ok(live)
    }

    fn submit(
        &self,
        served: &Served,
        sequence: Request,
        index: usize,
        sender: UnboundedSender<(usize, Event)>,
        permit: Permit,
    ) -> Result<Claim, ApiError> {
        let mut timing = Timing::new(Arc::clone(&self.app.metrics), self.began, sequence.prompt.len());
        let mut waiting = Some(permit);
        let sink = Box::new(move |event: Event| {
            if !matches!(event, Event::Began(_)) {
                drop(waiting.take());
            }
            timing.note(&event);
            // Whoever hung up has dropped the claim too.
            let _ = sender.send((index, event));
        });
        served.engine.submit_to(sequence, sink).map_err(|why| self.app.failed(why))
    }

    /// What comes next, of any sequence; nothing once all have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<News, ApiError>> {
        while self.open > 0 {
            let due = self.due();
            if due.is_some_and(|due| Instant::now() >= due) {
                return Some(Err(self.overdue()));
            }
            let event = tokio::select! {
                biased;
                event = self.events.recv() => event,
                () = over(&mut self.phase) => return Some(Err(self.cut_short())),
                () = passed(due) => return Some(Err(self.overdue())),
            };
            let event = match event {
                Some((index, event)) => self.take(index, event),
                None => Some(Err(self.app.failed(Failure::Engine("it ended".into())))),
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// What is here already.
    pub(crate) fn next_now(&mut self) -> Option<Result<News, ApiError>> {
        while self.open > 0 {
            let (index, event) = self.events.try_recv().ok()?;
            let news = self.take(index, event);
            if news.is_some() {
                return news;
            }
        }
        None
    }

    /// A sequence as far as it has come.
    pub(crate) fn choice(&self, index: usize) -> &Choice {
        self.parts[index].gathering.choice()
    }

    /// Prompt tokens that were in memory: each prompt's once, however many choices it has.
    pub(crate) fn cached_tokens(&self) -> usize {
        let first = self.parts.chunks(self.per_prompt).filter_map(|choices| choices.first());
        first.map(|part| part.gathering.cached_tokens()).sum()
    }

    /// When it will have taken, or waited, longer than it may.
    fn due(&self) -> Option<Instant> {
        let config = &self.app.config;
        let waiting = config.queue_timeout.filter(|_| !self.moving);
        let least = [config.request_timeout, waiting].into_iter().flatten().min();
        least.map(|limit| self.began + limit)
    }

    fn overdue(&self) -> ApiError {
        self.app.metrics.overdue();
        let whole = self.app.config.request_timeout.is_some_and(|limit| self.began.elapsed() >= limit);
        if whole { refusal::took_too_long() } else { refusal::waited_too_long() }
    }

    /// All sequences, once they have ended.
    pub(crate) fn into_choices(mut self) -> Vec<Choice> {
        std::mem::take(&mut self.parts).into_iter().map(|part| part.gathering.into_choice()).collect()
    }

    fn take(&mut self, index: usize, event: Event) -> Option<Result<News, ApiError>> {
        let part = &mut self.parts[index];
        part.claim.as_ref()?;
        self.moving = true;
        if let Event::Failed(why) = event {
            return Some(Err(self.app.failed(why)));
        }
        let piece = match part.gathering.take(event) {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        if let Some(finish) = &piece.finish {
            part.claim = None;
            self.open -= 1;
            self.app.metrics.sequence_ended(Outcome::Finished(finish.reason), self.began.elapsed());
        }
        let says_something = !piece.tokens.is_empty() || piece.finish.is_some();
        says_something.then_some(Ok((index, piece)))
    }

    fn cut_short(&self) -> ApiError {
        match &*self.app.phase.borrow() {
            Phase::Dead(_) => refusal::dead(),
            _ => refusal::draining(),
        }
    }
}

/// Until then, or for ever.
async fn passed(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Until requests under way are to end.
async fn over(phase: &mut watch::Receiver<Phase>) {
    // The sender lives in the state that every request holds.
    let _ = phase.wait_for(|phase| *phase >= Phase::Ending).await;
}

impl Drop for Live {
    fn drop(&mut self) {
        let dead = matches!(&*self.app.phase.borrow(), Phase::Dead(_));
        let outcome = if dead { Outcome::Error } else { Outcome::Aborted };
        (0..self.open).for_each(|_| self.app.metrics.sequence_ended(outcome, self.began.elapsed()));
        self.app.metrics.request_ended();
    }
}

impl App {
    /// A failure as the client sees it. A dead engine ends the server.
    pub(crate) fn failed(&self, why: Failure) -> ApiError {
        match why {
            Failure::Engine(why) => {
                self.advance(Phase::Dead(why));
                refusal::dead()
            }
            other => other.into(),
        }
    }

    /// Counts a refusal.
    pub(crate) fn refuse_full(&self, full: crate::gate::Full) -> ApiError {
        self.metrics.rejected(full);
        refusal::full(full)
    }
}
