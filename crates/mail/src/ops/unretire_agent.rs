//! An agent that was retired, in use again.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::agents::{AgentView, Named, retire};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct UnretireAgent(Named);

impl Operation for UnretireAgent {
    const SPEC: OperationSpec = OperationSpec {
        name: "unretire_agent",
        domain: crate::NAME,
        route: Route::post("/v1/mail/agents/{agent_name}/unretire"),
        profile: Profile::Full,
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Bring an agent back",
        description: "Brings a retired agent back into use. Safe to repeat.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = AgentView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AgentView>> {
        retire(ctx, tx, &self.0, false).await.map(Reply::Done)
    }
}
