//! One project, and how many agents it has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::acting;
use crate::projects::ProjectView;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetProject {
    /// The project's slug, or its absolute path.
    pub project_key: String,
}

/// A project.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectDetails {
    #[serde(flatten)]
    pub project: ProjectView,
    /// Retired ones included.
    pub agents: i64,
}

impl Operation for GetProject {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_project",
        domain: crate::NAME,
        route: Route::get("/v1/mail/projects/{project_key}"),
        resources: &[
            Resource {
                renamed: &[("slug", "project_key")],
                ..Resource::at("resource://project/{slug}", "project", "One project.")
            },
            Resource {
                renamed: &[("project", "project_key")],
                ..Resource::at("resource://identity/{project}", "identity", "What a path or slug is as a project.")
            },
        ],
        tool: false,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Show a project",
        description: "A project by its slug or its path.",
        example: Example {
            arguments: r#"{"project_key": "data-projects-backend"}"#,
            answer: r#"{"id": 1, "slug": "data-projects-backend", "human_key": "/data/projects/backend",
                "created_at": "2026-01-05T12:30:00.000000Z", "agents": 3}"#,
        },
        ..OperationSpec::READ
    };
    type Output = ProjectDetails;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProjectDetails>> {
        const COUNT: &str = "SELECT count(*) FROM mail_agents WHERE tenant = $1 AND project = $2";
        let project = acting::project(tx, &self.project_key).await?;
        let row = tx.query_opt(COUNT, &[project.id.into()]).await?;
        let agents = row.ok_or_else(|| Error::internal("a count has no row"))?.int(0)?;
        Ok(Reply::Done(ProjectDetails { project: project.into(), agents }))
    }
}
