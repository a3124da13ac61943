//! Start: the project, the agent, the files it is about to work on, and what has come for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, Json, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::agents::{self, AttachmentsPolicy, Profile, Registered, TASK_CHARS_MAX, WORD_CHARS_MAX};
use crate::inbox::MessageView;
use crate::pages::{self, LIMIT_MAX, List, Page};
use crate::projects::{self, ProjectView};
use crate::reservations::{Reserved, Wanted, check_reason, lock, reserve};
use crate::rules::message::page;
use crate::rules::paths;

const INBOX_USUAL: i64 = 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacroStartSession {
    /// The absolute path of the working directory.
    pub human_key: String,
    /// The program that the agent runs in.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub program: String,
    /// The model that it runs on.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub model: String,
    /// What it is working on.
    #[schemars(length(max = TASK_CHARS_MAX))]
    pub task_description: Option<String>,
    /// The name of an agent of yours to go on as, or of a new one. Left out, a new agent gets a name.
    pub agent_name: Option<String>,
    #[schemars(extend("x-rare" = true))]
    pub attachments_policy: Option<AttachmentsPolicy>,
    /// Files to reserve at once.
    #[schemars(length(max = 200))]
    pub file_reservation_paths: Option<Vec<String>>,
    #[schemars(extend("x-rare" = true))]
    pub file_reservation_reason: Option<String>,
    #[schemars(range(min = 0))]
    #[schemars(extend("x-rare" = true))]
    pub file_reservation_ttl_seconds: Option<i64>,
    /// Messages at most: 10 unless given.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-rare" = true))]
    pub inbox_limit: Option<i64>,
    /// Never retired for being inactive.
    #[schemars(extend("x-rare" = true))]
    pub reaper_exempt: Option<bool>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Accepted and without effect: who an agent is does not depend on where it is shown.
    #[schemars(extend("deprecated" = true))]
    pub pane_id: Option<String>,
    /// Accepted and without effect: a key says who is calling.
    #[schemars(extend("deprecated" = true))]
    pub registration_proof: Option<Json>,
}

/// Everything to begin with.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Session {
    pub project: ProjectView,
    pub agent: Registered,
    /// Absent where no files were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_reservations: Option<Reserved>,
    /// The newest first; none of them is marked as read.
    pub inbox: Vec<MessageView>,
    /// There are more: a page ends at its limit, or at 2 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inbox_has_more: bool,
}

impl Operation for MacroStartSession {
    const SPEC: OperationSpec = OperationSpec {
        name: "macro_start_session",
        domain: crate::NAME,
        route: Route::post("/v1/mail/sessions"),
        profile: waybill_kernel::Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Start a session",
        description: "One call to begin with: makes sure that the project exists, registers your agent, reserves files if you \
                      name any, and gives the newest messages.",
        example: Example {
            arguments: r#"{"human_key": "/data/projects/backend", "program": "claude-code", "model": "opus",
                "agent_name": "GreenCastle", "task_description": "The login page"}"#,
            answer: r#"{"project": {"id": 1, "slug": "data-projects-backend", "human_key": "/data/projects/backend",
                "created_at": "2026-01-05T12:30:00.000000Z"}, "agent": {"id": 7, "name": "GreenCastle",
                "program": "claude-code", "model": "opus", "task_description": "The login page",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto"}, "inbox": []}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Session;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Session>> {
        let limit = page(self.inbox_limit, INBOX_USUAL, LIMIT_MAX)?;
        let reason = self.file_reservation_reason.as_deref().unwrap_or_default();
        check_reason(reason)?;
        super::check_ttl(self.file_reservation_ttl_seconds)?;
        let wanted = self.file_reservation_paths.as_deref().filter(|paths| !paths.is_empty());
        let paths = wanted.map(paths::read_all).transpose()?;
        let project = projects::ensure(ctx, tx, &self.human_key).await?;
        let profile = Profile {
            program: &self.program,
            model: &self.model,
            task: self.task_description.as_deref(),
            attachments_policy: self.attachments_policy,
            reaper_exempt: self.reaper_exempt,
        };
        let (name, token) = (self.agent_name.as_deref(), self.registration_token.as_deref());
        let registered = agents::register(ctx, tx, &project, name, &profile, token, false).await?;
        let agent = acting::agent(tx, &project, &registered.agent.name).await?;
        let file_reservations = match &paths {
            Some(paths) => {
                let now = lock(ctx, tx, project.id).await?;
                let wanted = Wanted { paths, exclusive: true, ttl_s: self.file_reservation_ttl_seconds, reason };
                Some(reserve(ctx, tx, now, &project, &agent, &wanted).await?)
            }
            None => None,
        };
        let page = Page { list: List::All, after: None, before: None, limit, bodies: false };
        let shown = pages::read(tx, &project, &agent, page).await?;
        Ok(Reply::Done(Session {
            project: project.into(),
            agent: registered,
            file_reservations,
            inbox: shown.messages,
            inbox_has_more: shown.has_more,
        }))
    }
}
