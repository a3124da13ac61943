//! One keep-alive HTTP/1.1 connection with one request in flight. Responses are read as far as status and length.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// A page of 20 messages is the longest.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server listens, or a daemon.
#[derive(Clone, Debug)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    async fn connect(to: Address) -> Result<Self> {
        match to {
            Address::Tcp(addr) => {
                let stream = TcpStream::connect(addr).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).await,
            Self::Unix(stream) => stream.write_all(bytes).await,
        }
    }

    async fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
        }
    }
}

pub struct Wire {
    stream: Stream,
    buffer: Vec<u8>,
    /// Of the last response.
    filled: usize,
}

impl Wire {
    pub async fn connect(to: impl Into<Address>) -> Result<Self> {
        Self::connect_with(to, RESPONSE_BYTES_MAX).await
    }

    pub async fn connect_with(to: impl Into<Address>, response_bytes_max: usize) -> Result<Self> {
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, Stream::connect(to.into()));
        let stream = connect.await.context("connecting took too long")?.context("connecting")?;
        Ok(Self { stream, buffer: vec![0; response_bytes_max], filled: 0 })
    }

    /// Sends a request; the status of its response.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<u16> {
        self.send(request).await?;
        self.answer().await
    }

    pub async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await.context("sending")
    }

    /// The status of the response to what was sent.
    pub async fn answer(&mut self) -> Result<u16> {
        self.filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[self.filled..]).await.context("receiving")?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            self.filled += read;
            let Some(head) = parse_head(&self.buffer[..self.filled])? else {
                if self.filled == self.buffer.len() {
                    bail!("the response head is longer than {} bytes", self.buffer.len());
                }
                continue;
            };
            if head.response_bytes > self.buffer.len() {
                bail!("the response is longer than {} bytes", self.buffer.len());
            }
            match self.filled.cmp(&head.response_bytes) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => return Ok(head.status),
                std::cmp::Ordering::Greater => bail!("more bytes than one response"),
            }
        }
    }

    /// The last response's body, as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        let response = self.response();
        let head = response.windows(4).position(|window| window == b"\r\n\r\n").context("no head")?;
        Ok(serde_json::from_slice(&response[head + 4..])?)
    }

    /// The last response, head and body.
    pub fn response(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    response_bytes: usize,
}

/// `None` while the head is not complete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>> {
    const LENGTH: &[u8] = b"content-length:";
    let (mut at, mut length) = (0, None);
    while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = bytes[at..at + end].trim_ascii();
        at += end + 1;
        if line.is_empty() {
            let status = bytes.get(9..12).and_then(number).context("no status line")?;
            // 204 and 304 have no body and need no length.
            let body =
                if status == 204 || status == 304 { 0 } else { length.context("a response without a length")? };
            return Ok(Some(Head { status: status as u16, response_bytes: at + body }));
        }
        if line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH) {
            length = Some(number(&line[LENGTH.len()..]).context("a length that is no number")?);
        }
    }
    Ok(None)
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let response = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        for cut in 0..response.len() - 5 {
            assert_eq!(parse_head(&response[..cut]).unwrap(), None);
        }
        let head = Head { status: 201, response_bytes: response.len() };
        assert_eq!(parse_head(response).unwrap(), Some(head));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().is_some());
    }
}
