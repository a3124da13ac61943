//! HTTP over the Unix socket of a daemon, by hand for the same reason as over TCP: what was sent, what was answered and when
//! must not be blurred by a library's retries.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::client::{Answer, read_answer};

/// A daemon answers from its own disk.
const CALL_MAX: Duration = Duration::from_secs(10);

/// One connection, made when it is needed.
pub struct Local {
    socket: PathBuf,
    stream: Option<BufReader<UnixStream>>,
}

impl Local {
    pub fn new(socket: PathBuf) -> Self {
        Local { socket, stream: None }
    }

    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        self.exchange(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Answer> {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        self.exchange(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())).await
    }

    /// After an error the connection is dropped: what it still holds belongs to nobody.
    async fn exchange(&mut self, request: String) -> Result<Answer> {
        let stream = self.stream.take();
        let exchange = async {
            let mut stream = match stream {
                Some(stream) => stream,
                None => BufReader::new(UnixStream::connect(&self.socket).await?),
            };
            stream.get_mut().write_all(request.as_bytes()).await?;
            let (answer, kept) = read_answer(&mut stream).await?;
            anyhow::Ok((answer, kept.then_some(stream)))
        };
        let (answer, stream) = timeout(CALL_MAX, exchange).await.context("no answer in time")??;
        self.stream = stream;
        Ok(answer)
    }
}
