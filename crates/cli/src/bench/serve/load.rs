//! Sends requests when they are due and collects the answers. Streams that are encrypted, or go through a proxy, have a
//! thread each that blocks on its socket; all others share one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::{Answer, Client};
use super::wire;
use crate::stop::Stop;

/// When requests come, and how many may be under way.
pub(super) struct Traffic<'a> {
    pub(super) bodies: &'a [String],
    /// Of each body, since the beginning; rising.
    pub(super) at: &'a [Duration],
    pub(super) most: usize,
    /// Ends all before they are answered.
    pub(super) stop: &'a Stop,
}

/// How often a thread that waits for a request's time looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);
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
/// bodies, none of those that had not ended when all was stopped, and how long all of it took. `done` hears how many have been
/// answered.
pub(super) fn run(
    client: &Client,
    traffic: Traffic<'_>,
    done: &(dyn Fn(usize) + Sync),
) -> Result<(Vec<Option<Answer>>, Duration)> {
    if let Some(target) = client.target() {
        return wire::run(&target, traffic, done);
    }
    let Traffic { bodies, at, most, stop } = traffic;
    let (queue, answers) = (Queue::default(), Mutex::new((0, vec![None; bodies.len()])));
    let begin = Instant::now();
    let work = || {
        while let Some(due) = queue.pop() {
            // Those that had come before all was stopped are not asked for any more.
            if stop.is_wanted() {
                continue;
            }
            let start = Instant::now();
            let Some(mut answer) = client.stream(&bodies[due.index], stop) else { continue };
            answer.start = (start - begin).as_secs_f64();
            answer.queued = (start - due.at).as_secs_f64();
            let (count, answers) = &mut *answers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            answers[due.index] = Some(answer);
            *count += 1;
            done(*count);
        }
    };
    let sent = thread::scope(|scope| {
        let sent = send(scope, &queue, (begin, at, stop), most, &work);
        queue.close();
        sent
    });
    sent.context("the system refuses threads: ask for a smaller --max-concurrency")?;
    let took = begin.elapsed();
    let (_, answers) = answers.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok((answers, took))
}

fn send<'scope>(
    scope: &'scope Scope<'scope, '_>,
    queue: &Queue,
    (begin, at, stop): (Instant, &[Duration], &Stop),
    most: usize,
    work: &'scope (impl Fn() + Sync),
) -> io::Result<()> {
    let mut threads = 0;
    for (index, at) in at.iter().enumerate() {
        let at = begin + *at;
        if !is_time(at, stop) {
            break;
        }
        if queue.push(Due { index, at }) && threads < most {
            thread::Builder::new().name("stream".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
            threads += 1;
        }
    }
    Ok(())
}

/// Waits for this time; it does not come where all was stopped before.
fn is_time(at: Instant, stop: &Stop) -> bool {
    while let Some(left) = at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if stop.is_wanted() {
            return false;
        }
        thread::park_timeout(left.min(LOOK));
    }
    !stop.is_wanted()
}
