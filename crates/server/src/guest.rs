//! Connections while the server lives and while it ends: which of them have been heard, whether one is being answered, and
//! which of them the end waits for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{Notify, watch};

/// What is known of one connection, to the side that answers and to the side that writes.
#[derive(Default)]
pub(crate) struct Guest {
    /// Requests that were heard on it.
    heard: AtomicU64,
    /// Those whose answers are over.
    answered: AtomicU64,
    first: Notify,
    /// Bodies that are being read.
    bodies: AtomicU64,
    /// A body was left before it was read to its end.
    left: AtomicBool,
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

    /// Whether the bodies of all requests that were heard are read to their ends.
    pub(crate) fn has_said_all(&self) -> bool {
        self.bodies.load(SeqCst) == 0 && !self.has_left_a_body()
    }

    /// Whether its client may still be sending what nobody reads.
    pub(crate) fn has_left_a_body(&self) -> bool {
        self.left.load(SeqCst)
    }

    /// Until the first request is heard.
    pub(crate) async fn first(&self) {
        if self.heard() == 0 {
            self.first.notified().await;
        }
    }
}

/// A request's body, which tells if it is left before its end: it was refused, or its client gone.
pub(crate) struct Heard {
    body: Incoming,
    is_over: bool,
    guest: Arc<Guest>,
}

impl Heard {
    pub(crate) fn new(body: Incoming, guest: Arc<Guest>) -> Heard {
        let is_over = body.is_end_stream();
        guest.bodies.fetch_add(u64::from(!is_over), SeqCst);
        Heard { is_over, body, guest }
    }
}

impl Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let is_over = frame.is_none() || self.body.is_end_stream();
        if is_over && !std::mem::replace(&mut self.is_over, true) {
            self.guest.bodies.fetch_sub(1, SeqCst);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if !self.is_over {
            self.guest.left.store(true, SeqCst);
            self.guest.bodies.fetch_sub(1, SeqCst);
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
