//! What of requests is not read. Heads that cannot be: the parser answers them by itself, before anything of ours hears of them,
//! with a status and no more; here its answer becomes one as all others are: with a body, an id, and a line in the log. And
//! bodies that were refused before their end: their clients hear it before the connection is gone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::account;
use crate::app::App;
use crate::guest::Guest;
use crate::refusal;

/// How long what such a client still sends is read and dropped: what is closed before that is reset, and the answer with it.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// A stream on which the parser's answers are ours.
pub(crate) struct Unread<S> {
    stream: S,
    guest: Arc<Guest>,
    app: Arc<App>,
    /// So many requests were heard when all answers were over and written. As long as there are no more, whatever is written
    /// is the parser's.
    silent_at: Option<u64>,
    /// What is still to be written of our answer, instead of the parser's.
    refusal: Option<Vec<u8>>,
    /// Present once such an answer is written, or a body was left and its answer is.
    parting: Option<Pin<Box<Sleep>>>,
}

impl<S> Unread<S> {
    pub(crate) fn new(stream: S, guest: Arc<Guest>, app: Arc<App>) -> Self {
        Unread { stream, guest, app, silent_at: Some(0), refusal: None, parting: None }
    }

    /// Our answer, if this is one of the parser's.
    fn instead(&self, written: &[u8]) -> Option<Vec<u8>> {
        if self.silent_at != Some(self.guest.heard()) {
            return None;
        }
        let head = std::str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let (_, id) = self.app.number();
        account::unread(&self.app, &id, status);
        let body = refusal::unread(status).body().to_string();
        let kept: String = head
            .split("\r\n")
            .filter(|line| !line.starts_with("content-length"))
            .map(|line| format!("{line}\r\n"))
            .collect();
        let ours = format!(
            "content-type: application/json\r\nx-request-id: req-{id}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Some((kept + &ours).into_bytes())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Unread<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.refusal.is_none() {
            this.refusal = this.instead(buf);
        }
        let Some(rest) = &mut this.refusal else { return Pin::new(&mut this.stream).poll_write(cx, buf) };
        while !rest.is_empty() {
            match ready!(Pin::new(&mut this.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => drop(rest.drain(..n)),
            }
        }
        (this.refusal, this.silent_at) = (None, None);
        this.parting = Some(Box::pin(sleep(LAST_BYTES)));
        Poll::Ready(Ok(buf.len()))
    }

    /// The parser flushes when it has nothing more to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if let Some(heard) = self.guest.all_answered().filter(|_| self.parting.is_none()) {
            self.silent_at = Some(heard);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        let this = &mut *self;
        if this.guest.has_left_a_body() && this.parting.is_none() {
            this.parting = Some(Box::pin(sleep(LAST_BYTES)));
        }
        let Some(parting) = &mut this.parting else { return Poll::Ready(Ok(())) };
        // Before anything is read: a client that never pauses would leave no turn for the clock.
        if parting.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut dropped = [0; 4096];
        loop {
            let mut piece = ReadBuf::new(&mut dropped);
            match Pin::new(&mut this.stream).poll_read(cx, &mut piece) {
                Poll::Ready(Ok(())) if !piece.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
