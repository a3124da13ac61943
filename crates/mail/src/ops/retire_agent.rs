//! An agent that nobody writes to any more. What it has got stays.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::agents::AgentView;
use crate::archive_rows::{self, ArchiveKind};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetireAgent {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

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
        const UPDATE: &str = "UPDATE mail_agents SET retired_at = $3 WHERE tenant = $1 AND agent = $2";
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let mut agent = acting::locked(tx, &agent).await?;
        if agent.retired_at.is_none() {
            agent.retired_at = Some(ctx.now);
            tx.execute(UPDATE, &[agent.id.into(), agent.retired_at.into()]).await?;
            archive_rows::note(tx, ctx.now, project.id, ArchiveKind::Agent, agent.id).await?;
        }
        Ok(Reply::Done(AgentView::from(&agent)))
    }
}
