//! The listener: accepts, bounds, and stops without losing an answer.
//!
//! axum's own serve loop waits for ever on an open stream; here stopping has a deadline, after which what is still open is
//! closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_kernel::{Code, Error, Result};

use crate::Settings;

/// More than any client sends; hyper answers 431 beyond.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 64 << 10;
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
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
pub async fn serve(listener: Listener, router: Router, settings: &Settings, stopping: CancellationToken) {
    let connections = TaskTracker::new();
    let closing = CancellationToken::new();
    let places = Arc::new(Semaphore::new(settings.connections_max));
    let builder = Arc::new(builder(settings));
    let first_request = Duration::from_millis(settings.header_read_ms);
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener.socket, &places) => accepted,
            () = stopping.cancelled() => break,
        };
        let _ = stream.set_nodelay(true);
        let (builder, router) = (Arc::clone(&builder), router.clone());
        let (stopping, closing) = (stopping.clone(), closing.clone());
        connections.spawn(async move {
            let _place = place;
            let asked = Arc::new(AtomicBool::new(false));
            let service = Watched { inner: TowerToHyperService::new(router), asked: Arc::clone(&asked) };
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                () = silence(&asked, first_request) => return,
                () = stopping.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            tokio::select! {
                _ = connection => {}
                () = closing.cancelled() => {}
            }
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(Duration::from_millis(settings.drain_ms), connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "the drain time is over; open connections are closed");
        closing.cancel();
        connections.wait().await;
    }
}

/// Knows whether anything was ever asked.
struct Watched<S> {
    inner: S,
    asked: Arc<AtomicBool>,
}

impl<S: hyper::service::Service<R>, R> hyper::service::Service<R> for Watched<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: R) -> Self::Future {
        self.asked.store(true, Ordering::Relaxed);
        self.inner.call(request)
    }
}

/// Ends when nothing was asked for so long. hyper's own deadline begins with the first byte that is HTTP/1, so that who says
/// nothing, or half of HTTP/2's greeting, could keep its place for ever.
async fn silence(asked: &AtomicBool, first_request: Duration) {
    tokio::time::sleep(first_request).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

async fn accept(
    socket: &TcpListener,
    places: &Arc<Semaphore>,
) -> (tokio::net::TcpStream, Option<OwnedSemaphorePermit>) {
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match socket.accept().await {
            Ok((stream, _)) => return (stream, place),
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
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    builder
}
