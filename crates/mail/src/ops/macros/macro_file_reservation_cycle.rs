//! Reserve, and release again what this very call was given: not what the agent held before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::ops::files::chosen::Chosen;
use crate::ops::files::release_file_reservations::{Released, release};
use crate::reservations::{Reserved, Wanted, check_reason, lock, reserve};
use crate::rules::paths;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacroFileReservationCycle {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// Paths or globs below the project's root: at most 200.
    #[schemars(length(min = 1, max = 200))]
    pub paths: Vec<String>,
    /// Seconds until they are free again: 3600 unless given.
    #[schemars(range(min = 0))]
    pub ttl_seconds: Option<i64>,
    /// True unless given.
    pub exclusive: Option<bool>,
    #[schemars(length(max = 1000))]
    pub reason: Option<String>,
    /// Release at once what this call was given: to see whether the files are free.
    #[serde(default)]
    pub auto_release: bool,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// What was reserved, and what was released again.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Cycle {
    pub file_reservations: Reserved,
    /// Absent unless `auto_release` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
}

impl Operation for MacroFileReservationCycle {
    const SPEC: OperationSpec = OperationSpec {
        name: "macro_file_reservation_cycle",
        domain: crate::NAME,
        route: Route::post("/v1/mail/file_reservations/cycle"),
        profile: Profile::Full,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Reserve files, and release them",
        description: "As file_reservation_paths; with auto_release what this call was given is released again, and nothing else.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "paths": ["src/api"],
                "auto_release": true}"#,
            answer: r#"{"file_reservations": {"granted": [{"id": 7, "path_pattern": "src/api", "exclusive": true,
                "reason": "", "expires_ts": "2026-01-05T13:30:00.000000Z"}], "conflicts": []},
                "released": {"released": 1, "released_at": "2026-01-05T12:30:00.000000Z"}}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Cycle;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Cycle>> {
        let paths = paths::read_all(&self.paths)?;
        let reason = self.reason.as_deref().unwrap_or_default();
        check_reason(reason)?;
        super::check_ttl(self.ttl_seconds)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let now = lock(ctx, tx, project.id).await?;
        let exclusive = self.exclusive.unwrap_or(true);
        let wanted = Wanted { paths: &paths, exclusive, ttl_s: self.ttl_seconds, reason };
        let file_reservations = reserve(ctx, tx, now, &project, &agent, &wanted).await?;
        let released = match self.auto_release {
            true => {
                let chosen = Chosen::ids(file_reservations.granted.iter().map(|granted| granted.id));
                let (released, released_at) = release(ctx, tx, &project, &agent, &chosen).await?;
                Some(Released { released, released_at })
            }
            false => None,
        };
        acting::touch(ctx, tx, &agent).await?;
        Ok(Reply::Done(Cycle { file_reservations, released }))
    }
}
