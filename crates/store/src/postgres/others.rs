//! What a transaction knows of the others that are open at the same time.

use waybill_kernel::{Error, Result};

use super::Transaction;
use crate::{Topic, Value};

/// Looks for the horizon while a transaction is just ending.
const BOUNDS_TRIES_MAX: usize = 4;

impl Transaction {
    /// The lowest number of a transaction that is still open, and the lowest that none has yet. Numbers are those of the
    /// whole cluster; a transaction that is seen to be of another database cannot write here and does not count.
    pub(crate) async fn bounds(&mut self) -> Result<(i64, i64)> {
        // What the snapshot has and no session has ended in between, or is not shown to us. It counts, and is looked for
        // once more, or everybody's last moments would hold everybody back.
        const BOUNDS: &str = "SELECT coalesce(min(o.xid) FILTER (WHERE o.datid IS NULL OR o.datid = s.here), s.ceiling), \
                s.ceiling, count(*) FILTER (WHERE o.xid IS NOT NULL AND o.datid IS NULL) \
            FROM (SELECT pg_current_snapshot(), pg_snapshot_xmax(pg_current_snapshot())::text::bigint, \
                d.oid, pg_stat_clear_snapshot() FROM pg_database d WHERE d.datname = current_database()) \
              AS s (now, ceiling, here) \
            LEFT JOIN LATERAL (SELECT x.open::text::bigint, coalesce(a.datid, p.oid) FROM pg_snapshot_xip(s.now) AS x (open) \
                LEFT JOIN pg_stat_activity a ON a.backend_xid = x.open::xid \
                LEFT JOIN (pg_prepared_xacts q JOIN pg_database p ON p.datname = q.database) ON q.transaction = x.open::xid) \
              AS o (xid, datid) ON true \
            GROUP BY s.ceiling";
        let mut tries = 0;
        loop {
            let rows = self.query(BOUNDS, None, &[]).await?;
            let row = rows.first().ok_or_else(|| Error::internal("no snapshot"))?;
            tries += 1;
            if row.int(2)? == 0 || tries == BOUNDS_TRIES_MAX {
                return Ok((row.int(0)?, row.int(1)?));
            }
        }
    }

    /// By a lock that ends with the transaction. Whoever waits for it keeps nothing, so all who do go on at once.
    pub(crate) async fn alone(&mut self, topic: Topic) -> Result<bool> {
        const TRY: &str = "SELECT pg_try_advisory_xact_lock($1)";
        const WAIT: &str = "SELECT pg_advisory_lock_shared($1) IS NULL, pg_advisory_unlock_shared($1)";
        let key = [Value::from(topic.0.cast_signed())];
        let tried = self.query(TRY, None, &key).await?;
        if tried.first().map_or(Ok(false), |row| row.bool(0))? {
            return Ok(true);
        }
        self.query(WAIT, None, &key).await.map(|_| false)
    }

    /// By the same lock, for which one stands in line.
    pub(crate) async fn in_turn(&mut self, topic: Topic) -> Result<()> {
        const WAIT: &str = "SELECT pg_advisory_xact_lock($1) IS NULL";
        self.query(WAIT, None, &[Value::from(topic.0.cast_signed())]).await.map(drop)
    }
}
