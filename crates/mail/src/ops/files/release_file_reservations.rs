//! Release: the files are free again. What is over already is left as it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Statement, Tx};

use super::chosen::Chosen;
use crate::acting::{Agent, Project, act_as, project, touch};
use crate::archive_rows::changed;
use crate::reservations::{lock, of_agent};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseFileReservations {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Whose reservations end.
    pub agent_name: String,
    /// Only those of exactly these paths or patterns. Without paths and ids all of the agent's end.
    #[schemars(length(max = 200))]
    pub paths: Option<Vec<String>>,
    /// Only these.
    #[schemars(length(max = 200))]
    #[schemars(extend("x-rare" = true))]
    pub file_reservation_ids: Option<Vec<i64>>,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Released {
    /// How many have ended by this call.
    pub released: u64,
    pub released_at: Time,
}

impl Operation for ReleaseFileReservations {
    const SPEC: OperationSpec = OperationSpec {
        name: "release_file_reservations",
        route: Route::post("/v1/mail/file_reservations/release"),
        repeatable: true,
        relieves: true,
        title: "Release files",
        description: "End your reservations: all of them, or those of the given paths or ids. Safe to repeat: what is over stays \
                      as it was, and released is 0.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "paths": ["src/api/*.rs"]}"#,
            answer: r#"{"released": 1, "released_at": "2026-01-05T12:40:00.000000Z"}"#,
        },
        ..super::WRITE
    };
    type Output = Released;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Released>> {
        let chosen = Chosen::read(self.paths.as_deref(), self.file_reservation_ids.as_deref())?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        let (released, released_at) = release(ctx, tx, &project, &acting.agent, &chosen).await?;
        touch(ctx, tx, &acting.agent).await?;
        Ok(Reply::Done(Released { released, released_at }))
    }
}

/// Ends the agent's active reservations that were chosen.
pub(crate) async fn release(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    agent: &Agent,
    chosen: &Chosen,
) -> Result<(u64, Time)> {
    const RELEASE: &str = "UPDATE mail_reservations SET released_at = $3 \
        WHERE tenant = $1 AND reservation = $2 AND released_at IS NULL";
    let now = lock(ctx, tx, project.id).await?;
    let own = of_agent(tx, now, project.id, agent.id).await?;
    let ending: Vec<i64> = own.iter().filter(|held| chosen.has(held)).map(|held| held.id).collect();
    let mut released = 0;
    for ids in ending.chunks(STATEMENTS_MAX) {
        let statements: Vec<Statement<'_>> = ids.iter().map(|id| (RELEASE, vec![(*id).into(), now.into()])).collect();
        released += tx.execute_together(&statements).await?.iter().sum::<u64>();
    }
    if released > 0 {
        changed(tx, now, project.id, agent.id).await?;
    }
    Ok((released, now))
}
