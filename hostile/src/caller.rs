//! An honest client: one call at a time, over a connection it keeps or over a new one.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use crate::wire;

/// Well above the mark, so that a late answer is seen as one, and an absent one still ends.
pub const CALL_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Target {
    pub from: Ipv4Addr,
    pub to: SocketAddr,
    pub key: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("{} without JSON", self.status))
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// For a report: the status and the beginning of the body.
    pub fn brief(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        format!("{} {}", self.status, text.trim().chars().take(120).collect::<String>())
    }
}

pub struct Caller {
    target: Target,
    kept: Option<SendRequest<Full<Bytes>>>,
}

impl Caller {
    pub fn new(target: Target) -> Self {
        Self { target, kept: None }
    }

    /// Over the kept connection. A server may close an idle one at any time: then, as every client does, over another.
    pub async fn call(&mut self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer> {
        let request = self.target.request(method, path, body)?;
        let exchange = async {
            if let Some(mut kept) = self.kept.take()
                && kept.ready().await.is_ok()
                && let Ok(answer) = send(&mut kept, request.clone()).await
            {
                return Ok((answer, kept));
            }
            let mut new = self.target.open().await?;
            Ok((send(&mut new, request).await?, new))
        };
        let (answer, kept) = within(exchange).await?;
        self.kept = Some(kept);
        Ok(answer)
    }
}

impl Target {
    /// Over a connection of its own.
    pub async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer> {
        let request = self.request(method, path, body)?;
        within(async { send(&mut self.open().await?, request).await }).await
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = wire::connect(self.from, self.to).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with the sender; its errors are seen by whoever sends.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header("Host", self.to.to_string());
        if !self.key.is_empty() {
            request = request.header("Authorization", format!("Bearer {}", self.key));
        }
        if !body.is_empty() {
            request = request
                .header("Content-Type", "application/json")
                .header("Accept", "application/json, text/event-stream");
        }
        Ok(request.body(Full::new(Bytes::from(body)))?)
    }
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Result<Answer> {
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
}

async fn within<T>(exchange: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(CALL_MAX, exchange).await.with_context(|| format!("no answer in {} s", CALL_MAX.as_secs()))?
}
