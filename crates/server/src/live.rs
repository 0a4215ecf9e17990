//! A request under way in the engine: all of its sequences, their events in one channel.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use engine::{Claim, Event, Failure, Gathering, Piece, Request, sequences};
use model::api::{ApiError, Choice, Generate, Timings};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Sleep, sleep_until};

use crate::account::{Account, FAILED, Generated, REFUSED};
use crate::app::{App, Phase};
use crate::bell::Ring;
use crate::gate::Permit;
use crate::log::LogLevel;
use crate::metrics::Outcome;
use crate::refusal;
use crate::served::Served;
use crate::timing::Timing;

/// A request whose answer is coming. Dropping it cancels all of its sequences.
pub(crate) struct Live {
    app: Arc<App>,
    began: Instant,
    events: UnboundedReceiver<(usize, Event)>,
    /// Wakes whoever waits for events, and as the events know it.
    ring: Arc<Ring>,
    rings: Waker,
    /// Until requests under way are to end.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    parts: Vec<Part>,
    /// Parts that each prompt has.
    per_prompt: usize,
    open: usize,
    /// Whether something has come of it.
    moving: bool,
    /// When it will have taken, or waited, longer than it may; moved when the first news comes.
    due: Option<Pin<Box<Sleep>>>,
    /// What is told of it when it is over, and to whom.
    generated: Generated,
    account: Option<Arc<Account>>,
}

/// One sequence.
struct Part {
    /// While it is wanted.
    claim: Option<Claim>,
    gathering: Gathering,
    tokens: usize,
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
        account: Option<Arc<Account>>,
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
        let ring = app.bell.ring();
        let mut live = Live {
            app: Arc::clone(app),
            began: Instant::now(),
            events,
            rings: Waker::from(Arc::clone(&ring)),
            ring,
            over: Box::pin(over(app)),
            parts: Vec::with_capacity(lengths.len()),
            per_prompt: request.n as usize,
            open: 0,
            moving: false,
            due: None,
            generated: Generated::new(request),
            account,
        };
        live.set_due();
        app.metrics.request_began(request);
        let sequences = sequences(request, &served.tokenizer, &served.engine.spec().eos, seed);
        for ((index, (sequence, gathering)), permit) in sequences.enumerate().zip(permits) {
            let claim = live.submit(served, sequence, index, sender.clone(), permit)?;
            live.parts.push(Part { claim: Some(claim), gathering, tokens: 0 });
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
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same, if it is here already; else the task is woken when there may be something.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<News, ApiError>>> {
        let overdue = |due: &Pin<Box<Sleep>>| Instant::now() >= due.deadline().into();
        if self.open > 0 && self.due.as_ref().is_some_and(overdue) {
            return Poll::Ready(Some(Err(self.overdue())));
        }
        while self.open > 0 {
            let Poll::Ready(event) = self.poll_event(cx) else { return self.poll_limits(cx) };
            let news = match event {
                Some((index, event)) => self.take(index, event),
                None => Some(Err(self.app.failed(Failure::Engine("it ended".into())))),
            };
            if news.is_some() {
                return Poll::Ready(news);
            }
        }
        Poll::Ready(None)
    }

    fn poll_event(&mut self, cx: &Context<'_>) -> Poll<Option<(usize, Event)>> {
        self.ring.wakes(cx.waker());
        self.events.poll_recv(&mut Context::from_waker(&self.rings))
    }

    /// What ends a request to which nothing comes.
    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<News, ApiError>>> {
        if self.over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(self.cut_short())));
        }
        let due = self.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready());
        if due { Poll::Ready(Some(Err(self.overdue()))) } else { Poll::Pending }
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

    /// How long it took so far, where that is to be told.
    pub(crate) fn timings(&self) -> Option<Timings> {
        self.app.config.timings.then(|| self.generated.timings(self.cached_tokens()))
    }

    fn set_due(&mut self) {
        let config = &self.app.config;
        let waiting = config.queue_timeout.filter(|_| !self.moving);
        let least = [config.request_timeout, waiting].into_iter().flatten().min();
        self.due = least.map(|limit| Box::pin(sleep_until((self.began + limit).into())));
    }

    fn overdue(&self) -> ApiError {
        self.app.metrics.overdue();
        let whole = self.app.config.request_timeout.is_some_and(|limit| self.began.elapsed() >= limit);
        if whole { refusal::took_too_long() } else { refusal::waited_too_long() }
    }

    /// All sequences, once they have ended.
    pub(crate) fn into_choices(mut self) -> Vec<Choice> {
        self.generated.cached_tokens = self.cached_tokens();
        std::mem::take(&mut self.parts).into_iter().map(|part| part.gathering.into_choice()).collect()
    }

    fn take(&mut self, index: usize, event: Event) -> Option<Result<News, ApiError>> {
        let part = &mut self.parts[index];
        part.claim.as_ref()?;
        if !std::mem::replace(&mut self.moving, true) && self.app.config.queue_timeout.is_some() {
            self.set_due();
        }
        let part = &mut self.parts[index];
        match &event {
            Event::Began(began) => {
                self.generated.queued.get_or_insert(began.at.saturating_duration_since(self.began));
            }
            Event::Token(token) => {
                part.tokens += 1;
                self.generated.tokens += 1;
                self.generated.longest = self.generated.longest.max(part.tokens);
                let since = token.at.saturating_duration_since(self.began);
                self.generated.first_token.get_or_insert(since);
                self.generated.last_token = self.generated.last_token.max(Some(since));
            }
            _ => (),
        }
        if let Event::Failed(why) = event {
            let error = self.app.failed(why);
            return Some(Err(self.ended_by(error, index)));
        }
        let piece = match part.gathering.take(event) {
            Ok(piece) => piece,
            Err(error) => return Some(Err(self.ended_by(error, index))),
        };
        if let Some(finish) = &piece.finish {
            part.claim = None;
            self.open -= 1;
            self.generated.finished(finish.reason.as_str());
            self.app.metrics.sequence_ended(Outcome::Finished(finish.reason), self.began.elapsed());
        }
        let says_something = !piece.tokens.is_empty() || piece.finish.is_some();
        says_something.then_some(Ok((index, piece)))
    }

    /// A sequence ended with an error: ours, or what was asked cannot be done.
    fn ended_by(&mut self, error: ApiError, index: usize) -> ApiError {
        let ours = error.status >= 500;
        self.parts[index].claim = None;
        self.open -= 1;
        self.generated.finished(if ours { FAILED } else { REFUSED });
        let outcome = if ours { Outcome::Error } else { Outcome::Aborted };
        self.app.metrics.sequence_ended(outcome, self.began.elapsed());
        error
    }

    fn cut_short(&self) -> ApiError {
        match &*self.app.phase.borrow() {
            Phase::Dead(_) => refusal::dead(),
            _ => refusal::draining(),
        }
    }
}

/// Until requests under way are to end.
fn over(app: &App) -> impl Future<Output = ()> + Send + use<> {
    let mut phase = app.phase.subscribe();
    async move {
        // The sender lives in the state that every request holds.
        let _ = phase.wait_for(|phase| *phase >= Phase::Ending).await;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let dead = matches!(&*self.app.phase.borrow(), Phase::Dead(_));
        let outcome = if dead { Outcome::Error } else { Outcome::Aborted };
        (0..self.open).for_each(|_| self.app.metrics.sequence_ended(outcome, self.began.elapsed()));
        self.app.metrics.request_ended();
        if self.open == 0 {
            self.app.metrics.longest.observe_count(self.generated.longest);
        } else {
            self.generated.finished(if dead { FAILED } else { "abort" });
        }
        if !self.parts.is_empty() {
            self.generated.cached_tokens = self.cached_tokens();
        }
        if let Some(account) = &self.account {
            account.generated(std::mem::take(&mut self.generated));
        }
    }
}

impl App {
    /// A failure as the client sees it; what the drive did is for the log. A dead engine ends the server.
    pub(crate) fn failed(&self, why: Failure) -> ApiError {
        match why {
            Failure::Engine(why) => {
                self.advance(Phase::Dead(why));
                refusal::dead()
            }
            why @ Failure::Drive(_) => {
                self.config.log.say(LogLevel::Error, "kv_lost", &format!("ballast: a request ended: {why}"));
                refusal::lost_on_drive()
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
