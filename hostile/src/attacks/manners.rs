//! Requests that break the rules of HTTP or try their edges.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::Field;
use crate::marks::Check;
use crate::wire;

const ANSWER_MAX: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(250);

pub async fn run(field: &Field) -> Result<Vec<Check>> {
    let time = field.time();
    let mut checks = round(field).await;
    while time.is_left() {
        sleep(PAUSE).await;
        for (check, again) in checks.iter_mut().zip(round(field).await) {
            if check.holds {
                *check = again;
            }
        }
    }
    Ok(checks)
}

async fn round(field: &Field) -> Vec<Check> {
    let host = format!("Host: {}\r\n", field.to);
    let key = format!("Authorization: Bearer {}\r\n", field.key(0));
    let json = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    let expect = |path: &str, key: &str, bytes: u64| {
        format!("POST {path} HTTP/1.1\r\n{host}{key}{json}Expect: 100-continue\r\nContent-Length: {bytes}\r\n\r\n")
    };
    let twice = |line: &str| format!("{line} HTTP/1.1\r\n{host}Host: other.example\r\n{key}\r\n");
    let refused: &[u16] = &[400, 401, 413, 417];
    let mut checks = Vec::new();
    for (what, request, expected) in [
        ("100 MB to tasks get no go-ahead", expect("/v1/tasks", &key, 100_000_000), refused),
        ("100 MB to MCP get no go-ahead", expect("/mcp", &key, 100_000_000), refused),
        ("100 MB without a key get no go-ahead", expect("/v1/tasks", "", 100_000_000), refused),
        ("a small body still gets one", expect("/v1/tasks", &key, 10), &[100]),
        ("two hosts are refused on an open path", twice("GET /healthz"), &[400]),
        ("two hosts are refused with a key", twice("GET /v1/tasks"), &[400]),
    ] {
        let answer = ask(field, &request).await;
        let holds = answer.as_ref().is_ok_and(|status| expected.contains(status));
        let answer = answer.map_or_else(|error| format!("{error:#}"), |status| status.to_string());
        checks.push(Check::new(holds, format!("{what} ({answer})")));
    }
    checks
}

/// The first status of the answer.
async fn ask(field: &Field, request: &str) -> Result<u16> {
    let mut stream = wire::connect(wire::attacker(0), field.to).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 64];
    let read = timeout(ANSWER_MAX, stream.read(&mut answer)).await.context("no answer")??;
    let text = String::from_utf8_lossy(&answer[..read]);
    let status = text.get(9..12).and_then(|digits| digits.parse().ok()).context("no status")?;
    field.tally.answered(status);
    Ok(status)
}
