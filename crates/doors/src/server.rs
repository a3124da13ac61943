//! The server: serves connections of every listener within its bounds, and stops without losing an answer.
//!
//! axum's own serve loop waits for ever on an open stream; here stopping has a deadline, after which what is still open is
//! closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Settings;
use crate::commons::Commons;
use crate::connections::{Connection, Order};
use crate::front::{Connected, Front};
use crate::listener::Listener;
use crate::mount::Mount;
use crate::takeover::Sessions;
use crate::wire::Wire;

/// More than any client sends. Above it hyper answers 431.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 64 << 10;
const HTTP2_HEADER_BYTES_MAX: u32 = 16 << 10;
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
/// How much one stream and one connection may send before the server has read it. All of it is kept in memory.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// How much of one stream's answer is prepared before its client has taken it.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;

/// All listeners of one server. They stop together.
pub struct Server {
    commons: Commons,
    protocols: Arc<Protocols>,
    accepting: TaskTracker,
    connections: TaskTracker,
    /// No new connection is accepted; requests under way are answered.
    stopping: CancellationToken,
    /// Connections that are still open are closed.
    closing: CancellationToken,
    drain: Duration,
}

impl Server {
    pub fn new(commons: Commons, settings: &Settings, stopping: CancellationToken) -> Self {
        Self {
            commons,
            protocols: Arc::new(Protocols::new(settings)),
            accepting: TaskTracker::new(),
            connections: TaskTracker::new(),
            stopping,
            closing: CancellationToken::new(),
            drain: Duration::from_millis(settings.drain_ms),
        }
    }

    /// Serves `mount` on `listener`.
    pub fn open<M: Mount>(&self, listener: Listener, mount: M) {
        let sessions = Sessions {
            running: self.connections.clone(),
            stopping: self.stopping.clone(),
            closing: self.closing.clone(),
        };
        let front = Front::new(self.commons.clone(), sessions, mount);
        let opened = Opened {
            commons: self.commons.clone(),
            protocols: Arc::clone(&self.protocols),
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
    protocols: Arc<Protocols>,
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
            // Without room the connection is closed here. Left waiting, it would make the server look slow.
            let Some(entered) = self.commons.connections.enter(peer) else { continue };
            let service = Connected { front: front.clone(), connection: Arc::clone(&entered.0) };
            let served = Served {
                protocols: Arc::clone(&self.protocols),
                stopping: self.stopping.clone(),
                closing: self.closing.clone(),
            };
            self.connections.spawn(served.serve(Wire::new(stream, entered), service));
        }
    }
}

/// What the task of one connection needs of its server.
struct Served {
    protocols: Arc<Protocols>,
    stopping: CancellationToken,
    closing: CancellationToken,
}

impl Served {
    async fn serve<M: Mount>(self, wire: Wire, service: Connected<M>) {
        let connection = Arc::clone(wire.connection());
        let is_http2 = tokio::select! {
            found = wire.speaks_http2() => found,
            () = connection.closed() => return,
            () = self.stopping.cancelled() => return,
        };
        match is_http2 {
            Ok(false) => self.serve_http1(wire, service, &connection).await,
            // Boxed: this future is several times larger than what most connections ever need.
            Ok(true) => Box::pin(self.serve_http2(wire, service, &connection)).await,
            Err(_) => {}
        }
    }

    /// Between the requests of a seldom used connection only its socket is kept. hyper holds two buffers for as long as it runs,
    /// which is five times what the rest of a connection takes.
    async fn serve_http1<M: Mount>(self, mut wire: Wire, mut service: Connected<M>, connection: &Connection) {
        loop {
            // Boxed, so that a resting connection does not carry its size.
            let mut http = Box::new(self.protocols.http1.serve_connection(wire, service).with_upgrades());
            loop {
                tokio::select! {
                    _ = &mut *http => return,
                    order = connection.told() => match order {
                        Order::Close => return,
                        Order::Rest if connection.may_rest(Instant::now()) => break,
                        Order::Rest => {}
                    },
                    () = self.stopping.cancelled() => {
                        std::pin::Pin::new(&mut *http).graceful_shutdown();
                        return self.finish(http, connection).await;
                    }
                }
            }
            // A connection that was upgraded has ended for this loop: its session is a task of its own.
            let Some(parts) = http.into_parts() else { return };
            wire = parts.io.with_read_before(parts.read_buf);
            service = parts.service;
            let _resting = connection.rest();
            tokio::select! {
                readable = wire.readable() => if readable.is_err() { return },
                () = connection.closed() => return,
                () = self.stopping.cancelled() => return,
            }
        }
    }

    async fn serve_http2<M: Mount>(self, wire: Wire, service: Connected<M>, connection: &Connection) {
        let mut http = std::pin::pin!(self.protocols.http2.serve_connection(wire, service));
        tokio::select! {
            _ = http.as_mut() => return,
            () = connection.closed() => return,
            () = self.stopping.cancelled() => http.as_mut().graceful_shutdown(),
        }
        self.finish(http, connection).await;
    }

    /// Answers requests under way until the drain time is over.
    async fn finish(&self, http: impl Future<Output = hyper::Result<()>>, connection: &Connection) {
        tokio::select! {
            _ = http => {}
            () = connection.closed() => {}
            () = self.closing.cancelled() => {}
        }
    }
}

/// How each version of HTTP is spoken.
struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    fn new(settings: &Settings) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(settings.header_read_ms))
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEADER_BYTES_MAX);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
            .keep_alive_interval(Some(Duration::from_secs(30)));
        Self { http1, http2 }
    }
}
