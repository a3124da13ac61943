//! The tasks that make, pause, resume, delete and show schedules.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};
use waybill_client::{Backoff, Claim, Completion, Lease};
use waybill_kernel::{Code, Error, Result};

use super::Shared;
use super::book::{Change, Promised, Schedule};
use super::definition::{Definition, iso};
use super::fire;
use crate::commands::worker::connect;
use crate::commands::worker::flags::Connection;
use crate::commands::worker::held::{Held, Outcome, Recorded, Refusal};

const CAPABILITY: &str = "scheduler";
const TYPES: [&str; 5] = ["schedule.create", "schedule.pause", "schedule.resume", "schedule.delete", "schedule.status"];
/// Leased at a time; they are short and done one after the other.
const TASKS_MAX: usize = 10;
const EMPTY_ANSWER_MIN: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    schedule_id: String,
}

/// What a task comes to: an answer, and what has to change for it to be true.
struct Decided {
    change: Option<Change>,
    result: Json,
}

pub fn claim(connection: &Connection) -> Claim {
    Claim {
        worker_id: connection.worker_id.clone(),
        worker_instance_id: connect::instance_id(),
        capabilities: vec![CAPABILITY.to_owned()],
        accept_types: TYPES.map(str::to_owned).to_vec(),
        max_tasks: TASKS_MAX,
        lease_ttl_seconds: connection.lease_ttl_seconds,
        wait_seconds: connect::LEASE_WAIT_S.min(connection.lease_ttl_seconds / 3),
    }
}

/// Until asked to stop or refused for good.
pub async fn run(shared: &Shared) -> Result<()> {
    let mut away = connect::away();
    while !shared.stop.stopping.is_cancelled() {
        tokio::select! {
            outcome = round(shared, &mut away) => outcome?,
            () = shared.stop.abandon.cancelled() => return Ok(()),
        }
    }
    Ok(())
}

async fn round(shared: &Shared, away: &mut Backoff) -> Result<()> {
    let stopping = &shared.stop.stopping;
    let trouble = match settle(shared).await {
        Err(error) if connect::is_final(&error) => return Err(error),
        Err(error) => Some(error),
        Ok(()) => {
            let asked_at = Instant::now();
            let leases = tokio::select! {
                leases = shared.client.lease_next(&shared.claim) => leases,
                () = stopping.cancelled() => return Ok(()),
            };
            match leases {
                Ok(leases) if leases.is_empty() && asked_at.elapsed() >= EMPTY_ANSWER_MIN => return Ok(()),
                Ok(leases) if leases.is_empty() => None,
                Ok(leases) => {
                    away.reset();
                    for lease in leases {
                        work(shared, &lease, asked_at).await;
                    }
                    return Ok(());
                }
                Err(error) if connect::is_final(&error) => return Err(error),
                Err(error) => Some(error),
            }
        }
    };
    if let Some(error) = trouble {
        tracing::warn!(%error, cause = error.cause(), "no control tasks were leased; trying again");
    }
    tokio::select! { () = sleep(away.pause()) => {}, () = stopping.cancelled() => {} }
    Ok(())
}

/// Asks about every change that was promised: the server repeats its first answer to the lease it knows.
async fn settle(shared: &Shared) -> Result<()> {
    for promised in shared.book.promises().await? {
        let completion = Completion::stored(promised.result.clone(), promised.lease.task_id);
        let told = shared.client.complete(&promised.lease, &completion).await;
        conclude(shared, promised, told.map(|()| Recorded::Succeeded)).await?;
    }
    Ok(())
}

/// Applies a change the server has recorded, forgets one it refused, and leaves one nobody knows about.
async fn conclude(shared: &Shared, promised: Promised, told: Result<Recorded>) -> Result<()> {
    let task_id = promised.lease.task_id;
    match told {
        Ok(Recorded::Succeeded) => {
            shared.book.apply(promised).await?;
            shared.changed.notify_one();
            tracing::info!(%task_id, "done");
            Ok(())
        }
        // Away, busy, or no longer open to this key: what it has on record is not known.
        Err(error) if !is_refusal(error.code()) => Err(error),
        refused => {
            let why = refused.err().map_or_else(|| "it was recorded as failed".to_owned(), |error| error.to_string());
            tracing::warn!(%task_id, why, "the server did not take the change; it was not made");
            shared.book.forget(task_id).await
        }
    }
}

/// The server's word that the change is not on record and will not be.
fn is_refusal(code: Code) -> bool {
    let lease = matches!(code, Code::LeaseInvalidOrExpired | Code::InvalidStateTransition | Code::NotFound);
    lease || matches!(code, Code::InvalidRequest | Code::PayloadTooLarge)
}

async fn work(shared: &Shared, lease: &Lease, asked_at: Instant) {
    let held = Held::new(&shared.client, lease, &shared.claim, asked_at, shared.now());
    if let Err(error) = answer(shared, lease, &held).await {
        tracing::warn!(task_id = %lease.task_id, %error, cause = error.cause(), "a control task is left to be asked about again");
    }
}

async fn answer(shared: &Shared, lease: &Lease, held: &Held) -> Result<()> {
    let now_s = shared.now_s();
    let decided = match decide(shared, lease, now_s).await? {
        Ok(decided) => decided,
        Err(refusal) => {
            tracing::info!(task_id = %lease.task_id, kind = lease.kind, why = refusal.message, "refused");
            return held.deliver(Outcome::Failed(refusal)).await.map(drop);
        }
    };
    let outcome = Outcome::Done(decided.result.clone());
    let Some(change) = decided.change else { return held.deliver(outcome).await.map(drop) };
    let promised = Promised { lease: held.lease().clone(), change, result: decided.result };
    shared.book.promise(promised.clone()).await?;
    let told = held.deliver(outcome).await;
    conclude(shared, promised, told).await
}

/// The outer error is the file's or the server's, the inner one is the caller's.
async fn decide(shared: &Shared, lease: &Lease, now_s: i64) -> Result<std::result::Result<Decided, Refusal>> {
    // A schedule and what it fires belong to whoever asked for it.
    let asker = fire::owner(&shared.client, lease.task_id).await?;
    if lease.kind == "schedule.create" {
        return match refusal_to_fire(shared, &asker).await? {
            Some(refusal) => Ok(Err(refusal)),
            None => Ok(create(lease, asker, now_s).map_err(Refusal::payload)),
        };
    }
    let named: Named = match serde_json::from_value(lease.payload.clone()) {
        Ok(named) => named,
        Err(error) => {
            return Ok(Err(Refusal::payload(format!("The payload of {} is not understood: {error}.", lease.kind))));
        }
    };
    let schedule = match shared.book.schedule(&named.schedule_id).await? {
        Some(schedule) if fire::owner_of(&shared.client, &schedule).await? == asker => schedule,
        // Nobody learns which schedules others have.
        _ => {
            let message = format!("{asker} has no schedule {:?}.", named.schedule_id);
            return Ok(Err(Refusal::new("unknown_schedule", message).with("schedule_id", named.schedule_id)));
        }
    };
    change(&lease.kind, schedule, now_s).map(Ok)
}

/// Why this scheduler could keep a schedule of theirs and never fire it.
async fn refusal_to_fire(shared: &Shared, owner: &str) -> Result<Option<Refusal>> {
    let key = match shared.client.whoami().await {
        Ok(key) if key.may_create_for(owner) => return Ok(None),
        Ok(key) => key,
        // A server that cannot say is asked by the first firing.
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let message = format!(
        "The scheduler may not create tasks of {owner}: its key ({}) has the roles {} and the scopes {}, and needs agent, \
         delegate and tasks:write. Whoever runs it must give it another key.",
        key.principal,
        key.roles.join(", "),
        key.scopes.join(", ")
    );
    Ok(Some(Refusal::new("may_not_fire", message)))
}

/// A schedule has the id of the task that asked for it: asked again after a crash, it is the same schedule.
fn create(lease: &Lease, owner: String, now_s: i64) -> std::result::Result<Decided, String> {
    let (definition, next_run_s) = Definition::read(&lease.payload, now_s)?;
    let schedule_id = lease.task_id.to_string();
    let result = json!({ "schedule_id": schedule_id, "next_run_at": iso(next_run_s) });
    let schedule = Schedule {
        schedule_id,
        definition,
        enabled: true,
        anchor_s: now_s,
        handled_until_s: now_s,
        next_run_s: Some(next_run_s),
        last_run_s: None,
        last_status: None,
        owner: Some(owner),
    };
    Ok(Decided { change: Some(Change::Create(Box::new(schedule))), result })
}

fn change(kind: &str, schedule: Schedule, now_s: i64) -> Result<Decided> {
    let schedule_id = schedule.schedule_id.clone();
    let decided = match kind {
        "schedule.pause" => Decided { change: Some(Change::Pause { schedule_id }), result: json!({ "ok": true }) },
        "schedule.resume" => resume(&schedule, now_s)?,
        "schedule.delete" => Decided { change: Some(Change::Delete { schedule_id }), result: json!({ "ok": true }) },
        _ => Decided { change: None, result: status(&schedule) },
    };
    Ok(decided)
}

/// What passed while it was paused was not missed: runs begin anew with the first one from here on.
fn resume(schedule: &Schedule, now_s: i64) -> Result<Decided> {
    if schedule.enabled {
        return Ok(Decided {
            change: None,
            result: json!({ "ok": true, "next_run_at": schedule.next_run_s.map(iso) }),
        });
    }
    let timing = schedule.definition.timing(schedule.anchor_s).map_err(Error::internal)?;
    let next_run_s = timing.next_after(now_s.max(schedule.handled_until_s));
    let result = json!({ "ok": true, "next_run_at": next_run_s.map(iso) });
    let schedule_id = schedule.schedule_id.clone();
    Ok(Decided { change: Some(Change::Resume { schedule_id, handled_until_s: now_s, next_run_s }), result })
}

fn status(schedule: &Schedule) -> Json {
    json!({
        "enabled": schedule.enabled,
        "next_run_at": schedule.next_run_s.filter(|_| schedule.enabled).map(iso),
        "last_run_at": schedule.last_run_s.map(iso),
        "last_status": schedule.last_status,
    })
}
