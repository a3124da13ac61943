//! Keys that nobody has made. Whoever hashes before it looks spends a tenth of a second of a core on each of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::Field;
use crate::keys::Invented;
use crate::marks::Check;
use crate::swarm::{Next, Swarm};
use crate::wire;

const CONNECTIONS: usize = 3;
const PER_CONNECTION: usize = 127;

pub async fn run(field: &Field) -> Result<Vec<Check>> {
    let swarm = Swarm::new(field.to, PER_CONNECTION, &field.tally);
    let swarm = Arc::new(Swarm { pause: Duration::ZERO, ..swarm });
    let invented = Arc::new(Invented::new());
    let next: Next = Arc::new(move || ("/v1/tasks?limit=1".to_owned(), Some(invented.next())));
    let _connections = swarm.release((0..CONNECTIONS).map(|_| (wire::attacker(0), Arc::clone(&next))));
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}
