//! What of requests is not read. Heads that cannot be: the parser answers them by itself, before anything of ours hears of them,
//! with a status and no more; here its answer becomes one as all others are: with a body, an id, and a line in the log. And
//! bodies that were refused before their end: their clients hear it before the connection is gone. And what comes behind a request
//! while that is answered: the parser leaves it where it is, and the end behind it unseen.

use std::io;
use std::mem::MaybeUninit;
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

/// Most that is read behind a request that is being answered. Whoever sends more is only seen to be gone by what is written to it.
pub(crate) const AHEAD_BYTES: usize = 4 << 10;

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
    /// What came behind a request that is being answered, for the parser.
    ahead: Vec<u8>,
    /// Present once such an answer is written, or a body was left and its answer is.
    parting: Option<Pin<Box<Sleep>>>,
}

impl<S> Unread<S> {
    pub(crate) fn new(stream: S, guest: Arc<Guest>, app: Arc<App>) -> Self {
        Unread { stream, guest, app, silent_at: Some(0), refusal: None, ahead: Vec::new(), parting: None }
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

impl<S: AsyncRead + Unpin> Unread<S> {
    /// Whether the client is gone that waits for an answer. To see its end, what comes before it is read, as far as there is room;
    /// the task wakes when there is more.
    fn is_alone(&mut self, cx: &mut Context<'_>) -> bool {
        while self.ahead.len() < AHEAD_BYTES {
            // Nothing is written into it mostly: this comes with every event of a stream.
            let mut piece = [MaybeUninit::uninit(); AHEAD_BYTES];
            let mut piece = ReadBuf::uninit(&mut piece[self.ahead.len()..]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut piece) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                    self.ahead.extend_from_slice(piece.filled());
                }
                Poll::Ready(_) => return true,
            }
        }
        false
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        give(&mut self.ahead, buf);
        Poll::Ready(Ok(()))
    }
}

/// Moves as many bytes as there is room for.
fn give(ahead: &mut Vec<u8>, buf: &mut ReadBuf<'_>) {
    let bytes = ahead.len().min(buf.remaining());
    buf.put_slice(&ahead[..bytes]);
    ahead.drain(..bytes);
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

    /// The parser flushes when it has nothing more to write, and whenever it looks whether there is something to do.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.parting.is_some() {
            return Poll::Ready(Ok(()));
        }
        if let Some(heard) = self.guest.all_answered() {
            self.silent_at = Some(heard);
        } else if self.guest.has_said_all() && self.is_alone(cx) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_ahead_comes_in_order_however_little_room_there_is() {
        let (mut ahead, mut read) = (b"GET /version".to_vec(), Vec::new());
        while !ahead.is_empty() {
            let mut room = [0; 5];
            let mut buf = ReadBuf::new(&mut room);
            give(&mut ahead, &mut buf);
            read.extend_from_slice(buf.filled());
        }
        assert_eq!(read, b"GET /version");
    }
}
