//! The listener for SQS clients: requests that nobody has signed or by keys that nobody has made, one key's long polls, large
//! receives that nobody reads, bodies that never end. Meanwhile an innocent tenant sends and receives by the same listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use waybill_bench::signed::Signer;

use super::{Field, held, spared, waits};
use crate::caller::Target;
use crate::holder::{Manner, hold};
use crate::marks::Check;
use crate::series::Series;
use crate::stage::Queue;
use crate::swarm::{Next, Swarm};
use crate::tally::Tally;
use crate::wire;

const CONNECTIONS: usize = 3;
const PER_CONNECTION: usize = 127;
/// Made-up keys; each is asked for again and again.
const INVENTED: usize = 512;
/// What the attacker's own kernel takes in: as little as it can.
const RECEIVE_BYTES: u32 = 4_096;
/// Requests in one go, before any of them is answered.
const IN_A_ROW: usize = 4;
/// Of a body that never ends, nearly as much as a message may have.
const BODY_BYTES: usize = 1_000_000;
/// A server may leave bytes unread; then the body goes no further.
const SEND_MAX: Duration = Duration::from_secs(2);
/// Between two bodies on one of the attacker's connections.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two calls of the innocent.
const CALL_PAUSE: Duration = Duration::from_millis(100);

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
    beside(field, held(field)).await
}

/// As many long polls as there are places, on a queue that stays empty; then its key is revoked.
pub async fn polls(field: &Field) -> Result<Vec<Check>> {
    let queue = &field.cast.queue;
    let query = format!("Action=ReceiveMessage&QueueUrl=%2F{}&Version=2012-11-05&WaitTimeSeconds=20", queue.name);
    let path = queue.signer(field.sqs).presigned(&query)?;
    let next: Next = Arc::new(move || (path.clone(), None));
    let keys = std::slice::from_ref(&queue.key_id);
    beside(field, waits::held_until_revoked(field, field.sqs, field.scale.waits, &next, keys)).await
}

/// Receives of ten large messages, again and again on the same connections, of which nothing is read.
pub async fn unread(field: &Field) -> Result<Vec<Check>> {
    let queue = &field.cast.large_queue;
    let wish = json!({ "QueueUrl": format!("/{}", queue.name), "MaxNumberOfMessages": 10 });
    let request = queue.signer(field.sqs).post("ReceiveMessage", &wish.to_string())?;
    let manner = |number: usize| Manner {
        from: wire::attacker(number % field.scale.addresses),
        opening: request.repeat(IN_A_ROW),
        more: request.clone(),
        reads: false,
        receive_bytes: Some(RECEIVE_BYTES),
    };
    let _held = hold(field.sqs, (0..field.scale.unread_connections).map(manner).collect(), &field.tally);
    beside(field, held(field)).await
}

/// Sends of large messages, signed by a good key, that stop before their last byte.
pub async fn bodies(field: &Field) -> Result<Vec<Check>> {
    let queue = &field.cast.large_queue;
    let message = json!({ "QueueUrl": format!("/{}", queue.name), "MessageBody": "x".repeat(BODY_BYTES) });
    let request: Arc<[u8]> = queue.signer(field.sqs).post("SendMessage", &message.to_string())?.into();
    let mut senders = JoinSet::new();
    // Twice as many as there are of other bodies: these are half as large.
    for number in 0..field.scale.bodies * 2 {
        let (to, request, tally) = (field.sqs, Arc::clone(&request), Arc::clone(&field.tally));
        let from = number % field.scale.addresses;
        senders.spawn(async move {
            loop {
                if stand(from, to, &request, &tally).await.is_err() {
                    tally.refused();
                }
                sleep(PAUSE).await;
            }
        });
    }
    beside(field, held(field)).await
}

/// Until the server has had enough of it.
async fn stand(from: usize, to: SocketAddr, request: &[u8], tally: &Tally) -> Result<()> {
    let mut stream = wire::connect(wire::attacker(from), to).await?;
    tally.opened();
    // Where no more is taken there is still an answer to wait for.
    drop(timeout(SEND_MAX, stream.write_all(&request[..request.len() - 1])).await);
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).await?;
    if let Some(status) = std::str::from_utf8(&answer[..read]).ok().and_then(|text| text.get(9..12)?.parse().ok()) {
        tally.answered(status);
    }
    Ok(())
}

/// What the attack has found, and what became of an innocent tenant's messages meanwhile.
async fn beside(field: &Field, attack: impl Future<Output = Result<Vec<Check>>>) -> Result<Vec<Check>> {
    let innocent = Innocent::new(field)?;
    let mut calls = Series::default();
    let mut checks = tokio::select! {
        checks = attack => checks?,
        never = innocent.send_and_receive(&mut calls) => match never {},
    };
    checks.push(spared(field, "an innocent tenant sends and receives by this listener", &calls));
    Ok(checks)
}

struct Innocent {
    target: Target,
    /// Of a send and of a receive.
    paths: [String; 2],
}

impl Innocent {
    fn new(field: &Field) -> Result<Self> {
        let queue: &Queue = &field.cast.innocent_queue;
        let signer = queue.signer(field.sqs);
        let path = |action: &str| {
            signer.presigned(&format!("Action={action}&MessageBody=m&QueueUrl=%2F{}&Version=2012-11-05", queue.name))
        };
        let target = Target { from: wire::INNOCENT, to: field.sqs, key: String::new() };
        Ok(Self { target, paths: [path("SendMessage")?, path("ReceiveMessage")?] })
    }

    async fn send_and_receive(&self, calls: &mut Series) -> std::convert::Infallible {
        loop {
            for path in &self.paths {
                let began = Instant::now();
                let outcome = match self.target.call(Method::GET, path, Vec::new()).await {
                    Ok(answer) if answer.is_success() => None,
                    Ok(answer) => Some(answer.brief()),
                    Err(error) => Some(format!("{error:#}")),
                };
                calls.record(began.elapsed(), outcome);
            }
            sleep(CALL_PAUSE).await;
        }
    }
}
