//! Renew: more time for what an agent still holds. What has expired is not brought back: somebody else may have it by now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Statement, Tx};

use super::chosen::Chosen;
use crate::acting::{act_as, project, touch};
use crate::archive_rows::changed;
use crate::reservations::{TTL_MAX_S, check_seconds, lock, of_agent, ttl};

/// Unless another time is given.
const EXTEND_DEFAULT_S: i64 = 1_800;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewFileReservations {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Whose reservations last longer.
    pub agent_name: String,
    /// Seconds added: 1800 unless given, at least 60. None ends later than a year from now.
    pub extend_seconds: Option<i64>,
    /// Only those of exactly these paths or patterns. Without paths and ids all of the agent's are renewed.
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
pub struct Renewed {
    pub renewed: usize,
    pub file_reservations: Vec<Renewal>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Renewal {
    pub id: i64,
    pub path_pattern: String,
    pub old_expires_ts: Time,
    pub new_expires_ts: Time,
}

impl Operation for RenewFileReservations {
    const SPEC: OperationSpec = OperationSpec {
        name: "renew_file_reservations",
        route: Route::post("/v1/mail/file_reservations/renew"),
        profile: Profile::Core,
        title: "Renew reservations",
        description: "Keep your reservations for longer: all of them, or those of the given paths or ids. Those that are over \
                      are not renewed; reserve the files again.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "extend_seconds": 1800}"#,
            answer: r#"{"renewed": 1, "file_reservations": [{"id": 7, "path_pattern": "src/api/*.rs",
                "old_expires_ts": "2026-01-05T13:30:00.000000Z", "new_expires_ts": "2026-01-05T14:00:00.000000Z"}]}"#,
        },
        ..super::WRITE
    };
    type Output = Renewed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Renewed>> {
        const RENEW: &str = "UPDATE mail_reservations SET expires_at = $3 \
            WHERE tenant = $1 AND reservation = $2 AND released_at IS NULL AND expires_at <= $3";
        let chosen = Chosen::read(self.paths.as_deref(), self.file_reservation_ids.as_deref())?;
        check_seconds("extend_seconds", self.extend_seconds)?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        let now = lock(ctx, tx, project.id).await?;
        let extend = ttl(Some(self.extend_seconds.unwrap_or(EXTEND_DEFAULT_S)));
        let latest = now.after(ttl(Some(TTL_MAX_S)));
        let mut file_reservations = Vec::new();
        for held in of_agent(tx, now, project.id, acting.agent.id).await?.iter().filter(|held| chosen.has(held)) {
            file_reservations.push(Renewal {
                id: held.id,
                path_pattern: held.path.clone(),
                old_expires_ts: held.expires_at,
                // Never sooner than it was.
                new_expires_ts: held.expires_at.after(extend).min(latest).max(held.expires_at),
            });
        }
        for renewals in file_reservations.chunks(STATEMENTS_MAX) {
            let renew = |renewal: &Renewal| -> Statement<'_> {
                (RENEW, vec![renewal.id.into(), renewal.new_expires_ts.into()])
            };
            let statements: Vec<Statement<'_>> = renewals.iter().map(renew).collect();
            tx.execute_together(&statements).await?;
        }
        if !file_reservations.is_empty() {
            changed(tx, now, project.id, acting.agent.id).await?;
        }
        touch(ctx, tx, &acting.agent).await?;
        Ok(Reply::Done(Renewed { renewed: file_reservations.len(), file_reservations }))
    }
}
