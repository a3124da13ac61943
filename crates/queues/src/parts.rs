//! Parts are given to queues, and taken away by a purge or by the end of the queue. What a dead part holds is deleted in
//! the background (sweeps/drain.rs), and its number is used again.

use waybill_kernel::{Result, Time};
use waybill_store::{Tx, Value};

use crate::rules::partitions;

/// One that belongs to no queue, and is as it was made.
const TAKE: &str = "UPDATE parts SET queue = $2, generation = $3, partition = $4 WHERE tenant = $1 AND part = \
                    (SELECT p.part FROM parts p WHERE p.tenant = $1 AND p.queue IS NULL ORDER BY p.part LIMIT 1 \
                    FOR UPDATE SKIP LOCKED)";
const MAKE: &str = "INSERT INTO parts (tenant, queue, generation, partition) VALUES ($1, $2, $3, $4)";
const RETIRE: &str = "UPDATE parts SET dead_at = $4, drain_at = $4 WHERE tenant = $1 AND queue = $2 AND generation = $3 AND dead_at IS NULL";

/// For a generation of a queue that has none yet in this store: one for each of its partitions that are to be there.
pub(crate) async fn give(
    tx: &mut Tx<'_>,
    queue: &str,
    generation: i64,
    (spread, here): (i64, Option<i64>),
) -> Result<()> {
    for partition in partitions::of(spread, here) {
        let params = [Value::from(queue), generation.into(), partition.into()];
        if tx.execute(TAKE, &params).await? == 0 {
            tx.execute(MAKE, &params).await?;
        }
    }
    Ok(())
}

/// All parts of a generation that has ended. Nobody looks there any more.
pub(crate) async fn retire(tx: &mut Tx<'_>, queue: &str, generation: i64, now: Time) -> Result<()> {
    tx.execute(RETIRE, &[Value::from(queue), generation.into(), now.into()]).await.map(drop)
}
