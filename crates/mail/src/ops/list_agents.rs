//! The agents of a project, those first that were active last.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Resource, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting::{self, Agent, agent_columns};
use crate::agents::AgentView;
use crate::rules::message::page;

const LIMIT_USUAL: i64 = 50;
/// Hard: a project with a thousand agents answered with 199 KB once.
const LIMIT_MAX: i64 = 250;
const DAYS_MAX: i64 = 36_500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAgents {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Agents at most: 50 unless given, at most 250.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// Only those that were active within so many days.
    #[schemars(range(min = 1, max = DAYS_MAX))]
    pub active_within_days: Option<i64>,
    /// Retired ones too.
    #[serde(default)]
    pub include_retired: bool,
}

/// Agents of a project.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Agents {
    pub agents: Vec<AgentView>,
    /// There are more than were shown.
    pub has_more: bool,
}

impl Operation for ListAgents {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_agents",
        domain: crate::NAME,
        route: Route::get("/v1/mail/agents"),
        profile: Profile::Full,
        resources: &[Resource {
            renamed: &[("project", "project_key")],
            ..Resource::at(
                "resource://agents/{project}{?limit,active_within_days}",
                "agents",
                "The agents of a project.",
            )
        }],
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "List agents",
        description: "The agents of a project, those first that were active last.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "limit": 50}"#,
            answer: r#"{"agents": [{"id": 8, "name": "BlueLake", "program": "codex", "model": "gpt", "task_description": "",
                "inception_ts": "2026-01-05T12:30:00.000000Z", "last_active_ts": "2026-01-05T12:30:00.000000Z",
                "project_id": 1, "contact_policy": "auto", "attachments_policy": "auto"}], "has_more": false}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Agents;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Agents>> {
        const SELECT: &str = concat!(
            "SELECT ",
            agent_columns!(),
            " FROM mail_agents a WHERE a.tenant = $1 AND a.project = $2 AND a.active_at > $3 \
             AND (a.retired_at IS NULL OR $4 = 1) ORDER BY a.active_at DESC, a.agent DESC LIMIT $5"
        );
        let size = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let since = self.since(ctx.now)?;
        let project = acting::project(tx, &self.project_key).await?;
        let params = [project.id.into(), since.into(), self.include_retired.into(), (size + 1).into()];
        let rows = tx.query(SELECT, &params).await?;
        let read = |row| Agent::read(row).map(|agent| AgentView::from(&agent));
        let mut agents = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        let has_more = agents.len() as i64 > size;
        agents.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(Reply::Done(Agents { agents, has_more }))
    }
}

impl ListAgents {
    fn since(&self, now: Time) -> Result<Time> {
        const DAY: Duration = Duration::from_secs(86_400);
        let Some(days) = self.active_within_days else { return Ok(Time::from_micros(i64::MIN)) };
        if !(1..=DAYS_MAX).contains(&days) {
            return Err(Error::invalid(format!("active_within_days must be between 1 and {DAYS_MAX}.")));
        }
        Ok(Time::from_micros(now.micros().saturating_sub(days * DAY.as_micros() as i64)))
    }
}
