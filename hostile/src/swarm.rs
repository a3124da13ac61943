//! Many requests at a time over HTTP/2: sent again when they are answered, over another connection when the server has closed
//! one. Pings are answered.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::SendRequest;
use http::Request;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::tally::Tally;
use crate::wire;

const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
/// Before an ended connection is made anew: an attack by held places, not by opening connections.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

pub struct Swarm {
    pub to: SocketAddr,
    /// Bytes of each answer that the server may send unasked; what comes is read and given room for, unless it is zero.
    pub window: Option<u32>,
    /// Requests at a time on one connection.
    pub requests: usize,
    /// Before an answered request is sent again.
    pub pause: Duration,
    pub tally: Arc<Tally>,
    /// Requests whose answers have not ended.
    pub open: AtomicUsize,
    /// Nothing more is sent.
    pub calm: AtomicBool,
}

/// Makes the next request: path, and the key if there is one.
pub type Next = Arc<dyn Fn() -> (String, Option<String>) + Send + Sync>;

impl Swarm {
    pub fn new(to: SocketAddr, requests: usize, tally: &Arc<Tally>) -> Self {
        Self {
            to,
            window: None,
            requests,
            pause: RECONNECT_PAUSE,
            tally: Arc::clone(tally),
            open: AtomicUsize::new(0),
            calm: AtomicBool::new(false),
        }
    }

    /// One connection from each address. They end with the set, or when there is calm and every request is answered.
    pub fn release(self: &Arc<Self>, from: impl IntoIterator<Item = (Ipv4Addr, Next)>) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        for (from, next) in from {
            let swarm = Arc::clone(self);
            connections.spawn(async move {
                while !swarm.calm.load(Ordering::Relaxed) {
                    if swarm.connection(from, &next).await.is_err() {
                        swarm.tally.refused();
                    }
                    sleep(RECONNECT_PAUSE).await;
                }
            });
        }
        connections
    }

    async fn connection(&self, from: Ipv4Addr, next: &Next) -> Result<()> {
        let stream = wire::connect(from, self.to).await?;
        let mut builder = h2::client::Builder::new();
        if let Some(bytes) = self.window {
            builder.initial_window_size(bytes);
        }
        let handshake = builder.initial_max_send_streams(self.requests).handshake::<_, Bytes>(stream);
        let (sender, connection) = timeout(HANDSHAKE_MAX, handshake).await.context("no handshake")??;
        self.tally.opened();
        let requests = join_all((0..self.requests).map(|_| self.requests_of(sender.clone(), next)));
        drop(sender);
        tokio::select! {
            ended = connection => Ok(ended?),
            _ = requests => Ok(()),
        }
    }

    /// One request after the other, until the connection has ended or there is calm.
    async fn requests_of(&self, mut sender: SendRequest<Bytes>, next: &Next) {
        while !self.calm.load(Ordering::Relaxed) {
            let Ok(ready) = sender.ready().await else { break };
            sender = ready;
            if self.request(&mut sender, next).await.is_err_and(|error| !error.is_reset()) {
                break;
            }
            sleep(self.pause).await;
        }
        if !self.calm.load(Ordering::Relaxed) {
            // Whoever has nothing left to send waits for the end of the connection.
            std::future::pending::<()>().await;
        }
    }

    async fn request(&self, sender: &mut SendRequest<Bytes>, next: &Next) -> Result<(), h2::Error> {
        let (path, key) = next();
        let mut request = Request::get(format!("http://{}{path}", self.to));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let Ok(request) = request.body(()) else { return Ok(()) };
        let (answer, _) = sender.send_request(request, true)?;
        let _open = Open::count(&self.open);
        let answer = answer.await?;
        self.tally.answered(answer.status().as_u16());
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data?.len())?;
        }
        Ok(())
    }
}

/// Counted down when dropped, however the request ends.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn count(open: &'a AtomicUsize) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
