//! Streams of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use model::api::{ApiError, Events, News};
use tokio::time::{Instant, Sleep};

use crate::crowd::FRAME_BYTES;
use crate::live::{self, Live};

/// What most frames need.
const USUAL_BYTES: usize = 512;

/// An answer that is being sent.
struct Stream {
    live: Live,
    told: Events,
    ping_every: Duration,
    /// The newest frame.
    sent: Instant,
    /// Set once and moved on when it is due: most frames come long before.
    ping: Pin<Box<Sleep>>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Going,
    Over,
}

/// The answer as events, sent as they come. A comment keeps a silent stream open.
pub(crate) fn response(live: Live, told: Events, ping_every: Duration) -> Response {
    let ping = Box::pin(tokio::time::sleep(ping_every));
    let stream = Stream { live, told, ping_every, sent: Instant::now(), ping, state: State::Going };
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, [("x-accel-buffering", "no")], Body::new(stream)).into_response()
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    /// The next events to send, as many as are here.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.state == State::Over {
            return Poll::Ready(None);
        }
        let mut events = Vec::new();
        while self.state == State::Going
            && events.len() < FRAME_BYTES
            && let Poll::Ready(news) = self.live.poll_next(cx)
        {
            if events.capacity() == 0 {
                events.reserve(USUAL_BYTES);
            }
            self.write(news, &mut events);
        }
        if events.is_empty() && self.poll_ping(cx).is_ready() {
            events.extend_from_slice(b": ping\n\n");
        }
        if events.is_empty() {
            return Poll::Pending;
        }
        self.sent = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(events.into()))))
    }
}

impl Stream {
    /// Ready once nothing has been sent for so long that a comment is due.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ping.as_mut().poll(cx).is_ready() {
            let (now, due) = (Instant::now(), self.sent + self.ping_every);
            if due <= now {
                self.ping.as_mut().reset(now + self.ping_every);
                return Poll::Ready(());
            }
            self.ping.as_mut().reset(due);
        }
        Poll::Pending
    }

    fn write(&mut self, news: Option<Result<live::News, ApiError>>, events: &mut Vec<u8>) {
        self.told.found_in_cache(self.live.cached_tokens());
        match news {
            Some(Ok((index, piece))) => {
                let news = News {
                    index,
                    choice: self.live.choice(index),
                    text: &piece.text,
                    tokens: &piece.tokens,
                    finish: piece.finish.as_ref(),
                };
                if let Some(timings) = self.live.timings().filter(|_| piece.finish.is_some()) {
                    self.told.timed(timings);
                }
                self.told.news(&news, events);
            }
            Some(Err(error)) => {
                self.told.failed(&error, events);
                self.state = State::Over;
            }
            None => {
                self.told.ended(events);
                self.state = State::Over;
            }
        }
    }
}
