//! What the server knows of schedules. Their scheduler owns them; the server watches that they run, and keeps the
//! obligation they are, from what passes through it anyway: the scheduler's results, and the keys of the tasks it makes.

use std::time::Duration;

use serde_json::{Value as Json, json};
use waybill_kernel::{Error, Result, Time};
use waybill_store::{Ctx, Tx, Value};

use crate::cron;
use crate::receipts::{self, Receipt, ReceiptId, ReceiptType, SYSTEM};
use crate::task::TaskId;

const KIND_PREFIX: &str = "schedule.";
const KEY_PREFIX: &str = "schedule:";
/// As in 2026-01-01T00:00:00Z.
const RUN_AT_CHARS: usize = 20;
const ID_CHARS_MAX: usize = 200;
/// For a schedule whose rhythm nobody has told: so late, twice, is a run that was announced.
const GAP_UNKNOWN: Duration = Duration::from_secs(86_400);

/// A task that has succeeded.
pub(crate) struct Success<'a> {
    pub task_id: TaskId,
    pub kind: &'a str,
    pub owner: &'a str,
    /// None for one that is too large for a receipt: it is no scheduler's.
    pub result: Option<&'a Json>,
}

/// Nothing for any task but those a scheduler does, and nothing for a schedule of somebody else.
pub(crate) async fn succeeded(tx: &mut Tx<'_>, ctx: &Ctx<'_>, task: Success<'_>) -> Result<()> {
    let Some(what) = task.kind.strip_prefix(KIND_PREFIX) else { return Ok(()) };
    const PAYLOAD: &str = "SELECT payload FROM tasks WHERE tenant = $1 AND task_id = $2";
    let row = tx.query_opt(PAYLOAD, &[task.task_id.as_bytes().into()]).await?;
    let row = row.ok_or_else(|| Error::internal("a task that succeeded is gone"))?;
    let payload: Json = serde_json::from_str(row.text(0)?).map_err(Error::internal)?;
    // A new schedule is named by its scheduler; the others are named by whoever asks.
    let named = if what == "create" { None } else { payload["schedule_id"].as_str() };
    let result = task.result.unwrap_or(&Json::Null);
    let Some(id) = result["schedule_id"].as_str().or(named).filter(|id| id.len() <= ID_CHARS_MAX) else {
        return Ok(());
    };
    let next_run_at = time(&result["next_run_at"]);
    match what {
        "create" => created(tx, ctx, &task, id, Rhythm::of(&payload), next_run_at).await,
        "pause" => paused(tx, &task, id).await,
        "resume" => resumed(tx, ctx, &task, id, next_run_at).await,
        "delete" => deleted(tx, ctx, &task, id).await,
        _ => Ok(()),
    }
}

/// A task was made under this key. One that a schedule fired has the schedule and the time in it, and the schedule's owner.
pub(crate) async fn fired(tx: &mut Tx<'_>, key: Option<&str>, owner: &str) -> Result<()> {
    // The gap to the run before counts only if there was no pause in between.
    macro_rules! gap {
        () => {
            "coalesce(interval_us, CASE WHEN last_run_at > coalesce(resumed_at, 0) THEN $3 - last_run_at END, gap_us)"
        };
    }
    const FIRED: &str = concat!(
        "UPDATE schedule_watch SET last_run_at = $3, reported_at = NULL, next_run_at = $3 + ",
        gap!(),
        ", overdue_at = CASE WHEN enabled = 1 THEN $3 + 3 * ",
        gap!(),
        " ELSE NULL END WHERE tenant = $1 AND schedule_id = $2 AND owner = $4 \
         AND (last_run_at IS NULL OR last_run_at < $3)"
    );
    let Some((id, run_at)) = key.and_then(read_key) else { return Ok(()) };
    tx.execute(FIRED, &[Value::from(id), Value::from(run_at), Value::from(owner)]).await.map(drop)
}

/// Who owns the schedule that a key names.
pub(crate) async fn owner(tx: &mut Tx<'_>, key: Option<&str>) -> Result<Option<String>> {
    const OWNER: &str = "SELECT owner FROM schedule_watch WHERE tenant = $1 AND schedule_id = $2";
    let Some((id, _)) = key.and_then(read_key) else { return Ok(None) };
    tx.query_opt(OWNER, &[Value::from(id)]).await?.map(|row| Ok(row.text(0)?.to_owned())).transpose()
}

/// `schedule:<id>:<time>`. The id may hold colons; the time has a fixed length.
fn read_key(key: &str) -> Option<(&str, Time)> {
    let rest = key.strip_prefix(KEY_PREFIX)?;
    let (id, run_at) = rest.split_at_checked(rest.len().checked_sub(RUN_AT_CHARS)?)?;
    Some((id.strip_suffix(':')?, time(&Json::from(run_at))?))
}

fn time(value: &Json) -> Option<Time> {
    serde_json::from_value(value.clone()).ok()
}

/// How far apart a schedule's runs are.
struct Rhythm {
    /// None for cron.
    interval: Option<Duration>,
    /// For cron: the widest gap, until two runs show theirs.
    gap: Option<Duration>,
}

impl Rhythm {
    fn of(payload: &Json) -> Self {
        let seconds = payload["interval_seconds"].as_u64().filter(|seconds| *seconds > 0);
        let interval = seconds.map(|seconds| Duration::from_secs(seconds.min(u64::from(u32::MAX))));
        let gap = if interval.is_none() { payload["cron_expr"].as_str().and_then(cron::widest_gap) } else { None };
        Self { interval, gap }
    }

    /// When the silence of a schedule that has announced its next run is reported.
    fn overdue_at(&self, next_run_at: Option<Time>) -> Option<Time> {
        Some(next_run_at?.after(self.interval.or(self.gap).unwrap_or(GAP_UNKNOWN) * 2))
    }
}

fn micros(time: Option<Duration>) -> Value<'static> {
    Value::from(time.map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX)))
}

async fn created(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    task: &Success<'_>,
    id: &str,
    rhythm: Rhythm,
    next_run_at: Option<Time>,
) -> Result<()> {
    const WATCH: &str = "INSERT INTO schedule_watch (tenant, schedule_id, owner, receipt_id, interval_us, gap_us, \
        next_run_at, enabled, overdue_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8) \
        ON CONFLICT (tenant, schedule_id) DO NOTHING";
    const AGAIN: &str = "UPDATE schedule_watch SET interval_us = $3, gap_us = $4, next_run_at = $5, overdue_at = $6, \
        enabled = 1, reported_at = NULL WHERE tenant = $1 AND schedule_id = $2 AND owner = $7";
    let receipt_id =
        receipts::keyed_id(ReceiptType::ScheduleCreated, &task.task_id.0, &[task.task_id.as_bytes(), id.as_bytes()]);
    let overdue_at = rhythm.overdue_at(next_run_at);
    let timing = [micros(rhythm.interval), micros(rhythm.gap), Value::from(next_run_at), Value::from(overdue_at)];
    let params =
        [&[Value::from(id), Value::from(task.owner), Value::from(receipt_id.as_bytes())], &timing[..]].concat();
    if tx.execute(WATCH, &params).await? == 0 {
        // It is an obligation already, and one deletion ends it.
        return tx
            .execute(AGAIN, &[&[Value::from(id)], &timing[..], &[Value::from(task.owner)]].concat())
            .await
            .map(drop);
    }
    let body = json!({ "schedule_id": id, "next_run_at": next_run_at });
    let receipt = receipt(receipt_id, ReceiptType::ScheduleCreated, task.owner, task.task_id, id, body);
    receipts::emit(tx, ctx, receipt).await
}

async fn paused(tx: &mut Tx<'_>, task: &Success<'_>, id: &str) -> Result<()> {
    const PAUSE: &str = "UPDATE schedule_watch SET enabled = 0, overdue_at = NULL \
                         WHERE tenant = $1 AND schedule_id = $2 AND owner = $3";
    tx.execute(PAUSE, &[Value::from(id), Value::from(task.owner)]).await.map(drop)
}

async fn resumed(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    task: &Success<'_>,
    id: &str,
    next_run_at: Option<Time>,
) -> Result<()> {
    const RESUME: &str = "UPDATE schedule_watch SET enabled = 1, reported_at = NULL, next_run_at = $3, resumed_at = $5, \
        overdue_at = $3 + 2 * coalesce(interval_us, gap_us, $6) \
        WHERE tenant = $1 AND schedule_id = $2 AND owner = $4";
    let params = [
        Value::from(id),
        Value::from(next_run_at),
        Value::from(task.owner),
        Value::from(ctx.now),
        micros(Some(GAP_UNKNOWN)),
    ];
    tx.execute(RESUME, &params).await.map(drop)
}

async fn deleted(tx: &mut Tx<'_>, ctx: &Ctx<'_>, task: &Success<'_>, id: &str) -> Result<()> {
    const FORGET: &str = "DELETE FROM schedule_watch WHERE tenant = $1 AND schedule_id = $2 AND owner = $3 \
                          RETURNING receipt_id, owner, next_run_at";
    let forget = [Value::from(id), Value::from(task.owner)];
    let Some(row) = tx.query_opt(FORGET, &forget).await? else { return Ok(()) };
    let created = [ReceiptId::from_slice(row.bytes(0)?)?];
    let receipt_id = receipts::keyed_id(ReceiptType::ScheduleDeleted, &created[0].0, &[created[0].as_bytes()]);
    let body = json!({ "schedule_id": id, "next_run_at": row.time_opt(2)? });
    let receipt = receipt(receipt_id, ReceiptType::ScheduleDeleted, row.text(1)?, task.task_id, id, body);
    receipts::emit(tx, ctx, Receipt { parents: &created, ..receipt }).await
}

fn receipt<'a>(
    id: ReceiptId,
    kind: ReceiptType,
    to: &'a str,
    task_id: TaskId,
    schedule_id: &'a str,
    body: Json,
) -> Receipt<'a> {
    Receipt {
        id,
        kind,
        from: SYSTEM,
        to,
        task_id: Some(task_id),
        lease_id: None,
        schedule_id: Some(schedule_id),
        parents: &[],
        unlocated: false,
        body: body.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_its_schedule_and_time_or_nothing() {
        let at = Time::from_micros(1_767_225_600_000_000);
        assert_eq!(read_key("schedule:s1:2026-01-01T00:00:00Z"), Some(("s1", at)));
        assert_eq!(read_key("schedule:a:b:2026-01-01T00:00:00Z"), Some(("a:b", at)));
        for key in [
            "schedule:s1",
            "schedule:",
            "s1:2026-01-01T00:00:00Z",
            "schedule:s1:yesterday",
            "schedule:s12026-01-01T00:00:00Z",
            "schedule:2026-01-01T00:00:00Z",
            "schedule:é2026-01-01T00:00:0é",
        ] {
            assert_eq!(read_key(key), None, "{key}");
        }
    }
}
