//! Release: the agent no longer builds in the slot.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::check_slot;
use crate::acting::{act_as, project, touch};
use crate::archive_rows::changed;
use crate::reservations::lock;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBuildSlot {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    #[schemars(length(min = 1, max = 128))]
    pub slot: String,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: an agent has a slot once, whatever it builds there.
    #[schemars(extend("deprecated" = true))]
    pub branch: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReleasedSlot {
    /// False when the agent did not have it, or no longer.
    pub released: bool,
    pub released_at: Time,
}

impl Operation for ReleaseBuildSlot {
    const SPEC: OperationSpec = OperationSpec {
        name: "release_build_slot",
        route: Route::post("/v1/mail/build_slots/release"),
        profile: Profile::Full,
        repeatable: true,
        relieves: true,
        title: "Release a build slot",
        description: "Say that you no longer build in a slot. Safe to repeat.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "slot": "frontend-build"}"#,
            answer: r#"{"released": true, "released_at": "2026-01-05T12:40:00.000000Z"}"#,
        },
        ..super::WRITE
    };
    type Output = ReleasedSlot;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ReleasedSlot>> {
        const RELEASE: &str = "UPDATE mail_build_slots SET released_at = $5 WHERE tenant = $1 AND project = $2 AND slot = $3 \
            AND agent = $4 AND released_at IS NULL AND expires_at > $5";
        check_slot(&self.slot)?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        let now = lock(ctx, tx, project.id).await?;
        let params = [project.id.into(), Value::from(&self.slot), acting.agent.id.into(), now.into()];
        let released = tx.execute(RELEASE, &params).await? == 1;
        if released {
            changed(tx, now, project.id, acting.agent.id).await?;
        }
        touch(ctx, tx, &acting.agent).await?;
        Ok(Reply::Done(ReleasedSlot { released, released_at: now }))
    }
}
