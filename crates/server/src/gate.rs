//! How much may wait. A request is counted when its body is here, before any work is spent on it, until its
//! sequences have brought something; what the scheduler preempts is inside already and never counted again.

use std::sync::{Arc, Mutex, MutexGuard};

/// Limits of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) requests: usize,
    pub(crate) tokens: usize,
}

impl Limits {
    /// What waits takes at the most.
    pub(crate) fn bytes(self) -> u64 {
        engine::queue_bytes(self.requests, self.tokens)
    }
}

/// Counts what waits.
pub(crate) struct Gate {
    limits: Limits,
    queued: Mutex<Queued>,
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) requests: usize,
    pub(crate) tokens: usize,
}

/// Which limit a request ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Requests,
    Tokens,
}

/// A place in the queue, given back when dropped.
pub(crate) struct Permit {
    gate: Arc<Gate>,
    holds: Queued,
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Arc<Gate> {
        Arc::new(Gate { limits, queued: Mutex::default() })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn queued(&self) -> Queued {
        *self.lock()
    }

    /// A place for one request of about so many prompt tokens. Where none waits, any number of tokens may.
    pub(crate) fn enter(self: &Arc<Gate>, tokens: usize) -> Result<Permit, Full> {
        let mut queued = self.lock();
        if queued.requests >= self.limits.requests {
            return Err(Full::Requests);
        }
        if queued.requests > 0 && queued.tokens + tokens > self.limits.tokens {
            return Err(Full::Tokens);
        }
        queued.requests += 1;
        queued.tokens += tokens;
        Ok(Permit { gate: Arc::clone(self), holds: Queued { requests: 1, tokens } })
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Permit {
    /// A place for each sequence, now that they are known, by their prompt tokens. There may be many more than the body
    /// promised, where each prompt has several answers.
    pub(crate) fn split(self, tokens: &[usize]) -> Result<Vec<Permit>, Full> {
        let gate = Arc::clone(&self.gate);
        {
            let mut queued = gate.lock();
            if queued.requests - self.holds.requests + tokens.len() > gate.limits.requests {
                return Err(Full::Requests);
            }
            let sum = tokens.iter().sum::<usize>();
            let is_alone = queued.requests == self.holds.requests;
            if !is_alone && queued.tokens - self.holds.tokens + sum > gate.limits.tokens {
                return Err(Full::Tokens);
            }
            queued.requests += tokens.len();
            queued.tokens += sum;
        }
        let permit =
            |&tokens: &usize| Permit { gate: Arc::clone(&gate), holds: Queued { requests: 1, tokens } };
        Ok(tokens.iter().map(permit).collect())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queued = self.gate.lock();
        queued.requests -= self.holds.requests;
        queued.tokens -= self.holds.tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_come_back() {
        let gate = Gate::new(Limits { requests: 3, tokens: 100 });
        let a = gate.enter(60).ok().unwrap();
        assert_eq!(gate.enter(41).err(), Some(Full::Tokens));
        let b = gate.enter(40).ok().unwrap();
        assert_eq!(b.split(&[5, 5, 5]).err(), Some(Full::Requests), "and its own place is back");
        assert_eq!(gate.queued(), Queued { requests: 1, tokens: 60 });
        let refused = gate.enter(1).ok().unwrap().split(&[34, 7]).err();
        assert_eq!(refused, Some(Full::Tokens), "more than its body promised");
        let parts = gate.enter(1).ok().unwrap().split(&[33, 7]).ok().unwrap();
        assert_eq!(gate.queued(), Queued { requests: 3, tokens: 100 });
        assert_eq!(gate.enter(0).err(), Some(Full::Requests));
        drop((a, parts));
        assert_eq!(gate.queued(), Queued::default());
        let alone = gate.enter(1_000_000).expect("one alone may be larger than the limit");
        assert!(alone.split(&[900_000, 900_000]).is_ok(), "and become larger");
    }
}
