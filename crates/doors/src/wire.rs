//! The socket of one connection, as HTTP's own code reads and writes it.
//!
//! It keeps the connection's place in the table for as long as the socket is open, also when another protocol has taken it
//! over, and notes whether anything is on its way: what lies between HTTP's buffers and the socket nobody else can see.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio_util::either::Either;

use crate::connections::{Connection, Entered};
use crate::listener::Stream;

/// No method of HTTP/1 begins like the first words of an HTTP/2 connection.
const HTTP2_BEGINS: &[u8] = b"PRI";
/// Somebody sent one or two of those three bytes, which look the same until the next has come.
const NEXT_BYTE_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

pub(crate) struct Wire {
    socket: TokioIo<Stream>,
    /// Read before, and not yet taken.
    before: Bytes,
    entered: Entered,
}

impl Wire {
    pub(crate) fn new(stream: Stream, entered: Entered) -> Self {
        Self { socket: TokioIo::new(stream), before: Bytes::new(), entered }
    }

    /// With bytes that HTTP's code had read ahead when it was stopped.
    pub(crate) fn with_read_before(mut self, before: Bytes) -> Self {
        // An empty one may still keep the buffer that it was a part of.
        if !before.is_empty() {
            self.entered.0.has_read();
            self.before = before;
        }
        self
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.entered.0
    }

    /// Waits for the first bytes and leaves them where they are. Read ahead, they would cost HTTP/1's code a second, larger
    /// buffer for as long as the connection lives.
    pub(crate) async fn speaks_http2(&self) -> io::Result<bool> {
        let mut seen = [0; HTTP2_BEGINS.len()];
        loop {
            let length = self.peek(&mut seen).await?;
            if length == 0 || seen[..length] != HTTP2_BEGINS[..length] {
                return Ok(false);
            }
            if length == seen.len() {
                return Ok(true);
            }
            tokio::time::sleep(NEXT_BYTE_PAUSE).await;
        }
    }

    async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut look = |socket: std::os::fd::BorrowedFd<'_>| {
            let (_, length) = rustix::net::recv(socket, &mut *into, RecvFlags::PEEK)?;
            Ok(length)
        };
        use std::os::fd::AsFd as _;
        match self.socket.inner() {
            Either::Left(tcp) => tcp.async_io(Interest::READABLE, || look(tcp.as_fd())).await,
            Either::Right(unix) => unix.async_io(Interest::READABLE, || look(unix.as_fd())).await,
        }
    }

    /// Ends when there is something to read, or the other side has closed.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self.socket.inner() {
            Either::Left(tcp) => tcp.readable().await,
            Either::Right(unix) => unix.readable().await,
        }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.before.is_empty() {
            let length = self.before.len().min(buffer.remaining());
            buffer.put_slice(&self.before.split_to(length));
            if self.before.is_empty() {
                self.before = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            self.entered.0.has_read();
        }
        read
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.entered.0.is_writing();
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.entered.0.is_writing();
        Pin::new(&mut self.socket).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Asked for when everything has been written, and only then.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        if flushed.is_ready() {
            self.entered.0.has_written();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
