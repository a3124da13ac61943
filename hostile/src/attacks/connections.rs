//! Connections that take a place and do nothing with it.

use std::net::Ipv4Addr;

use anyhow::Result;
use tokio::time::sleep;

use super::Field;
use crate::holder::{Manner, hold};
use crate::marks::Check;
use crate::wire;

pub async fn idle_from_one(field: &Field) -> Result<Vec<Check>> {
    idle(field, |_| wire::attacker(0)).await
}

pub async fn idle_from_many(field: &Field) -> Result<Vec<Check>> {
    let addresses = field.scale.addresses;
    idle(field, |number| wire::attacker(number % addresses)).await
}

/// One `/healthz`, then nothing.
async fn idle(field: &Field, from: impl Fn(usize) -> Ipv4Addr) -> Result<Vec<Check>> {
    let greeting = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", field.to);
    let manners = (0..field.scale.idle_connections).map(|number| Manner::quiet(from(number), greeting.clone()));
    keep(field, manners.collect()).await
}

/// A third says nothing, a third half a line, a third a body byte by byte.
pub async fn silent(field: &Field) -> Result<Vec<Check>> {
    let body = format!(
        "POST /v1/tasks HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{{",
        field.to,
        field.key(0)
    );
    let manner = |number: usize| {
        let from = wire::attacker(number % field.scale.addresses);
        match number % 3 {
            0 => Manner::quiet(from, ""),
            1 => Manner::quiet(from, "GET /heal"),
            _ => Manner { more: b" ".to_vec(), ..Manner::quiet(from, body.clone()) },
        }
    };
    keep(field, (0..field.scale.idle_connections).map(manner).collect()).await
}

async fn keep(field: &Field, manners: Vec<Manner>) -> Result<Vec<Check>> {
    let _held = hold(field.to, manners, &field.tally);
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}
