//! An agent that nobody writes to any more. What it has got stays.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::agents::{AgentView, Named, retire};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct RetireAgent(Named);

impl Operation for RetireAgent {
    const SPEC: OperationSpec = OperationSpec {
        name: "retire_agent",
        domain: crate::NAME,
        route: Route::post("/v1/mail/agents/{agent_name}/retire"),
        profile: Profile::Full,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Retire an agent",
        description: "Takes an agent out of use: nobody can write to it, it writes to nobody and reserves nothing. Its inbox can \
                      still be read. Safe to repeat.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto", "retired_ts": "2026-01-05T12:40:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = AgentView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AgentView>> {
        retire(ctx, tx, &self.0, true).await.map(Reply::Done)
    }
}
