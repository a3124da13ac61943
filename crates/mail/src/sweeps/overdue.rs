//! Acknowledgements that were asked for and did not come in time. Off unless the operator says what is to be done about them: told in
//! the log, or also made visible to the project by a reservation of the inbox that has the messages.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use waybill_kernel::{Result, Tenant, Time};
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx};

use crate::recipients::{self, Recipient};
use crate::reservations::{self, Wanted};
use crate::rules::paths;
use crate::settings::AckEscalation;
use crate::{Settings, inbox, metrics};

/// Each delivery is found once: what is marked is not looked at again.
#[derive(Debug)]
pub struct OverdueAcks {
    interval: Duration,
    reserves: bool,
    reserved_s: i64,
    /// Of the batch under way, told once it is committed.
    late: Mutex<Vec<Late>>,
}

/// An agent that owes acknowledgements.
#[derive(Debug)]
struct Late {
    project: String,
    agent: String,
    /// How many were found this time, and the oldest of them.
    deliveries: u64,
    message: i64,
    /// A reservation says so to the others.
    reserved: bool,
}

impl OverdueAcks {
    /// None where nobody is to be told.
    pub fn new(settings: &Settings) -> Option<Self> {
        let reserves = match settings.ack_escalation {
            AckEscalation::Off => return None,
            AckEscalation::Log => false,
            AckEscalation::FileReservation => true,
        };
        let interval = Duration::from_secs(settings.ack_scan_interval_s.max(1));
        let reserved_s = i64::try_from(settings.ack_escalation_ttl_s).unwrap_or(i64::MAX);
        Some(Self { interval, reserves, reserved_s, late: Mutex::default() })
    }

    /// Shared, so that it is in nobody's way, and one at a time however much is overdue. Where there is no room for it, or the
    /// agent is retired, the log has to do.
    async fn reserve(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, late: &Recipient, message: i64) -> Result<bool> {
        let Recipient { agent, project, .. } = late;
        let Ok(paths) = paths::read_all(&[format!("agents/{}/inbox/**", agent.name)]) else { return Ok(false) };
        let now = reservations::lock(ctx, tx, project.id).await?;
        let held = reservations::of_agent(tx, now, project.id, agent.id).await?;
        if held.iter().any(|held| paths.iter().any(|path| path.text == held.path)) {
            return Ok(true);
        }
        let reason = format!("The acknowledgement of message {message} is overdue.");
        let wanted = Wanted { paths: &paths, exclusive: false, ttl_s: Some(self.reserved_s), reason: &reason };
        match reservations::reserve(ctx, tx, now, project, agent, &wanted).await {
            Ok(reserved) => Ok(!reserved.granted.is_empty()),
            Err(error) if error.code().entry().http < 500 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Sweep for OverdueAcks {
    const NAME: &'static str = "mail.overdue_acks";

    fn plan(&self) -> Plan {
        Plan::every(self.interval)
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        // Asked again outside: on PostgreSQL one may have been acknowledged since it was chosen.
        const MARK: &str = "UPDATE mail_recipients SET escalated_at = $1 WHERE (tenant, message, agent) IN \
            (SELECT tenant, message, agent FROM mail_recipients \
             WHERE ack_required = 1 AND ack_at IS NULL AND escalated_at IS NULL AND created_at < $2 \
             ORDER BY created_at LIMIT $3) \
            AND ack_at IS NULL RETURNING tenant, agent, message";
        let since: Time = inbox::overdue(ctx.now, ctx.settings::<Settings>());
        let rows = tx.query(MARK, &[ctx.now.into(), since.into(), limit.into()]).await?;
        let mut of_agents: BTreeMap<(i64, i64), (u64, i64)> = BTreeMap::new();
        for row in &rows {
            let (deliveries, oldest) = of_agents.entry((row.int(0)?, row.int(1)?)).or_insert((0, i64::MAX));
            (*deliveries, *oldest) = (*deliveries + 1, row.int(2)?.min(*oldest));
        }
        let mut all = Vec::with_capacity(of_agents.len());
        for ((tenant, agent), (deliveries, message)) in of_agents {
            let mut tx = tx.as_tenant(Tenant(tenant));
            let late = recipients::by_number(&mut tx, agent).await?;
            let reserved = self.reserves && self.reserve(ctx, &mut tx, &late, message).await?;
            let Recipient { agent, project, .. } = late;
            all.push(Late { project: project.slug, agent: agent.name, deliveries, message, reserved });
        }
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = all;
        Ok(rows.len() as u64)
    }

    fn committed(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        for Late { project, agent, deliveries, message, reserved } in late {
            ::metrics::counter!(metrics::ACKS_OVERDUE).increment(deliveries);
            tracing::warn!(project, agent, deliveries, oldest = message, reserved, "acknowledgements are overdue");
        }
    }
}
