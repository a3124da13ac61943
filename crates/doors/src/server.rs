//! The listener: accepts, bounds, and stops without losing an answer.
//!
//! axum's own serve loop waits for ever on an open stream; here stopping has a deadline, after which what is still open is
//! closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_kernel::{Code, Error, Result};

use crate::Settings;
use crate::connections::Connections;
use crate::front::{Connected, Front};

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
/// After an error of accept (no more file descriptors): others may close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Listener {
    socket: TcpListener,
    pub address: SocketAddr,
}

impl Listener {
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let refused = |error: std::io::Error| {
            let why = match error.kind() {
                std::io::ErrorKind::AddrInUse => "another program is listening there".to_owned(),
                _ => error.to_string(),
            };
            Error::new(Code::AddressUnusable, format!("Cannot listen on {address}: {why}."))
        };
        let socket = TcpListener::bind(address).await.map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        Ok(Self { socket, address })
    }
}

/// Serves until `stopping`, then lets requests under way finish for at most the drain time.
pub async fn serve(listener: Listener, front: Front, settings: &Settings, stopping: CancellationToken) {
    let tasks = TaskTracker::new();
    let closing = CancellationToken::new();
    let connections = Connections::new(settings);
    let watch = tokio::spawn(connections.clone().watch(closing.clone()));
    let builder = Arc::new(builder(settings));
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener.socket) => accepted,
            () = stopping.cancelled() => break,
        };
        // Without room the connection is closed here: left to wait, it would look as if the server were slow.
        let Some(entered) = connections.enter(peer) else { continue };
        let _ = stream.set_nodelay(true);
        let (builder, front) = (Arc::clone(&builder), front.clone());
        let (stopping, closing) = (stopping.clone(), closing.clone());
        tasks.spawn(async move {
            let service = Connected { front, connection: Arc::clone(&entered.0) };
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
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
    drop(listener);
    tasks.close();
    if tokio::time::timeout(Duration::from_millis(settings.drain_ms), tasks.wait()).await.is_err() {
        tracing::warn!(open = tasks.len(), "the drain time is over; open connections are closed");
    }
    closing.cancel();
    tasks.wait().await;
    let _ = watch.await;
}

async fn accept(socket: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match socket.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
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
