//! Who an agent is.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::agents::AgentView;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Whois {
    /// The project's absolute path or slug.
    pub project_key: String,
    pub agent_name: String,
    /// Accepted and without effect: commits are read in the archive.
    #[schemars(extend("deprecated" = true))]
    pub include_recent_commits: Option<bool>,
    /// Accepted and without effect.
    #[schemars(range(min = 1))]
    #[schemars(extend("deprecated" = true))]
    pub commit_limit: Option<i64>,
}

impl Operation for Whois {
    const SPEC: OperationSpec = OperationSpec {
        name: "whois",
        domain: crate::NAME,
        route: Route::get("/v1/mail/agents/{agent_name}"),
        profile: Profile::Core,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Show an agent",
        description: "What an agent says about itself: its program, model and task, and when it was last active.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = AgentView;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<AgentView>> {
        if self.commit_limit.is_some_and(|limit| limit < 1) {
            return Err(Error::invalid("commit_limit must be at least 1."));
        }
        let project = acting::project(tx, &self.project_key).await?;
        Ok(Reply::Done(AgentView::from(&acting::agent(tx, &project, &self.agent_name).await?)))
    }
}
