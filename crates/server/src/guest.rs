//! Connections while the server lives and while it ends: which of them have been heard, whether one is being answered, and
//! which of them the end waits for.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tokio::sync::{Notify, watch};

/// What is known of one connection, to the side that answers and to the side that writes.
#[derive(Default)]
pub(crate) struct Guest {
    /// Requests that were heard on it.
    heard: AtomicU64,
    /// Those whose answers are over.
    answered: AtomicU64,
    first: Notify,
}

/// A request that is being answered, until it is dropped.
pub(crate) struct Answering(Arc<Guest>);

impl Guest {
    /// A request was heard.
    pub(crate) fn answering(self: &Arc<Self>) -> Answering {
        self.heard.fetch_add(1, SeqCst);
        self.first.notify_one();
        Answering(Arc::clone(self))
    }

    /// How many requests were heard.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(SeqCst)
    }

    /// The same, if all of them have been answered.
    pub(crate) fn all_answered(&self) -> Option<u64> {
        let heard = self.heard();
        (self.answered.load(SeqCst) == heard).then_some(heard)
    }

    /// Until the first request is heard.
    pub(crate) async fn first(&self) {
        if self.heard() == 0 {
            self.first.notified().await;
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, SeqCst);
    }
}

/// The connections that the end waits for.
pub(crate) struct Guests(watch::Sender<()>);

/// One of them, until it is dropped.
pub(crate) struct Waited(watch::Receiver<()>);

impl Guests {
    pub(crate) fn new() -> Guests {
        Guests(watch::Sender::new(()))
    }

    pub(crate) fn waited(&self) -> Waited {
        Waited(self.0.subscribe())
    }

    /// Tells all of them that this is the end. Until all are gone.
    pub(crate) fn part(self) -> impl Future<Output = ()> {
        self.0.send_replace(());
        async move { self.0.closed().await }
    }
}

impl Waited {
    /// Until it is the end.
    pub(crate) async fn end(&mut self) {
        // Without a sender it is the end, too.
        let _ = self.0.changed().await;
    }
}
