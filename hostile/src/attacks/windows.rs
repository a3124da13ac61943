//! HTTP/2 lets the reader say how much it will take. One that takes nothing, and answers every ping, leaves whole answers
//! with the server.

use std::sync::Arc;

use anyhow::Result;
use tokio::time::sleep;

use super::Field;
use crate::marks::Check;
use crate::swarm::{Next, Swarm};
use crate::wire;

pub async fn without_key(field: &Field) -> Result<Vec<Check>> {
    run(field, Arc::new(|| ("/openapi.json".to_owned(), None))).await
}

/// Pages of large tasks and single ones in turn.
pub async fn with_key(field: &Field) -> Result<Vec<Check>> {
    let key = field.key(0).to_owned();
    let mut paths: Vec<_> = field.cast.large_tasks.iter().map(|id| format!("/v1/tasks/{id}")).collect();
    paths.push("/v1/tasks?limit=50".to_owned());
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let next = move || {
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (paths[turn % paths.len()].clone(), Some(key.clone()))
    };
    run(field, Arc::new(next)).await
}

async fn run(field: &Field, next: Next) -> Result<Vec<Check>> {
    let swarm = Swarm::new(field.to, field.scale.shut_requests, &field.tally);
    let swarm = Arc::new(Swarm { window: Some(0), ..swarm });
    let from = (0..field.scale.shut_connections).map(|_| (wire::attacker(0), Arc::clone(&next)));
    let _connections = swarm.release(from);
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}
