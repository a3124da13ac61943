//! Agents that have done nothing for long are retired: whoever writes to a group is told of them at once, instead of waiting for an answer of
//! somebody who is gone. One that registers again is back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use waybill_kernel::{Result, Tenant};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx};

use super::before;
use crate::archive_rows::ArchiveKind;
use crate::{Settings, archive_rows, metrics};

/// Looks at an inbox that mark nothing are no sign of life: they write nothing. Agents that are exempt stay, and those that were imported
/// have as much time from then on to show that they live.
#[derive(Debug)]
pub struct InactiveAgents {
    interval: Duration,
    after: Duration,
    /// Of the batch under way, counted once it is committed.
    retired: AtomicU64,
}

impl InactiveAgents {
    /// None where agents are never retired for that.
    pub fn new(settings: &Settings) -> Option<Self> {
        let after = Duration::from_secs(settings.agents_inactive_s);
        let interval = Duration::from_secs(settings.sweep_interval_s.max(1));
        (!after.is_zero()).then(|| Self { interval, after, retired: AtomicU64::new(0) })
    }
}

impl Sweep for InactiveAgents {
    const NAME: &'static str = "mail.inactive_agents";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        // Asked again outside: on PostgreSQL one of them may have done something since it was chosen.
        const RETIRE: &str = "UPDATE mail_agents SET retired_at = $1 WHERE agent IN \
            (SELECT agent FROM mail_agents WHERE retired_at IS NULL AND reaper_exempt = 0 AND active_at < $2 \
             AND (imported_at IS NULL OR imported_at < $2) ORDER BY active_at LIMIT $3) \
            AND retired_at IS NULL AND reaper_exempt = 0 AND active_at < $2 RETURNING tenant, project, agent";
        let idle_since = before(ctx.now, self.after);
        let rows = tx.query(RETIRE, &[ctx.now.into(), idle_since.into(), limit.into()]).await?;
        for row in &rows {
            let (tenant, project, agent) = (Tenant(row.int(0)?), row.int(1)?, row.int(2)?);
            archive_rows::note(&mut tx.as_tenant(tenant), ctx.now, project, ArchiveKind::Agent, agent).await?;
        }
        self.retired.store(rows.len() as u64, Ordering::Relaxed);
        Ok(rows.len() as u64)
    }

    fn committed(&self) {
        let retired = self.retired.swap(0, Ordering::Relaxed);
        if retired > 0 {
            ::metrics::counter!(metrics::AGENTS_RETIRED).increment(retired);
        }
    }
}
