//! Reserve: says which files an agent is working on. Each path is decided by itself, so free ones are given although others are not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{act_as, project, touch};
use crate::keys::{self, Claim};
use crate::reservations::{Conflict, Granted, Reserved, Wanted, check_reason, check_seconds, lock, reserve, ttl};
use crate::rules::paths;

const TOOL: &str = "file_reservation_paths";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReservationPaths {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The agent that works on the files.
    pub agent_name: String,
    /// Paths or globs below the project's root, as `src/api/*.rs`: at most 200. A plain path stands for everything below it.
    #[schemars(length(min = 1, max = 200))]
    pub paths: Vec<String>,
    /// Seconds until they are free again: 3600 unless given, at least 60, at most a year.
    pub ttl_seconds: Option<i64>,
    /// True unless given: nobody else may hold what overlaps. False shares with others that share.
    pub exclusive: Option<bool>,
    /// What for, shown to those who meet it.
    #[schemars(length(max = 1000))]
    pub reason: Option<String>,
    /// Repeats of a call with this key are answered and not done again, for 24 hours.
    #[schemars(length(min = 1, max = 255))]
    #[schemars(extend("x-rare" = true))]
    pub idempotency_key: Option<String>,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FileReservations {
    pub granted: Vec<Granted>,
    /// Paths that others hold. They were not reserved; the rest was.
    pub conflicts: Vec<Conflict>,
}

/// What makes a call the same call.
#[derive(Serialize)]
struct Request<'a> {
    paths: Vec<&'a str>,
    ttl_s: u64,
    exclusive: bool,
    reason: &'a str,
}

impl Operation for FileReservationPaths {
    const SPEC: OperationSpec = OperationSpec {
        name: TOOL,
        route: Route::post("/v1/mail/file_reservations"),
        title: "Reserve files",
        description: "Say which files you are about to edit, before you edit them. Free paths are granted even if others \
                      conflict; a conflict names who holds the path, and it was not reserved. Your own reservations never \
                      conflict. Release them when you are done.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle",
                "paths": ["src/api/*.rs", "docs"], "ttl_seconds": 3600, "reason": "FEAT-123"}"#,
            answer: r#"{"granted": [{"id": 7, "path_pattern": "src/api/*.rs", "exclusive": true, "reason": "FEAT-123",
                "expires_ts": "2026-01-05T13:30:00.000000Z"}], "conflicts": [{"path": "docs", "holders": [{"id": 3,
                "agent": "BlueLake", "path_pattern": "docs/**", "exclusive": true, "reason": "",
                "expires_ts": "2026-01-05T12:45:00.000000Z"}]}]}"#,
        },
        ..super::WRITE
    };
    const REPLAYS: bool = true;
    type Output = FileReservations;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FileReservations>> {
        let paths = paths::read_all(&self.paths)?;
        let (exclusive, reason) = (self.exclusive.unwrap_or(true), self.reason.as_deref().unwrap_or(""));
        check_reason(reason)?;
        check_seconds("ttl_seconds", self.ttl_seconds)?;
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        let agent = &acting.agent;
        let scope =
            keys::Scope { project: project.id, agent: agent.id, tool: TOOL, key: self.idempotency_key.as_deref() };
        let request = Request {
            paths: paths.iter().map(|path| path.text.as_str()).collect(),
            ttl_s: ttl(self.ttl_seconds).as_secs(),
            exclusive,
            reason,
        };
        if let Claim::Replay(answer) = keys::claim(ctx, tx, scope, &request).await? {
            let reserved: Reserved = serde_json::from_str(&answer).map_err(Error::internal)?;
            return Ok(Reply::Replay(answered(reserved)));
        }
        let now = lock(ctx, tx, project.id).await?;
        let wanted = Wanted { paths: &paths, exclusive, ttl_s: self.ttl_seconds, reason };
        let reserved = reserve(ctx, tx, now, &project, agent, &wanted).await?;
        keys::keep(tx, scope, &serde_json::to_string(&reserved).map_err(Error::internal)?).await?;
        touch(ctx, tx, agent).await?;
        Ok(Reply::Done(answered(reserved)))
    }
}

fn answered(reserved: Reserved) -> FileReservations {
    FileReservations { granted: reserved.granted, conflicts: reserved.conflicts }
}
