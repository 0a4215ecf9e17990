//! A form on its way to its parser. The parser keeps what it can make nothing of yet, however much that is, and looks at all of
//! it again whenever more comes: so it is given the next bytes only once it can do nothing with those that it has, and
//! few of them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use axum::Error;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequest, Multipart, Request};
use futures_util::Stream;
use model::api::ApiError;

use crate::refusal;

/// Bytes that may come before the first part of a form, or be the head of one.
const PART_HEAD_BYTES: usize = 16 << 10;

/// What the parser was given since it last made something of it.
#[derive(Default)]
pub(super) struct Given {
    bytes: AtomicUsize,
    /// It has looked at all that it has, and asks for more.
    asks: AtomicBool,
}

impl Given {
    /// The parser made something of what it has; there may be more in it.
    pub(super) fn used(&self) {
        self.bytes.store(0, Relaxed);
        self.asks.store(false, Relaxed);
    }

    fn is_too_much(&self) -> bool {
        self.bytes.load(Relaxed) > PART_HEAD_BYTES
    }

    /// Why the parser ended before the form did.
    pub(super) fn refusal(&self) -> ApiError {
        if self.is_too_much() { refusal::no_part(PART_HEAD_BYTES) } else { refusal::broken_body() }
    }
}

/// A form, and what its parser was given. The parser may say no more than that something is wrong.
pub(super) async fn form(request: Request) -> Result<(Multipart, Arc<Given>), ApiError> {
    let given = Arc::new(Given::default());
    let (head, body) = request.into_parts();
    let feed = Feed { body: body.into_data_stream(), given: Arc::clone(&given) };
    let request = Request::from_parts(head, Body::from_stream(feed));
    let form = Multipart::from_request(request, &()).await.map_err(|_| refusal::no_form())?;
    Ok((form, given))
}

struct Feed {
    body: BodyDataStream,
    given: Arc<Given>,
}

impl Stream for Feed {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // The parser asks before it looks: it looks first, and asks again at once.
        if !self.given.asks.swap(true, Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.given.is_too_much() {
            return Poll::Ready(Some(Err(Error::new("no part of a form is so long"))));
        }
        let bytes = ready!(Pin::new(&mut self.body).poll_next(cx));
        self.given.asks.store(false, Relaxed);
        if let Some(Ok(bytes)) = &bytes {
            self.given.bytes.fetch_add(bytes.len(), Relaxed);
        }
        Poll::Ready(bytes)
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::CONTENT_TYPE;

    use super::*;

    const FRAME_BYTES: usize = 16 << 10;
    const HEAD: &str = "--B\r\nContent-Disposition: form-data; name=\"file\"\r\n";

    /// Bytes of data in a form of these frames, and how many frames were asked for.
    async fn read(frames: impl Iterator<Item = Bytes> + Send + 'static) -> (Result<usize, ApiError>, usize) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let frames = frames.inspect(move |_| {
            counter.fetch_add(1, Relaxed);
        });
        let body = Body::from_stream(futures_util::stream::iter(frames.map(Ok::<_, Error>)));
        let kind = "multipart/form-data; boundary=B";
        let request = Request::builder().header(CONTENT_TYPE, kind).body(body).unwrap();
        let (form, given) = form(request).await.unwrap();
        (sum(form, &given).await, asked.load(Relaxed))
    }

    async fn sum(mut form: Multipart, given: &Given) -> Result<usize, ApiError> {
        let mut sum = 0;
        while let Some(mut field) = form.next_field().await.map_err(|_| given.refusal())? {
            given.used();
            while let Some(bytes) = field.chunk().await.map_err(|_| given.refusal())? {
                given.used();
                sum += bytes.len();
            }
        }
        Ok(sum)
    }

    /// A text in pieces.
    fn cut(text: String, bytes: usize) -> impl Iterator<Item = Bytes> + Send + 'static {
        let text = Bytes::from(text);
        (0..text.len()).step_by(bytes).map(move |at| text.slice(at..text.len().min(at + bytes)))
    }

    /// Without the route's layer a form may have two megabytes.
    #[tokio::test]
    async fn forms_are_as_long_as_they_like_however_they_are_cut() {
        for (parts, bytes) in [(1, 1_900_000), (40, 20_000), (3000, 0)] {
            let data = "\r".repeat(bytes);
            let form = format!("{HEAD}\r\n{data}\r\n").repeat(parts) + "--B--\r\n";
            for piece in [FRAME_BYTES, 4099, 7] {
                let (read, _) = read(cut(form.clone(), piece)).await;
                assert_eq!(read.unwrap(), parts * bytes, "{parts} parts, in pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_part_of_a_form_is_not_collected() {
        let endless = || std::iter::repeat_n(Bytes::from("x".repeat(1000)), 2000);
        for begin in ["", HEAD, "--B\r\n"] {
            let frames = std::iter::once(Bytes::from(begin)).chain(endless());
            let (read, frames) = read(frames).await;
            assert_eq!(read.unwrap_err().code, Some("form_expected"), "{begin:?}");
            assert!(frames < 20, "{begin:?}: {frames} pieces were read");
        }
        // Within a part, everything is data.
        let (read, _) = read(cut(format!("{HEAD}\r\n{}", "x".repeat(100_000)), 1000)).await;
        assert_eq!(read.unwrap_err().code, Some("body_incomplete"));
    }
}
