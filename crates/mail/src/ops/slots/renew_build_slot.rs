//! Renew: more time in a slot that an agent still has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::check_slot;
use crate::acting::{act_as, project, touch};
use crate::archive_rows::changed;
use crate::reservations::{TTL_MAX_S, check_seconds, lock, ttl};

/// Unless another time is given.
const EXTEND_DEFAULT_S: i64 = 1_800;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBuildSlot {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    #[schemars(length(min = 1, max = 128))]
    pub slot: String,
    /// Seconds added: 1800 unless given, at least 60. It ends at most a year from now.
    pub extend_seconds: Option<i64>,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: an agent has a slot once, whatever it builds there.
    #[schemars(extend("deprecated" = true))]
    pub branch: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RenewedSlot {
    /// False when the agent did not have it, or no longer.
    pub renewed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ts: Option<Time>,
}

impl Operation for RenewBuildSlot {
    const SPEC: OperationSpec = OperationSpec {
        name: "renew_build_slot",
        route: Route::post("/v1/mail/build_slots/renew"),
        profile: Profile::Full,
        title: "Renew a build slot",
        description: "Keep your build slot for longer. renewed is false when you no longer have it; take it again.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "slot": "frontend-build"}"#,
            answer: r#"{"renewed": true, "expires_ts": "2026-01-05T14:00:00.000000Z"}"#,
        },
        ..super::WRITE
    };
    type Output = RenewedSlot;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RenewedSlot>> {
        const HELD: &str = "SELECT expires_at FROM mail_build_slots \
            WHERE tenant = $1 AND project = $2 AND slot = $3 AND agent = $4 AND released_at IS NULL AND expires_at > $5";
        const RENEW: &str = "UPDATE mail_build_slots SET expires_at = $5 \
            WHERE tenant = $1 AND project = $2 AND slot = $3 AND agent = $4 AND released_at IS NULL";
        check_slot(&self.slot)?;
        check_seconds("extend_seconds", self.extend_seconds)?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        let now = lock(ctx, tx, project.id).await?;
        let mut params = vec![project.id.into(), Value::from(&self.slot), acting.agent.id.into(), now.into()];
        let Some(row) = tx.query_opt(HELD, &params).await? else {
            return Ok(Reply::Done(RenewedSlot { renewed: false, expires_ts: None }));
        };
        let old = row.time(0)?;
        let extend = ttl(Some(self.extend_seconds.unwrap_or(EXTEND_DEFAULT_S)));
        let expires = old.after(extend).min(now.after(ttl(Some(TTL_MAX_S)))).max(old);
        params[3] = expires.into();
        tx.execute(RENEW, &params).await?;
        changed(tx, now, project.id, acting.agent.id).await?;
        touch(ctx, tx, &acting.agent).await?;
        Ok(Reply::Done(RenewedSlot { renewed: true, expires_ts: Some(expires) }))
    }
}
