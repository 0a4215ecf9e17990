//! Sends requests when they are due and collects the answers. Streams that are encrypted, or go through a proxy, have a
//! thread each that blocks on its socket; all others share one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::{Answer, Client};
use super::wire::{self, Traffic};

/// A thread follows one stream: it needs little.
const STACK_BYTES: usize = 512 << 10;

/// A request that is due.
struct Due {
    index: usize,
    at: Instant,
}

/// Requests that no thread has taken yet.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    due: VecDeque<Due>,
    idle: usize,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Says whether another thread is needed.
    fn push(&self, due: Due) -> bool {
        let mut state = self.lock();
        state.due.push_back(due);
        self.changed.notify_one();
        state.due.len() > state.idle
    }

    /// The next request, once there is one; nothing after the last.
    fn pop(&self) -> Option<Due> {
        let mut state = self.lock();
        state.idle += 1;
        loop {
            if let Some(due) = state.due.pop_front() {
                state.idle -= 1;
                return Some(due);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Sends each body at its time, at most `most` at once, and waits for all. Gives the answers in the order of the
/// bodies, and how long all of it took. `done` hears how many have been answered.
pub(super) fn run(
    client: &Client,
    bodies: &[String],
    at: &[Duration],
    most: usize,
    done: &(dyn Fn(usize) + Sync),
) -> Result<(Vec<Answer>, Duration)> {
    if let Some(target) = client.target() {
        return wire::run(&target, Traffic { bodies, at, most }, done);
    }
    let (queue, answers) = (Queue::default(), Mutex::new(Vec::with_capacity(bodies.len())));
    let begin = Instant::now();
    let work = || {
        while let Some(due) = queue.pop() {
            let start = Instant::now();
            let mut answer = client.stream(&bodies[due.index]);
            answer.start = (start - begin).as_secs_f64();
            answer.queued = (start - due.at).as_secs_f64();
            let mut answers = answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            answers.push((due.index, answer));
            done(answers.len());
        }
    };
    let sent = thread::scope(|scope| {
        let sent = send(scope, &queue, begin, at, most, &work);
        queue.close();
        sent
    });
    sent.context("the system refuses threads: ask for a smaller --max-concurrency")?;
    let took = begin.elapsed();
    let mut answers = answers.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    answers.sort_by_key(|(index, _)| *index);
    Ok((answers.into_iter().map(|(_, answer)| answer).collect(), took))
}

fn send<'scope>(
    scope: &'scope Scope<'scope, '_>,
    queue: &Queue,
    begin: Instant,
    at: &[Duration],
    most: usize,
    work: &'scope (impl Fn() + Sync),
) -> io::Result<()> {
    let mut threads = 0;
    for (index, at) in at.iter().enumerate() {
        let at = begin + *at;
        wait_until(at);
        if queue.push(Due { index, at }) && threads < most {
            thread::Builder::new().name("stream".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
            threads += 1;
        }
    }
    Ok(())
}

/// Nothing unparks this thread before its time; if something did, it would wait again.
fn wait_until(at: Instant) {
    while let Some(left) = at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::park_timeout(left);
    }
}
