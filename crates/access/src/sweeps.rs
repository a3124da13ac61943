//! What recurs about keys.

use std::time::Duration;

use waybill_kernel::{Result, Time};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx, Value};

use crate::Settings;

/// Removes the rows of keys that ended longer ago than anybody asks about. Such a key opens nothing before and after.
#[derive(Clone, Copy, Debug)]
pub struct EndedKeys {
    interval: Duration,
    retention: Duration,
}

impl EndedKeys {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: settings.ended_keys_interval, retention: settings.ended_keys_retention }
    }
}

impl Sweep for EndedKeys {
    const NAME: &'static str = "keys.ended";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    /// Two statements, because one with OR would use neither index.
    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const REVOKED: &str = "DELETE FROM api_keys WHERE key_id IN \
            (SELECT key_id FROM api_keys WHERE revoked_at < $1 ORDER BY revoked_at LIMIT $2)";
        const EXPIRED: &str = "DELETE FROM api_keys WHERE key_id IN \
            (SELECT key_id FROM api_keys WHERE expires_at < $1 ORDER BY expires_at LIMIT $2)";
        let retention_us = i64::try_from(self.retention.as_micros()).unwrap_or(i64::MAX);
        let before = Time::from_micros(ctx.now.micros().saturating_sub(retention_us));
        let revoked = tx.execute(REVOKED, &[Value::from(before), Value::from(limit)]).await?;
        let room = limit.saturating_sub(i64::try_from(revoked).unwrap_or(i64::MAX)).max(0);
        let expired = tx.execute(EXPIRED, &[Value::from(before), Value::from(room)]).await?;
        Ok(revoked + expired)
    }
}
