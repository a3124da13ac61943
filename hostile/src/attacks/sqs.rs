//! The listener for SQS clients: requests that nobody has signed, by keys that nobody has made, and one key's long polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;
use waybill_bench::signed::Signer;

use super::{Field, waits};
use crate::marks::Check;
use crate::swarm::{Next, Swarm};
use crate::wire;

const CONNECTIONS: usize = 3;
const PER_CONNECTION: usize = 127;
/// Made-up keys; each is asked for again and again.
const INVENTED: usize = 512;

/// Every second request has a signature, by a key that nobody has.
pub async fn flood(field: &Field) -> Result<Vec<Check>> {
    let swarm = Swarm::new(field.sqs, PER_CONNECTION, &field.tally);
    let swarm = Arc::new(Swarm { pause: Duration::ZERO, ..swarm });
    let mut paths = Vec::new();
    for number in 0..INVENTED {
        let signer = Signer { addr: field.sqs, id: format!("AKWB{number:012}"), secret: "made-up".repeat(6) };
        paths.push(signer.presigned("Action=ListQueues&Version=2012-11-05")?);
    }
    let count = AtomicUsize::new(0);
    let next: Next = Arc::new(move || match count.fetch_add(1, Ordering::Relaxed) {
        even if even % 2 == 0 => ("/?Action=ListQueues".to_owned(), None),
        odd => (paths[odd / 2 % paths.len()].clone(), None),
    });
    let _connections = swarm.release((0..CONNECTIONS).map(|_| (wire::attacker(0), Arc::clone(&next))));
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}

/// As many long polls as there are places, on a queue that stays empty; then its key is revoked.
pub async fn polls(field: &Field) -> Result<Vec<Check>> {
    let queue = &field.cast.queue;
    let signer = Signer { addr: field.sqs, id: queue.access_key_id.clone(), secret: queue.secret.clone() };
    let url = format!("http%3A%2F%2Fqueues%2F{}", queue.name);
    let query = format!("Action=ReceiveMessage&QueueUrl={url}&Version=2012-11-05&WaitTimeSeconds=20");
    let path = signer.presigned(&query)?;
    let next: Next = Arc::new(move || (path.clone(), None));
    waits::held_until_revoked(field, field.sqs, field.scale.waits, &next, std::slice::from_ref(&queue.key_id)).await
}
