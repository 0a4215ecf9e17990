//! A connection whose client must read: one that takes nothing for too long is closed, and with it goes all that was
//! being made for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream that fails once a write has waited for `patience`.
pub(crate) struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// Since a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Impatient { stream, patience, stalled: None }
    }

    /// Passes on what a write came to, or that it waited too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn who_does_not_read_is_given_up() {
        let (_client, server) = duplex(8);
        let mut server = Impatient::new(server, Duration::ZERO);
        assert_eq!(server.write(&[0; 8]).await.unwrap(), 8);
        let error = server.write(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_reads_at_last_is_given_all_the_time_again() {
        let (mut client, server) = duplex(8);
        let mut server = Impatient::new(server, Duration::from_secs(3600));
        server.write_all(&[0; 8]).await.unwrap();
        let first = deadline_of_a_write(&mut server).await;
        assert_eq!(deadline_of_a_write(&mut server).await, first, "one wait, however often it is asked");
        client.read_exact(&mut [0; 8]).await.unwrap();
        server.write_all(&[0; 8]).await.unwrap();
        assert_ne!(deadline_of_a_write(&mut server).await, first);
    }

    /// Until when a write that cannot go on waits.
    async fn deadline_of_a_write(server: &mut Impatient<tokio::io::DuplexStream>) -> tokio::time::Instant {
        let wrote = poll_fn(|cx| Poll::Ready(Pin::new(&mut *server).poll_write(cx, &[0]))).await;
        assert!(wrote.is_pending());
        server.stalled.as_ref().expect("it waits").deadline()
    }
}
