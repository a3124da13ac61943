//! What a connection of the load client does over and over: one request, or a task from its creation to its end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::mail;
use crate::product::Keys;
use crate::queues::Turns;
use crate::request::{Field, Template};
use crate::wire::Wire;

/// A claim that finds nothing comes back this often before it counts as an error: another connection holds what this one
/// has created, and its own is a moment away.
const EMPTY_CLAIMS_MAX: usize = 50;
const EMPTY_PAUSE: Duration = Duration::from_millis(1);
const ID_CHARS: usize = 36;

#[derive(Clone)]
pub enum Script {
    Single(Template),
    Lifecycle(Box<Lifecycle>),
    Queue(Turns),
    Mail(Box<mail::Turns>),
}

/// How one turn of a script went.
pub enum Turn {
    /// With what of its time is measured, and how many operations it was.
    Done(Duration, u64),
    /// Something that has to be done and is not what is measured.
    Aside,
    Refused(String),
}

impl Script {
    pub fn for_connection(mut self, index: usize) -> Self {
        match &mut self {
            Self::Single(request) => request.number(Field::Connection, index as u64),
            Self::Lifecycle(lifecycle) => lifecycle.create.number(Field::Connection, index as u64),
            Self::Queue(turns) => turns.for_connection(index),
            Self::Mail(turns) => turns.for_connection(index),
        }
        self
    }

    /// Before the clock starts: signs the first `count` requests where each has a signature of its own.
    pub fn sign_ahead(&mut self, count: usize) {
        if let Self::Queue(turns) = self {
            turns.sign_ahead(count);
        }
    }

    /// An error is a broken connection; everything the server has answered is a turn.
    pub async fn run(&mut self, wire: &mut Wire, sequence: u64) -> Result<Turn> {
        match self {
            Self::Single(request) => {
                request.number(Field::Sequence, sequence);
                let start = Instant::now();
                let status = wire.exchange(request.bytes()).await?;
                Ok(if is_success(status) {
                    Turn::Done(start.elapsed(), 1)
                } else {
                    Turn::Refused(format!("status {status}"))
                })
            }
            Self::Lifecycle(lifecycle) => lifecycle.run(wire, sequence).await,
            Self::Queue(turns) => turns.run(wire, sequence).await,
            Self::Mail(turns) => turns.run(wire, sequence).await,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// All three calls.
    Lifecycle,
    /// The claim alone.
    Claim,
}

/// Create as the owner, claim and complete as the worker: three calls, each waited for. A claim may give out what another
/// connection has created; whatever it gives out is completed.
#[derive(Clone)]
pub struct Lifecycle {
    create: Template,
    claim: Template,
    complete: Template,
    timed: Timed,
}

impl Lifecycle {
    pub fn new(addr: SocketAddr, keys: &Keys, slice: usize, idempotent: bool, timed: Timed) -> Self {
        let worker = Some(keys.worker.as_str());
        let complete = r#"{"lease_id":"^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^","result":{"ok":true},"artifacts":[{"url":"https://pictures.example/800x600.png"}]}"#;
        let path = "/v1/tasks/%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%/complete";
        Self {
            create: Template::task(addr, "/v1/tasks", Some(&keys.owner), slice, idempotent),
            claim: Template::post(addr, "/v1/leases/claim", worker, r#"{"max_tasks":1}"#),
            complete: Template::post(addr, path, worker, complete),
            timed,
        }
    }

    async fn run(&mut self, wire: &mut Wire, sequence: u64) -> Result<Turn> {
        let start = Instant::now();
        self.create.number(Field::Sequence, sequence);
        let status = wire.exchange(self.create.bytes()).await?;
        if !is_success(status) {
            return Ok(Turn::Refused(format!("create: status {status}")));
        }
        let before_claim = Instant::now();
        let status = self.claim(wire).await?;
        let claim = before_claim.elapsed();
        if let Some(refused) = status {
            return Ok(Turn::Refused(refused));
        }
        let status = wire.exchange(self.complete.bytes()).await?;
        if !is_success(status) {
            return Ok(Turn::Refused(format!("complete: status {status}")));
        }
        let took = match self.timed {
            Timed::Lifecycle => start.elapsed(),
            Timed::Claim => claim,
        };
        Ok(Turn::Done(took, 1))
    }

    /// Fills the completion in with what was leased. `Some` is why there is nothing to complete.
    async fn claim(&mut self, wire: &mut Wire) -> Result<Option<String>> {
        for _ in 0..EMPTY_CLAIMS_MAX {
            let status = wire.exchange(self.claim.bytes()).await?;
            if !is_success(status) {
                return Ok(Some(format!("claim: status {status}")));
            }
            let response = wire.response();
            if let Some(task) = text_of(response, b"\"task_id\":\"") {
                let lease = text_of(response, b"\"lease_id\":\"").context("a leased task without its lease")?;
                self.complete.set(Field::Task, task);
                self.complete.set(Field::Lease, lease);
                return Ok(None);
            }
            tokio::time::sleep(EMPTY_PAUSE).await;
        }
        Ok(Some("claim: nothing to lease".to_owned()))
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The id behind the first `name`; a parser would cost the client more than the server spends on the field.
fn text_of<'a>(response: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = response.windows(name.len()).position(|window| window == name)? + name.len();
    response.get(at..at + ID_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_a_lease() {
        let task = "01890a5d-ac96-774b-bcce-b302099a8057";
        let lease = "01890a5d-ac96-774b-bcce-b302099a8058";
        let response = format!(r#"{{"tasks":[{{"task_id":"{task}","lease_id":"{lease}","attempt":0}}]}}"#);
        assert_eq!(text_of(response.as_bytes(), b"\"task_id\":\""), Some(task.as_bytes()));
        assert_eq!(text_of(response.as_bytes(), b"\"lease_id\":\""), Some(lease.as_bytes()));
        assert_eq!(text_of(b"{\"tasks\":[]}", b"\"task_id\":\""), None);
    }
}
