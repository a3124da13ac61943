//! Firing: a task for every run that is due. Fired first, recorded after; the key makes a second firing the first one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use waybill_client::{Client, NewTask};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Entropy, Error, Result, Time};

use super::Shared;
use super::book::Schedule;
use super::definition::{firing_key, iso};
use super::rules::{self, Timing};
use super::template::{self, Values};
use crate::commands::worker::connect;

/// Looked at in one round, so that none waits for another's backlog.
const SCHEDULES_PER_ROUND: usize = 100;
/// Fired of one schedule in one round.
const RUNS_PER_ROUND: usize = 100;
/// The clock is looked at this often, whatever is planned: it may have been set.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A round that found nothing to do is not followed at once by another, whatever the plan says.
const IDLE_WAIT_MIN: Duration = Duration::from_millis(20);
/// What the server says goes into `last_status` up to here.
const STATUS_CHARS_MAX: usize = 300;
const FIRED: &str = "fired";

pub async fn run(shared: Arc<Shared>) {
    let mut away = connect::away();
    let stopping = &shared.stop.stopping;
    while !stopping.is_cancelled() {
        let wait = match round(&shared).await {
            Ok(wait) => {
                away.reset();
                wait
            }
            Err(error) => {
                tracing::warn!(%error, cause = error.cause(), "firing has to wait; trying again");
                away.pause()
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = shared.changed.notified() => {}
            () = stopping.cancelled() => {}
        }
    }
}

/// Fires what is due and says how long there is nothing to do.
async fn round(shared: &Shared) -> Result<Duration> {
    let mut fired = 0;
    for id in shared.book.due(shared.now_s(), SCHEDULES_PER_ROUND).await? {
        let trouble = match fire_due(shared, &id).await {
            // Its next run is not when the file says, as after a change of its zone's rules.
            Ok(0) => None,
            Ok(runs) => {
                fired += runs;
                continue;
            }
            Err(error) => Some(error),
        };
        // Whatever it is. Even what looks like the server's trouble may be this one's alone, such as a body that breaks
        // the connection, and then the next round must not begin with it.
        shared.book.put_off(&id, shared.now_s()).await?;
        match trouble {
            Some(error) if is_for_all(error.code()) => return Err(error),
            Some(error) => tracing::warn!(schedule_id = id, %error, cause = error.cause(), "a firing is put off"),
            None => {}
        }
    }
    let now = shared.now();
    let next_s = shared.book.next_look_s().await?;
    let wait = next_s.map_or(LOOK_AGAIN, |next_s| Time::from_micros(next_s.saturating_mul(1_000_000)).since(now));
    Ok(if fired == 0 { wait.clamp(IDLE_WAIT_MIN, LOOK_AGAIN) } else { wait.min(LOOK_AGAIN) })
}

/// How many runs were dealt with.
async fn fire_due(shared: &Shared, schedule_id: &str) -> Result<usize> {
    // It may have been paused or deleted while others were fired.
    let schedule = shared.book.schedule(schedule_id).await?.filter(|schedule| schedule.enabled);
    let Some(schedule) = schedule else { return Ok(0) };
    let now_s = shared.now_s();
    let timing = schedule.definition.timing(schedule.anchor_s).map_err(Error::internal)?;
    let misfire = schedule.definition.misfire_policy;
    let runs = rules::due(&timing, misfire, schedule.handled_until_s, now_s, RUNS_PER_ROUND);
    for run_s in &runs {
        if shared.stop.stopping.is_cancelled() {
            break;
        }
        fire(shared, &schedule, &timing, *run_s, now_s).await?;
    }
    Ok(runs.len())
}

async fn fire(shared: &Shared, schedule: &Schedule, timing: &Timing, run_s: i64, now_s: i64) -> Result<()> {
    let id = &schedule.schedule_id;
    let owner = owner_of(&shared.client, schedule).await?;
    let status = match shared.client.create_task(&task(schedule, owner, run_s, now_s)?).await {
        Ok(created) => {
            tracing::info!(schedule_id = id, run_at = iso(run_s), task_id = %created.task_id, "fired");
            FIRED.to_owned()
        }
        // This run will never be taken, and must not hold up those after it.
        Err(error) if is_refusal(error.code()) => {
            tracing::error!(schedule_id = id, run_at = iso(run_s), %error, "the server refuses a firing");
            format!("refused: {error}").chars().take(STATUS_CHARS_MAX).collect()
        }
        Err(error) => return Err(error),
    };
    shared.book.record(id, run_s, timing.next_after(run_s), status).await
}

/// The server's word on this run alone, which it would repeat. What a key may do, how busy the server is, and how much it has
/// room for can change.
fn is_refusal(code: Code) -> bool {
    let http = code.entry().http;
    (400..500).contains(&http) && !matches!(http, 401 | 403 | 404 | 408 | 429) && !code.is_cap()
}

/// Any other schedule would be told the same: the server or our file is away or full, or has enough of this key.
fn is_for_all(code: Code) -> bool {
    code == Code::ServerUnreachable || code.is_cap() || matches!(code.entry().http, 401 | 429 | 503 | 507)
}

/// Whose schedule it is, and what it fires.
pub async fn owner_of(client: &Client, schedule: &Schedule) -> Result<String> {
    match &schedule.owner {
        Some(owner) => Ok(owner.clone()),
        // From a file that knew no owners. A schedule has the id of the task that asked for it.
        None => owner(client, schedule.schedule_id.parse().map_err(Error::internal)?).await,
    }
}

/// Whose task it is.
pub async fn owner(client: &Client, task_id: Uuid) -> Result<String> {
    let task = client.get_task(task_id, Duration::ZERO).await?;
    task.owner().ok_or_else(|| Error::internal("a task without an owner"))
}

fn task(schedule: &Schedule, owner: String, run_s: i64, now_s: i64) -> Result<NewTask> {
    let definition = &schedule.definition;
    let template = &definition.task_template;
    let (now, run_at) = (iso(now_s), iso(run_s));
    let values = Values { now: &now, schedule_id: &schedule.schedule_id, run_at: &run_at };
    Ok(NewTask {
        kind: template.kind.clone(),
        payload: template::render(&template.payload_template, &values),
        requirements: template.requirements.as_ref().map(|needs| json!(needs)),
        priority: template.priority,
        idempotency_key: Some(firing_key(&schedule.schedule_id, run_s)),
        max_attempts: None,
        delay_seconds: Some(jitter(definition.jitter_seconds)).filter(|delay_s| *delay_s > 0),
        created_by: Some(owner),
    })
}

/// Between 0 and `most_s`, both included. It shifts when the task may be taken, never which run it is.
fn jitter(most_s: i64) -> i64 {
    let mut bytes = [0; 4];
    OsEntropy.fill(&mut bytes);
    i64::from(u32::from_be_bytes(bytes)) % (most_s + 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use serde_json::{Value as Json, json};
    use tokio::sync::Notify;
    use waybill_client::{Claim, LeaseRef, Options};
    use waybill_kernel::Clock;

    use super::super::book::{Book, Change, Promised};
    use super::super::definition::Definition;
    use super::*;

    fn schedule(id: &str, payload: &Json) -> Schedule {
        let (definition, next) = Definition::read(payload, 0).unwrap();
        Schedule {
            schedule_id: id.to_owned(),
            definition,
            enabled: true,
            anchor_s: 0,
            handled_until_s: 0,
            next_run_s: Some(next),
            last_run_s: None,
            last_status: None,
            owner: None,
        }
    }

    /// With a server that is away.
    fn alone(file: &Path) -> Shared {
        let options = Options { url: "http://127.0.0.1:9".to_owned(), key: None, user_agent: "test".to_owned() };
        let claim = Claim {
            worker_id: None,
            worker_instance_id: "test".to_owned(),
            capabilities: Vec::new(),
            accept_types: Vec::new(),
            max_tasks: 1,
            lease_ttl_seconds: 30,
            wait_seconds: 0,
        };
        Shared {
            client: Client::new(options).unwrap(),
            claim,
            book: Book::open(file).unwrap(),
            stop: connect::Stop::default(),
            changed: Notify::new(),
            clock: Mutex::new(Clock::system()),
        }
    }

    #[tokio::test]
    async fn one_schedules_trouble_is_put_off_and_the_servers_ends_the_round() {
        let folder = tempfile::tempdir().unwrap();
        let shared = alone(&folder.path().join("s.db"));
        let payload = json!({"name": "n", "mode": "interval", "interval_seconds": 60, "task_template": {"type": "t"}});
        let owned = |id: &str| Schedule { owner: Some("agent:alice".to_owned()), ..schedule(id, &payload) };
        let mut untimed = owned("untimed");
        untimed.definition.interval_seconds = None;
        // Nobody can say whose it is: it has no owner, and its id is no task's.
        let nobodys = schedule("nobodys", &payload);
        let idle = Schedule { handled_until_s: shared.now_s() + 3_600, ..owned("idle") };
        for (at, schedule) in [untimed, nobodys, idle, owned("first"), owned("second")].into_iter().enumerate() {
            let schedule = Schedule { next_run_s: Some(60 + at as i64), ..schedule };
            let lease = LeaseRef { worker_id: None, task_id: Uuid::nil(), lease_id: Uuid::nil() };
            let promised = Promised { lease, change: Change::Create(Box::new(schedule)), result: Json::Null };
            shared.book.apply(promised).await.unwrap();
        }
        assert_eq!(round(&shared).await.unwrap_err().code(), Code::ServerUnreachable, "the first was not tried");
        assert_eq!(shared.book.due(shared.now_s(), 9).await.unwrap(), ["second"], "who is next");
        assert_eq!(shared.book.due(shared.now_s() + 60, 9).await.unwrap().len(), 5, "all come back");
        let first = shared.book.schedule("first").await.unwrap().unwrap();
        assert_eq!((first.handled_until_s, first.next_run_s, first.last_status), (0, Some(63), None));
    }

    #[test]
    fn what_is_refused_for_good_what_is_put_off_and_what_is_everyones() {
        let kind = |code: &Code| (is_refusal(*code), is_for_all(*code));
        let refused = [
            Code::InvalidRequest,
            Code::PayloadTooLarge,
            Code::ReceiptTooLarge,
            Code::AlreadyExists,
            Code::InvalidStateTransition,
        ];
        assert!(refused.iter().all(|code| kind(code) == (true, false)));
        let everyones = [
            Code::Unauthorized,
            Code::RateLimitExceeded,
            Code::ServerUnreachable,
            Code::Unavailable,
            Code::Overloaded,
            Code::StoreUnavailable,
            Code::ShuttingDown,
            Code::StorageFull,
            Code::TooManyStoredBytes,
        ];
        assert!(everyones.iter().all(|code| kind(code) == (false, true)));
        let put_off = [Code::Forbidden, Code::NotFound, Code::RequestTimeout, Code::Internal];
        assert!(put_off.iter().all(|code| kind(code) == (false, false)));
        assert!(Code::ALL.iter().all(|code| kind(code) != (true, true)));
    }

    #[test]
    fn a_firing_carries_its_key_and_its_template_and_jitter_moves_only_the_delay() {
        let payload = json!({
            "name": "n", "mode": "interval", "interval_seconds": 60, "jitter_seconds": 5,
            "task_template": {"type": "report", "payload_template": {"for": "{{run_at}} {{schedule_id}}"},
                              "requirements": {"capabilities": ["x"]}, "priority": 7},
        });
        let schedule = schedule("s1", &payload);
        for _ in 0..200 {
            let task = task(&schedule, "agent:alice".to_owned(), 60, 75).unwrap();
            assert_eq!(task.created_by.as_deref(), Some("agent:alice"));
            assert_eq!(task.idempotency_key.as_deref(), Some("schedule:s1:1970-01-01T00:01:00Z"));
            assert_eq!(task.payload, json!({"for": "1970-01-01T00:01:00Z s1"}));
            assert_eq!((task.kind.as_str(), task.priority), ("report", Some(7)));
            assert_eq!(task.requirements, Some(json!({"capabilities": ["x"], "tags": []})));
            assert!((0..=5).contains(&task.delay_seconds.unwrap_or(0)), "{:?}", task.delay_seconds);
        }
        let seen: std::collections::HashSet<_> = (0..500).map(|_| jitter(2)).collect();
        assert_eq!(seen.len(), 3, "{seen:?}");
        assert_eq!(jitter(0), 0);
    }
}
