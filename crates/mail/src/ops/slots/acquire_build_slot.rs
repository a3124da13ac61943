//! Acquire: says that an agent builds in a slot. It is given even if others have it, and they are named.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{SlotHolder, check_slot, others};
use crate::acting::{act_as, project, touch};
use crate::archive_rows::changed;
use crate::reservations::{check_seconds, lock, ttl};
use crate::sent::check_active;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireBuildSlot {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    /// What the slot is called, as `frontend-build`.
    #[schemars(length(min = 1, max = 128))]
    pub slot: String,
    /// Seconds until it is free again: 3600 unless given, at least 60, at most a year.
    pub ttl_seconds: Option<i64>,
    /// True unless given.
    pub exclusive: Option<bool>,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: an agent has a slot once, whatever it builds there.
    #[schemars(extend("deprecated" = true))]
    pub branch: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AcquiredSlot {
    pub granted: SlotHolder,
    /// Others who have it as well. Nothing was kept from you: agree with them.
    pub conflicts: Vec<SlotHolder>,
}

impl Operation for AcquireBuildSlot {
    const SPEC: OperationSpec = OperationSpec {
        name: "acquire_build_slot",
        route: Route::post("/v1/mail/build_slots"),
        profile: Profile::Full,
        repeatable: true,
        title: "Take a build slot",
        description: "Say that you build in a named slot. It is always given; conflicts names others who have it, for you to \
                      agree with.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "slot": "frontend-build"}"#,
            answer: r#"{"granted": {"slot": "frontend-build", "agent": "GreenCastle", "exclusive": true,
                "acquired_ts": "2026-01-05T12:30:00.000000Z", "expires_ts": "2026-01-05T13:30:00.000000Z"}, "conflicts": []}"#,
        },
        ..super::WRITE
    };
    type Output = AcquiredSlot;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AcquiredSlot>> {
        const TAKE: &str = "INSERT INTO mail_build_slots (tenant, project, slot, agent, exclusive, acquired_at, expires_at) \
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant, project, slot, agent) DO UPDATE \
            SET exclusive = excluded.exclusive, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at, \
            released_at = NULL";
        check_slot(&self.slot)?;
        check_seconds("ttl_seconds", self.ttl_seconds)?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        check_active(&acting.agent)?;
        let now = lock(ctx, tx, project.id).await?;
        let (exclusive, expires) = (self.exclusive.unwrap_or(true), now.after(ttl(self.ttl_seconds)));
        let others = others(tx, now, project.id, &self.slot, acting.agent.id).await?;
        let params = [
            project.id.into(),
            Value::from(&self.slot),
            acting.agent.id.into(),
            exclusive.into(),
            now.into(),
            expires.into(),
        ];
        tx.execute(TAKE, &params).await?;
        changed(tx, now, project.id, acting.agent.id).await?;
        touch(ctx, tx, &acting.agent).await?;
        let granted = SlotHolder {
            slot: self.slot.clone(),
            agent: acting.agent.name,
            exclusive,
            acquired_ts: now,
            expires_ts: expires,
        };
        let conflicts = others.into_iter().filter(|other| exclusive || other.exclusive).collect();
        Ok(Reply::Done(AcquiredSlot { granted, conflicts }))
    }
}
