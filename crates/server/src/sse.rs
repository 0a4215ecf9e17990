//! Streams of server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use model::api::{ApiError, Chunks, News};
use tokio::time::{Instant, timeout_at};

use crate::live::{self, Live};

/// An answer that is being sent.
struct Stream {
    live: Live,
    chunks: Chunks,
    ping_every: Duration,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Going,
    Over,
}

/// The answer as events, sent as they come. A comment keeps a silent stream open.
pub(crate) fn response(live: Live, chunks: Chunks, ping_every: Duration) -> Response {
    let stream = Stream { live, chunks, ping_every, state: State::Going };
    let body = Body::from_stream(futures_util::stream::unfold(stream, Stream::frame));
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    (headers, [("x-accel-buffering", "no")], body).into_response()
}

impl Stream {
    /// The next events to send, as many as are here.
    async fn frame(mut self) -> Option<(Result<Bytes, Infallible>, Stream)> {
        if self.state == State::Over {
            return None;
        }
        let ping_at = Instant::now() + self.ping_every;
        let mut text = String::new();
        while text.is_empty() {
            match timeout_at(ping_at, self.live.next()).await {
                Err(_) => text.push_str(": ping\n\n"),
                Ok(news) => self.write(news, &mut text),
            }
            while self.state == State::Going
                && let Some(news) = self.live.next_now()
            {
                self.write(Some(news), &mut text);
            }
        }
        Some((Ok(text.into()), self))
    }

    fn write(&mut self, news: Option<Result<live::News, ApiError>>, text: &mut String) {
        self.chunks.found_in_cache(self.live.cached_tokens());
        match news {
            Some(Ok((index, piece))) => {
                let news = News {
                    index,
                    choice: self.live.choice(index),
                    text: &piece.text,
                    tokens: &piece.tokens,
                    finish: piece.finish.as_ref(),
                };
                self.chunks.of(&news).iter().for_each(|chunk| event(text, chunk));
            }
            Some(Err(error)) => {
                event(text, &error.body());
                self.state = State::Over;
            }
            None => {
                self.chunks.usage().iter().for_each(|chunk| event(text, chunk));
                event(text, &"[DONE]");
                self.state = State::Over;
            }
        }
    }
}

fn event(text: &mut String, data: &dyn std::fmt::Display) {
    write!(text, "data: {data}\n\n").expect("writing to a string");
}
