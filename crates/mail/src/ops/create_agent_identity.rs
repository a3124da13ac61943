//! A new agent, always: a name that is taken is an error.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, Json, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::agents::{self, AttachmentsPolicy, Profile, Registered, TASK_CHARS_MAX, WORD_CHARS_MAX};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAgentIdentity {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// The program that the agent runs in.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub program: String,
    /// The model that it runs on.
    #[schemars(length(max = WORD_CHARS_MAX))]
    pub model: String,
    /// The name it shall have, which must be free. Left out, one is made.
    pub name_hint: Option<String>,
    /// What it is working on.
    #[schemars(length(max = TASK_CHARS_MAX))]
    pub task_description: Option<String>,
    #[schemars(extend("x-rare" = true))]
    pub attachments_policy: Option<AttachmentsPolicy>,
    /// Never retired for being inactive.
    #[schemars(extend("x-rare" = true))]
    pub reaper_exempt: Option<bool>,
    /// Accepted and without effect: who an agent is does not depend on where it is shown.
    #[schemars(extend("deprecated" = true))]
    pub pane_id: Option<String>,
    /// Accepted and without effect: a key says who is calling.
    #[schemars(extend("deprecated" = true))]
    pub registration_proof: Option<Json>,
}

impl Operation for CreateAgentIdentity {
    const SPEC: OperationSpec = OperationSpec {
        name: "create_agent_identity",
        domain: crate::NAME,
        route: Route::post("/v1/mail/agent_identities"),
        profile: waybill_kernel::Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        status: 201,
        title: "Create a new agent",
        description: "As register_agent, but always a new agent: a name that is taken is refused and nothing is changed.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "program": "codex", "model": "gpt",
                "name_hint": "BlueLake"}"#,
            answer: r#"{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto", "registration_token": "41ab…"}"#,
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
        Ok(Reply::Done(agents::create(ctx, tx, &project, self.name_hint.as_deref(), &profile).await?))
    }
}
