//! The server: serves connections of every listener within its bounds, and stops without losing an answer.
//!
//! axum's own serve loop waits for ever on an open stream; here stopping has a deadline, after which what is still open is
//! closed.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Settings;
use crate::commons::Commons;
use crate::front::{Connected, Front};
use crate::listener::Listener;
use crate::mount::Mount;

/// More than any client sends; hyper answers 431 beyond.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 64 << 10;
const HTTP2_HEADER_BYTES_MAX: u32 = 16 << 10;
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
/// What one stream and one connection may send before somebody has read it: all of it is kept in memory.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// What is made ready of one stream's answer before its client has taken it.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;

/// All listeners of one server, and the end of all of them together.
pub struct Server {
    commons: Commons,
    builder: Arc<auto::Builder<TokioExecutor>>,
    accepting: TaskTracker,
    connections: TaskTracker,
    /// No more is accepted; what is under way is answered.
    stopping: CancellationToken,
    /// What is still open is closed.
    closing: CancellationToken,
    drain: Duration,
}

impl Server {
    pub fn new(commons: Commons, settings: &Settings, stopping: CancellationToken) -> Self {
        Self {
            commons,
            builder: Arc::new(builder(settings)),
            accepting: TaskTracker::new(),
            connections: TaskTracker::new(),
            stopping,
            closing: CancellationToken::new(),
            drain: Duration::from_millis(settings.drain_ms),
        }
    }

    /// Whoever comes to `listener` speaks to `mount`.
    pub fn open<M: Mount>(&self, listener: Listener, mount: M) {
        let front = Front::new(self.commons.clone(), mount);
        let opened = Opened {
            commons: self.commons.clone(),
            builder: Arc::clone(&self.builder),
            connections: self.connections.clone(),
            stopping: self.stopping.clone(),
            closing: self.closing.clone(),
        };
        self.accepting.spawn(opened.accept(listener, front));
    }

    /// Serves until it is told to stop, then lets requests under way finish for at most the drain time.
    pub async fn run(self) {
        let watch = tokio::spawn(self.commons.clone().watch(self.closing.clone()));
        self.accepting.close();
        self.accepting.wait().await;
        self.connections.close();
        if tokio::time::timeout(self.drain, self.connections.wait()).await.is_err() {
            tracing::warn!(open = self.connections.len(), "the drain time is over; open connections are closed");
        }
        self.closing.cancel();
        self.connections.wait().await;
        let _ = watch.await;
    }
}

/// What the loop of one listener needs of its server.
struct Opened {
    commons: Commons,
    builder: Arc<auto::Builder<TokioExecutor>>,
    connections: TaskTracker,
    stopping: CancellationToken,
    closing: CancellationToken,
}

impl Opened {
    async fn accept<M: Mount>(self, listener: Listener, front: Front<M>) {
        loop {
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stopping.cancelled() => break,
            };
            // Without room the connection is closed here: left to wait, it would look as if the server were slow.
            let Some(entered) = self.commons.connections.enter(peer) else { continue };
            let builder = Arc::clone(&self.builder);
            let service = Connected { front: front.clone(), connection: Arc::clone(&entered.0) };
            let (stopping, closing) = (self.stopping.clone(), self.closing.clone());
            self.connections.spawn(async move {
                // Pinned where it is made: a name for it before that would have room in the task as well.
                let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
                tokio::select! {
                    _ = connection.as_mut() => return,
                    () = entered.0.closed() => return,
                    () = stopping.cancelled() => connection.as_mut().graceful_shutdown(),
                }
                tokio::select! {
                    _ = connection => {}
                    () = entered.0.closed() => {}
                    () = closing.cancelled() => {}
                }
            });
        }
    }
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(settings.header_read_ms))
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    builder
}
