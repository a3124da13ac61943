//! HTTP/1 clients that ask for much, again and again on the same connection, and read nothing of it.

use anyhow::Result;
use tokio::time::sleep;

use super::Field;
use crate::holder::{Manner, hold};
use crate::marks::Check;
use crate::wire;

/// What the attacker's own kernel takes in: as little as it can.
const RECEIVE_BYTES: u32 = 4_096;
/// Requests in one go, before any of them is answered.
const IN_A_ROW: usize = 8;

pub async fn run(field: &Field) -> Result<Vec<Check>> {
    let ask = |path: &str, key: Option<&str>| {
        let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{authorization}\r\n", field.to)
    };
    let (pages, document) = (ask("/v1/tasks?limit=50", Some(field.key(0))), ask("/openapi.json", None));
    let manner = |number: usize| {
        let request = if number.is_multiple_of(2) { &pages } else { &document };
        Manner {
            from: wire::attacker(number % field.scale.addresses),
            opening: request.repeat(IN_A_ROW).into_bytes(),
            more: request.clone().into_bytes(),
            reads: false,
            receive_bytes: Some(RECEIVE_BYTES),
        }
    };
    let _held = hold(field.to, (0..field.scale.unread_connections).map(manner).collect(), &field.tally);
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}
