//! Ctrl-C while an answer comes: it ends the answer, not the process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use engine::{Claim, Engine, Event, Request};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// What comes of a request, or the wish that it end.
pub(crate) enum Heard {
    Event(Event),
    Interrupt,
    /// Nothing more comes.
    End,
}

/// The engine's end of a request.
struct Events(Sender<Heard>);

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.0.send(Heard::End);
    }
}

/// Who hears Ctrl-C: the answer under way, once.
pub(crate) struct Interrupts(Arc<Mutex<Option<Sender<Heard>>>>);

impl Interrupts {
    /// From now on Ctrl-C ends the answer under way; a second one, or one between answers, the process, as it always does.
    ///
    /// # Errors
    /// If the system refuses signals or threads.
    pub(crate) fn heard() -> Result<Interrupts> {
        let answer = Arc::new(Mutex::new(None::<Sender<Heard>>));
        let under_way = Arc::clone(&answer);
        let mut told = Signals::new([SIGINT]).context("the system refuses signals")?;
        let hear = move || {
            for _ in told.forever() {
                let answer = under_way.lock().unwrap_or_else(PoisonError::into_inner).take();
                // Nobody receives what an answer that has ended is told.
                if answer.is_none_or(|answer| answer.send(Heard::Interrupt).is_err()) {
                    // Where the system keeps a process from ending so, it goes on.
                    let _ = emulate_default_handler(SIGINT);
                }
            }
        };
        thread::Builder::new().name("interrupts".into()).spawn(hear).context("the system refuses threads")?;
        Ok(Interrupts(answer))
    }

    /// Hands in a request.
    ///
    /// # Errors
    /// As [`Engine::submit_to`].
    pub(crate) fn submit(&self, engine: &Engine, request: Request) -> Result<Answer> {
        let (sender, heard) = channel();
        let events = Events(sender.clone());
        // Who has ended the answer hears no more.
        let sink = Box::new(move |event| drop(events.0.send(Heard::Event(event))));
        Ok(Answer { _claim: engine.submit_to(request, sink)?, sender, heard })
    }

    /// An answer's events come, and an interrupt among them where there is one from now on.
    pub(crate) fn of<'a>(&self, answer: &'a Answer) -> impl Iterator<Item = Heard> + use<'a> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.sender.clone());
        answer.heard.iter()
    }
}

/// A request that was handed in; who drops it ends it.
pub(crate) struct Answer {
    _claim: Claim,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
}
