//! An agent of a project: made, or brought up to date when it is there.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, Json, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::agents::{self, AttachmentsPolicy, Profile, Registered, TASK_CHARS_MAX, WORD_CHARS_MAX};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterAgent {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The program that the agent runs in, as in `claude-code`.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub program: String,
    /// The model that it runs on.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub model: String,
    /// An adjective and a noun, as in GreenCastle. Left out, a new agent gets a name.
    pub name: Option<String>,
    /// What it is working on.
    #[schemars(length(max = TASK_CHARS_MAX))]
    pub task_description: Option<String>,
    #[schemars(extend("x-rare" = true))]
    pub attachments_policy: Option<AttachmentsPolicy>,
    /// Never retired for being inactive.
    #[schemars(extend("x-rare" = true))]
    pub reaper_exempt: Option<bool>,
    /// The agent's token, to go on as an agent that another key has registered.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// Give the agent a new token; the old one means nothing from then on.
    #[serde(default)]
    #[schemars(extend("x-rare" = true))]
    pub new_token: bool,
    /// Accepted and without effect: who an agent is does not depend on where it is shown.
    #[schemars(extend("deprecated" = true))]
    pub pane_id: Option<String>,
    /// Accepted and without effect: a key says who is calling.
    #[schemars(extend("deprecated" = true))]
    pub registration_proof: Option<Json>,
}

impl Operation for RegisterAgent {
    const SPEC: OperationSpec = OperationSpec {
        name: "register_agent",
        domain: crate::NAME,
        route: Route::post("/v1/mail/agents"),
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Register an agent",
        description: "Gives you a name and an inbox in a project. With the name of an agent of yours you go on as that agent; \
                      without a name you get a new one. Use the name in every later call.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "program": "claude-code", "model": "opus",
                "name": "GreenCastle", "task_description": "The login page"}"#,
            answer: r#"{"id": 7, "name": "GreenCastle", "program": "claude-code", "model": "opus",
                "task_description": "The login page", "inception_ts": "2026-01-05T12:30:00.000000Z",
                "last_active_ts": "2026-01-05T12:30:00.000000Z", "project_id": 1, "contact_policy": "auto",
                "attachments_policy": "auto", "registration_token": "9f2c…"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Registered;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Registered>> {
        let profile = Profile {
            program: &self.program,
            model: &self.model,
            task: self.task_description.as_deref(),
            attachments_policy: self.attachments_policy,
            reaper_exempt: self.reaper_exempt,
        };
        let project = acting::project(tx, &self.project_key).await?;
        let (name, token) = (self.name.as_deref(), self.registration_token.as_deref());
        let registered = agents::register(ctx, tx, &project, name, &profile, token, self.new_token).await?;
        Ok(Reply::Done(registered))
    }
}
