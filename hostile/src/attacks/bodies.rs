//! Bodies that cost little to send and much to hold: `[0,0,…]` is two bytes a number on the wire and many times that once it is
//! parsed. All of them stand one byte before their end, then all of them end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Field;
use crate::marks::Check;
use crate::tally::Tally;
use crate::wire;

/// Just below what a body may have.
const BODY_BYTES: usize = (2 << 20) - 64;
/// A server may leave bytes unread; then the body goes no further.
const SEND_MAX: Duration = Duration::from_secs(2);
/// How long a body stands before its last byte.
const STAND: Duration = Duration::from_millis(700);
const ANSWER_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

pub async fn run(field: &Field) -> Result<Vec<Check>> {
    let rest = body(r#"{"type":"echo","payload":["#, "]}");
    let mcp = body(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"asyncgate.create_task","arguments":{"type":"echo","payload":["#,
        "]}}}",
    );
    let mut senders = JoinSet::new();
    // As many with a key as the attack has bodies, and a third of that without.
    for number in 0..field.scale.bodies * 4 / 3 {
        let key = (number < field.scale.bodies).then(|| field.key(0).to_owned());
        let (path, body) = if number % 2 == 0 { ("/v1/tasks", &rest) } else { ("/mcp", &mcp) };
        let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\n{authorization}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            field.to,
            body.len()
        );
        let (to, body, tally) = (field.to, Arc::clone(body), Arc::clone(&field.tally));
        senders.spawn(async move {
            loop {
                if send(to, &head, &body, &tally).await.is_err() {
                    tally.refused();
                }
                sleep(PAUSE).await;
            }
        });
    }
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}

fn body(opening: &str, end: &str) -> Arc<[u8]> {
    let zeros = (BODY_BYTES - opening.len() - end.len()) / 2;
    let mut body = opening.as_bytes().to_vec();
    body.extend(b"0,".repeat(zeros - 1));
    body.push(b'0');
    body.extend(end.as_bytes());
    body.into()
}

async fn send(to: std::net::SocketAddr, head: &str, body: &[u8], tally: &Tally) -> Result<()> {
    let mut stream = wire::connect(wire::attacker(0), to).await?;
    tally.opened();
    let (most, last) = body.split_at(body.len() - 1);
    stream.write_all(head.as_bytes()).await?;
    // Refused in the middle: the answer is there to read all the same.
    let sent = timeout(SEND_MAX, stream.write_all(most)).await;
    sleep(STAND).await;
    if let Ok(Ok(())) = sent {
        drop(stream.write_all(last).await);
    }
    let mut answer = [0; 64];
    let read = timeout(ANSWER_MAX, stream.read(&mut answer)).await.context("no answer")??;
    if let Some(status) = std::str::from_utf8(&answer[..read]).ok().and_then(|text| text.get(9..12)?.parse().ok()) {
        tally.answered(status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_json_of_the_wanted_size() {
        let body = body("[", "]");
        assert!((BODY_BYTES - 2..=BODY_BYTES).contains(&body.len()));
        assert!(serde_json::from_slice::<Vec<u8>>(&body).is_ok());
    }
}
