//! One wake-up for all the tokens of a step. Waking a task from a thread that computes costs a call to the system, as
//! much as what the task then does with its token; here only the first of a burst costs one. It wakes a task that wakes
//! the others, on their own thread, where that costs next to nothing. Nothing is ever held back for a time.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Rung by threads that compute, heard by those of the connections.
#[derive(Default)]
pub(crate) struct Bell {
    /// Whose events have come since it was heard last.
    rung: Mutex<Vec<Arc<Ring>>>,
    listener: AtomicWaker,
}

/// A task that waits for events; waking this wakes it by way of the bell.
pub(crate) struct Ring {
    bell: Arc<Bell>,
    task: AtomicWaker,
}

impl Bell {
    /// For one task.
    pub(crate) fn ring(self: &Arc<Bell>) -> Arc<Ring> {
        Arc::new(Ring { bell: Arc::clone(self), task: AtomicWaker::new() })
    }

    /// Wakes tasks as the bell rings, for ever.
    pub(crate) async fn listen(self: Arc<Bell>) {
        let mut heard = Vec::new();
        loop {
            poll_fn(|cx| self.heard(cx, &mut heard)).await;
            heard.drain(..).for_each(|ring: Arc<Ring>| ring.task.wake());
        }
    }

    fn heard(&self, cx: &Context<'_>, heard: &mut Vec<Arc<Ring>>) -> Poll<()> {
        // Before looking: whoever rings after the look finds a listener to wake.
        self.listener.register(cx.waker());
        std::mem::swap(&mut *self.lock(), heard);
        if heard.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    fn add(&self, ring: Arc<Ring>) {
        let first = {
            let mut rung = self.lock();
            rung.push(ring);
            rung.len() == 1
        };
        if first {
            self.listener.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Ring>>> {
        self.rung.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Ring {
    /// The task that is to be woken, from now on.
    pub(crate) fn wakes(&self, task: &Waker) {
        self.task.register(task);
    }
}

impl Wake for Ring {
    fn wake(self: Arc<Ring>) {
        let bell = Arc::clone(&self.bell);
        bell.add(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(woken: &Arc<Woken>) -> usize {
        woken.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_burst_wakes_the_listener_once_and_every_task_once() {
        let bell = Arc::new(Bell::default());
        let listener = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&listener));
        let mut cx = Context::from_waker(&waker);
        let mut listening = Box::pin(Arc::clone(&bell).listen());
        assert!(listening.as_mut().poll(&mut cx).is_pending());
        let tasks: Vec<Arc<Woken>> = (0..5).map(|_| Arc::default()).collect();
        let rings: Vec<Arc<Ring>> = tasks.iter().map(|_| bell.ring()).collect();
        for round in 1..4 {
            for (ring, task) in rings.iter().zip(&tasks) {
                ring.wakes(&Waker::from(Arc::clone(task)));
                Waker::from(Arc::clone(ring)).wake();
            }
            assert_eq!(count(&listener), round);
            assert!(listening.as_mut().poll(&mut cx).is_pending());
            assert!(tasks.iter().all(|task| count(task) == round));
        }
    }

    #[tokio::test]
    async fn nothing_is_lost_between_threads() {
        let bell = Arc::new(Bell::default());
        tokio::spawn(Arc::clone(&bell).listen());
        let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
        let ring = bell.ring();
        let waker = Waker::from(Arc::clone(&ring));
        std::thread::spawn(move || (0..100_000).try_for_each(|n| sender.send(n)));
        let mut next = 0;
        while let Some(n) = poll_fn(|cx| {
            ring.wakes(cx.waker());
            events.poll_recv(&mut Context::from_waker(&waker))
        })
        .await
        {
            assert_eq!(n, next);
            next += 1;
        }
        assert_eq!(next, 100_000);
    }
}
