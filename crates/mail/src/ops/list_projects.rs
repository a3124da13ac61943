//! The projects of the tenant, by their slugs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Resource, Result, Role, Route, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::acting::{Project, project_columns};
use crate::projects::ProjectView;
use crate::rules::message::page;

const LIMIT_USUAL: i64 = 50;
const LIMIT_MAX: i64 = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListProjects {
    /// Projects per page: 50 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// The tenant's projects, by slug.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Projects {
    pub projects: Vec<ProjectView>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for ListProjects {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_projects",
        domain: crate::NAME,
        route: Route::get("/v1/mail/projects"),
        resources: &[
            Resource::at("resource://projects{?limit,cursor}", "projects", "The tenant's projects."),
            Resource::at("resource://tooling/projects{?limit,cursor}", "tooling-projects", "The same as projects."),
        ],
        tool: false,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "List projects",
        description: "The projects of your tenant, by slug.",
        example: Example {
            arguments: r#"{"limit": 50}"#,
            answer: r#"{"projects": [{"id": 1, "slug": "data-projects-backend", "human_key": "/data/projects/backend",
                "created_at": "2026-01-05T12:30:00.000000Z"}]}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Projects;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Projects>> {
        const SELECT: &str = concat!(
            "SELECT ",
            project_columns!(),
            " FROM mail_projects p WHERE p.tenant = $1 AND p.slug > $2 ORDER BY p.slug LIMIT $3"
        );
        let size = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let scope: [&[u8]; 2] = [b"list_projects", ctx.caller.tenant_id.as_bytes()];
        let after = match &self.cursor {
            Some(text) => String::from_utf8(cursor::decode(&scope, text)?).map_err(|_| cursor::refused())?,
            None => String::new(),
        };
        // One more than is shown tells whether there is another page.
        let rows = tx.query(SELECT, &[Value::from(&after), Value::from(size + 1)]).await?;
        let mut projects =
            rows.iter().map(|row| Project::read(row).map(ProjectView::from)).collect::<Result<Vec<_>>>()?;
        let more = projects.len() as i64 > size;
        projects.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        let last = projects.last().filter(|_| more);
        let next_cursor = last.map(|project| cursor::encode(&scope, project.slug.as_bytes()));
        Ok(Reply::Done(Projects { projects, next_cursor }))
    }
}
