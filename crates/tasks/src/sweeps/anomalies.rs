//! What no operation comes across, because it is about something that does not happen.

use serde_json::json;
use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Effect, Plan, Sweep, position};
use waybill_store::{Ctx, Row, Tx, Value};

use super::Seal;
use crate::Settings;
use crate::anomaly::{self, Anomaly};
use crate::receipts::{ReceiptId, SYSTEM};
use crate::settings::seconds_of;
use crate::task::TaskId;

/// Tasks that wait although no attempt is left, schedules that should have run long ago, receipts that nobody seals.
#[derive(Clone, Copy, Debug)]
pub struct Anomalies {
    interval_s: i64,
    batch: i64,
    backlog: i64,
}

impl Anomalies {
    pub fn new(settings: &Settings) -> Self {
        let backlog = settings.receipt_backlog.max(1);
        Self { interval_s: settings.sweep_interval_s, batch: settings.sweep_batch, backlog }
    }
}

impl Sweep for Anomalies {
    const NAME: &'static str = "tasks.anomalies";

    fn plan(&self) -> Plan {
        // Each may wake two topics, those of expired leases three: what is few enough for the one is for the other.
        Plan { batch: self.batch, ..Plan::every(seconds_of(self.interval_s.max(1))) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        let exhausted = report_exhausted(ctx, tx, limit).await?;
        let overdue = report_overdue(ctx, tx, limit).await?;
        self.report_backlog(ctx, tx).await?;
        Ok(exhausted.max(overdue))
    }
}

impl Anomalies {
    /// The place of the sealer at the time of the report stands among the feeds as long as the report holds.
    async fn report_backlog(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const REPORTED: &str = "receipts.backlog";
        const WAITING: &str = "SELECT count(*) FROM (SELECT seq FROM receipts \
            WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4) waiting";
        const REPORT: &str = "INSERT INTO feeds (name, xact, seq, updated_at) VALUES ($1, $2, $3, $4) \
                              ON CONFLICT (name) DO NOTHING";
        const FORGET: &str = "DELETE FROM feeds WHERE name = $1";
        let (high, low) = (self.backlog * 4 / 5, self.backlog / 2);
        let sealed = position(tx, Seal::NAME).await?;
        let counted = [sealed.xact, sealed.seq, i64::MAX, high + 1].map(Value::from);
        let waiting = tx.query_opt(WAITING, &counted).await?.map_or(Ok(0), |row| row.int(0))?;
        if waiting < low {
            return tx.execute(FORGET, &[REPORTED.into()]).await.map(drop);
        }
        let report = [REPORTED.into(), sealed.xact.into(), sealed.seq.into(), ctx.now.into()];
        if waiting <= high || tx.execute(REPORT, &report).await? == 0 {
            return Ok(());
        }
        let anomaly = Anomaly {
            kind: anomaly::Kind::ReceiptBacklog,
            to: SYSTEM,
            task_id: None,
            related: None,
            crossing: &[sealed.xact.to_be_bytes(), sealed.seq.to_be_bytes()].concat(),
            details: json!({ "waiting_more_than": high, "sealed_up_to": { "xact": sealed.xact, "seq": sealed.seq } }),
            recommended_action: "Look at `waybill sweeps` whether receipts.chain runs, and why it fails.",
        };
        anomaly::report(&mut tx.as_tenant(Tenant::DEFAULT), ctx, anomaly).await
    }
}

async fn report_exhausted(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    const EXHAUSTED: &str = "SELECT tenant, task_id FROM tasks \
        WHERE status = 'queued' AND attempt >= max_attempts AND exhausted_reported = 0 LIMIT $1";
    const MARK: &str = "UPDATE tasks SET exhausted_reported = 1 WHERE tenant = $1 AND task_id = $2 \
        AND status = 'queued' AND attempt >= max_attempts AND exhausted_reported = 0 \
        RETURNING owner, assigned_receipt, attempt, max_attempts";
    let found = tx.query(EXHAUSTED, &[Value::from(limit)]).await?;
    for row in &found {
        let tx = &mut *tx.as_tenant(Tenant(row.int(0)?));
        let task_id = TaskId::from_slice(row.bytes(1)?)?;
        let Some(task) = tx.query_opt(MARK, &[task_id.as_bytes().into()]).await? else { continue };
        let anomaly = Anomaly {
            kind: anomaly::Kind::AttemptsExhausted,
            to: task.text(0)?,
            task_id: Some(task_id),
            related: Some(ReceiptId::from_slice(task.bytes(1)?)?),
            crossing: &task.int(2)?.to_be_bytes(),
            details: json!({ "attempt": task.int(2)?, "max_attempts": task.int(3)? }),
            recommended_action: "The next worker's failure is final. Cancel the task if it should not run again.",
        };
        anomaly::report(tx, ctx, anomaly).await?;
    }
    Ok(found.len() as u64)
}

async fn report_overdue(ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
    const OVERDUE: &str = "SELECT tenant, schedule_id, overdue_at FROM schedule_watch WHERE overdue_at < $1 \
                           ORDER BY overdue_at LIMIT $2";
    const MARK: &str = "UPDATE schedule_watch SET overdue_at = NULL, reported_at = $4 \
        WHERE tenant = $1 AND schedule_id = $2 AND overdue_at = $3 RETURNING owner, receipt_id, next_run_at";
    let found = tx.query(OVERDUE, &[Value::from(ctx.now), Value::from(limit)]).await?;
    for row in &found {
        let tx = &mut *tx.as_tenant(Tenant(row.int(0)?));
        let (schedule_id, overdue_at) = (row.text(1)?, row.time(2)?);
        let params = [Value::from(schedule_id), Value::from(overdue_at), Value::from(ctx.now)];
        let Some(schedule) = tx.query_opt(MARK, &params).await? else { continue };
        report_schedule(ctx, tx, schedule_id, overdue_at, &schedule).await?;
    }
    Ok(found.len() as u64)
}

async fn report_schedule(ctx: &Ctx<'_>, tx: &mut Tx<'_>, id: &str, overdue_at: Time, schedule: &Row) -> Result<()> {
    let crossing = [id.as_bytes(), &overdue_at.micros().to_be_bytes()].concat();
    let anomaly = Anomaly {
        kind: anomaly::Kind::ScheduleOverdue,
        to: schedule.text(0)?,
        task_id: None,
        related: Some(ReceiptId::from_slice(schedule.bytes(1)?)?),
        crossing: &crossing,
        details: json!({ "schedule_id": id, "next_run_at": schedule.time_opt(2)?, "overdue_since": overdue_at }),
        recommended_action: "Look whether the scheduler runs; pause or delete the schedule if it should not.",
    };
    anomaly::report(tx, ctx, anomaly).await
}
