//! The slow path: single requests for readiness, metrics and set-up. The load goes through `load`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_BYTES_MAX: u64 = 16 << 20;

pub struct Response {
    pub status: u16,
    pub body: String,
}

pub async fn get(addr: SocketAddr, path: &str, key: Option<&str>) -> Result<Response> {
    exchange(addr, "GET", path, key, "").await
}

pub async fn post(addr: SocketAddr, path: &str, key: Option<&str>, body: &str) -> Result<Response> {
    exchange(addr, "POST", path, key, body).await
}

async fn exchange(addr: SocketAddr, method: &str, path: &str, key: Option<&str>, body: &str) -> Result<Response> {
    let head = head(addr, method, path, key, body.len(), "Connection: close\r\n");
    send(addr, &format!("{head}{body}")).await.with_context(|| format!("{method} {path}"))
}

/// A whole request that asks for its connection to be closed; its answer.
pub async fn send(addr: SocketAddr, request: &str) -> Result<Response> {
    let answer = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, answer).await.context("no answer")??;
    let answer = String::from_utf8_lossy(&answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("no complete response") };
    let status = head.get(9..12).and_then(|digits| digits.parse().ok());
    let status = status.with_context(|| format!("no status in {head:?}"))?;
    Ok(Response { status, body: body.to_owned() })
}

/// The head of a request, ready to be followed by `length` bytes of JSON.
pub fn head(addr: SocketAddr, method: &str, path: &str, key: Option<&str>, length: usize, more: &str) -> String {
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let entity = match length {
        0 => String::new(),
        _ => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\n{authorization}{entity}{more}\r\n")
}

/// The sum of all series of one counter in Prometheus text; `None` when the server does not export it.
pub fn counter(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.split_whitespace().next()?.parse::<f64>().ok()
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn counters_are_summed_over_their_labels() {
        let text =
            "# TYPE a_total counter\na_total{x=\"1 }\"} 2\na_total{x=\"2\"} 3.5 170000\na_total_more 9\nb_total 7\n";
        assert_eq!(counter(text, "a_total"), Some(5.5));
        assert_eq!(counter(text, "b_total"), Some(7.0));
        assert_eq!(counter(text, "c_total"), None);
    }
}
