//! Figures of the moment, for the metrics: how much waits, how long it has waited, what is in work, what is open. Read
//! beside the writes, from indexes that hold only what is not over.

use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Store, Tx, Value, Work};

use crate::metrics;

/// Counted of each at most: a backlog of any size costs no more than this.
const COUNTED_MAX: i64 = 10_000;

/// Reads the figures and sets the gauges.
pub async fn measure(store: &Store) -> Result<()> {
    store.system().run(Measure).await
}

struct Measure;

impl Work for Measure {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const READY: &str = "SELECT count(*), min(created_at) FROM (SELECT created_at FROM tasks \
                             WHERE status = 'queued' AND held = 0 LIMIT $1) AS ready";
        const WAITING: &str = "SELECT count(*) FROM (SELECT 1 FROM tasks \
                               WHERE status = 'queued' AND held = 1 LIMIT $1) AS waiting";
        const LEASED: &str = "SELECT count(*) FROM (SELECT 1 FROM tasks WHERE lease_id IS NOT NULL LIMIT $1) AS leased";
        const OPEN: &str = "SELECT count(*) FROM (SELECT 1 FROM receipts WHERE open = 1 LIMIT $1) AS open_ones";
        let max = [Value::from(COUNTED_MAX)];
        let ready = tx.query(READY, &max).await?;
        let oldest = ready.first().map_or(Ok(None), |row| row.time_opt(1))?;
        let age = oldest.map_or(0.0, |oldest: Time| ctx.now.since(oldest).as_secs_f64());
        ::metrics::gauge!(metrics::QUEUE_AGE).set(age);
        let count = |rows: &[waybill_store::Row]| rows.first().map_or(Ok(0), |row| row.int(0));
        ::metrics::gauge!(metrics::TASKS, "state" => "ready").set(count(&ready)? as f64);
        for (state, sql) in [("waiting", WAITING), ("leased", LEASED)] {
            let rows = tx.query(sql, &max).await?;
            ::metrics::gauge!(metrics::TASKS, "state" => state).set(count(&rows)? as f64);
        }
        let open = tx.query(OPEN, &max).await?;
        ::metrics::gauge!(metrics::OPEN_OBLIGATIONS).set(count(&open)? as f64);
        Ok(())
    }
}
