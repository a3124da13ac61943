//! What recurs about webhooks: deliveries that nobody accepted in time have failed, and ended ones go.

use std::time::Duration;

use waybill_kernel::Result;
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx, Value};

use crate::Settings;

const NEVER_ACCEPTED: &str = "It was not accepted in time, or the webhook was disabled.";

#[derive(Clone, Debug)]
pub struct Over {
    interval: Duration,
    retention: Duration,
}

impl Over {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.sweep_interval_s.max(1)), retention: settings.retention() }
    }
}

impl Sweep for Over {
    const NAME: &'static str = "webhooks.deliveries";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const FAIL: &str = "UPDATE webhook_deliveries SET state = 'failed', next_at = NULL, ended_at = $1, \
            last_error = coalesce(last_error, $3), keep_until = $2 WHERE (tenant, webhook_id, delivery_id) IN \
            (SELECT tenant, webhook_id, delivery_id FROM webhook_deliveries WHERE keep_until <= $1 AND state = 'pending' \
            ORDER BY keep_until LIMIT $4)";
        const DELETE: &str = "DELETE FROM webhook_deliveries WHERE (tenant, webhook_id, delivery_id) IN \
            (SELECT tenant, webhook_id, delivery_id FROM webhook_deliveries WHERE keep_until <= $1 AND state <> 'pending' \
            ORDER BY keep_until LIMIT $2)";
        // A retention of nothing would have it failed and deleted in the same batch, unseen.
        let keep_until = ctx.now.after(self.retention.max(self.interval));
        let params = [Value::from(ctx.now), Value::from(keep_until), Value::from(NEVER_ACCEPTED), Value::from(limit)];
        let failed = tx.execute(FAIL, &params).await?;
        let room = limit.saturating_sub(i64::try_from(failed).unwrap_or(i64::MAX));
        let deleted = tx.execute(DELETE, &[Value::from(ctx.now), Value::from(room)]).await?;
        Ok(failed + deleted)
    }
}
