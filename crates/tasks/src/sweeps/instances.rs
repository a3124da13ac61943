//! Which servers are alive. A task belongs to the server that made it, and that one sweeps its leases; one that is silent
//! loses its leased tasks to whoever notices first. What waits in the queue needs no sweep, so it stays where it is.

use waybill_kernel::{Result, Time};
use waybill_store::{Ctx, Sql, Tx, Value};

use crate::Settings;

/// Sweeps an instance may miss before it counts as gone.
const SILENT_INTERVALS: i64 = 3;
/// Silent instances looked at in one batch.
const SILENT_MAX: i64 = 16;

/// Says that this instance is alive, in the transaction of its sweep: one that cannot sweep is not.
/// On SQLite it is said only while there are leased tasks to lose, and often enough not to be forgotten: no other server can
/// lease one meanwhile.
pub(super) async fn beat(ctx: &Ctx<'_>, tx: &mut Tx<'_>, settings: &Settings) -> Result<()> {
    const BEAT: Sql = Sql {
        sqlite: concat!(
            insert_beat!(),
            " WHERE instances.last_seen <= $3 OR EXISTS (\
        SELECT 1 FROM tasks t WHERE t.instance = $1 AND t.lease_id IS NOT NULL)"
        ),
        postgres: insert_beat!(),
    };
    let before = ctx.now.micros().saturating_sub(forgotten_us(settings) / 4);
    let params = [Value::from(&settings.instance_id), Value::from(ctx.now), Value::from(before)];
    tx.execute(tx.text(BEAT), &params).await.map(drop)
}

macro_rules! insert_beat {
    () => {
        "INSERT INTO instances (instance_id, first_seen, last_seen) VALUES ($1, $2, $2) \
         ON CONFLICT (instance_id) DO UPDATE SET last_seen = excluded.last_seen"
    };
}
use insert_beat;

fn forgotten_us(settings: &Settings) -> i64 {
    settings.instance_forgotten_s.max(1).saturating_mul(1_000_000)
}

/// Removes instances that have been silent for very long, and says which they were.
pub(super) async fn forget(ctx: &Ctx<'_>, tx: &mut Tx<'_>, settings: &Settings) -> Result<Vec<String>> {
    const FORGET: &str = "DELETE FROM instances WHERE last_seen < $1 RETURNING instance_id";
    let before = Time::from_micros(ctx.now.micros().saturating_sub(forgotten_us(settings)));
    let rows = tx.query(FORGET, &[Value::from(before)]).await?;
    rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
}

/// Takes over leased tasks of instances that are silent; answers with how many, `limit` at most.
pub(super) async fn adopt(ctx: &Ctx<'_>, tx: &mut Tx<'_>, settings: &Settings, limit: i64) -> Result<u64> {
    const ADOPT: &str = "WITH silent (owner, found) AS MATERIALIZED (SELECT tenant, task_id FROM tasks \
        WHERE instance = $2 AND lease_id IS NOT NULL ORDER BY lease_expires_at LIMIT $4 FOR UPDATE SKIP LOCKED) \
        UPDATE tasks SET instance = $1 WHERE (tenant, task_id) IN (SELECT silent.owner, silent.found FROM silent) \
        AND instance = $2 \
        AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.instance_id = $2 AND i.last_seen >= $3)";
    let silence_us = SILENT_INTERVALS.saturating_mul(settings.sweep_interval_s.max(1)).saturating_mul(1_000_000);
    let heard_since = Time::from_micros(ctx.now.micros().saturating_sub(silence_us));
    let own = &settings.instance_id;
    let mut adopted = 0;
    for silent in silent(tx, own, heard_since).await? {
        let room = limit.saturating_sub(i64::try_from(adopted).unwrap_or(i64::MAX)).max(0);
        let params = [Value::from(own), Value::from(&silent), Value::from(heard_since), Value::from(room)];
        let taken = tx.execute(ADOPT, &params).await?;
        if taken > 0 {
            tracing::warn!(instance = own, silent, taken, "took over the leased tasks of an instance that is silent");
        }
        adopted += taken;
    }
    Ok(adopted)
}

/// From the tasks and not from the instances that are known: one that was never heard of owns tasks as well. One look into
/// the index for each instance.
async fn silent(tx: &mut Tx<'_>, own: &str, heard_since: Time) -> Result<Vec<String>> {
    const SILENT: &str = "WITH RECURSIVE found (instance) AS ( \
           SELECT (SELECT t.instance FROM tasks t WHERE t.lease_id IS NOT NULL ORDER BY t.instance LIMIT 1) \
           UNION ALL \
           SELECT (SELECT t.instance FROM tasks t WHERE t.lease_id IS NOT NULL AND t.instance > found.instance \
                   ORDER BY t.instance LIMIT 1) \
           FROM found WHERE found.instance IS NOT NULL \
         ) \
         SELECT found.instance FROM found WHERE found.instance <> $1 AND NOT EXISTS (\
           SELECT 1 FROM instances i WHERE i.instance_id = found.instance AND i.last_seen >= $2) LIMIT $3";
    let rows = tx.query(SILENT, &[Value::from(own), Value::from(heard_since), Value::from(SILENT_MAX)]).await?;
    rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
}
