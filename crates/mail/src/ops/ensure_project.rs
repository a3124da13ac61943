//! A project by its path, made if there is none. Safe to call at every start.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::projects::{self, ProjectView};
use crate::rules::projects::HUMAN_KEY_BYTES_MAX;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnsureProject {
    /// The absolute path of the working directory: agents that give the same path share the project.
    #[schemars(length(min = 1, max = HUMAN_KEY_BYTES_MAX))]
    pub human_key: String,
    /// How a path becomes a project: `dir`, the only way this server has.
    #[schemars(extend("x-rare" = true))]
    pub identity_mode: Option<String>,
}

impl Operation for EnsureProject {
    const SPEC: OperationSpec = OperationSpec {
        name: "ensure_project",
        domain: crate::NAME,
        route: Route::post("/v1/mail/projects"),
        repeatable: true,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailWrite],
        title: "Make sure that a project exists",
        description: "Makes the project of a working directory, or finds it. Everything else names the project by this path or \
                      by the slug in the answer.",
        example: Example {
            arguments: r#"{"human_key": "/data/projects/backend"}"#,
            answer: r#"{"id": 1, "slug": "data-projects-backend", "human_key": "/data/projects/backend",
                "created_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = ProjectView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ProjectView>> {
        if self.identity_mode.as_deref().is_some_and(|mode| mode != "dir") {
            return Err(Error::invalid("identity_mode must be dir: the path names the project."));
        }
        Ok(Reply::Done(projects::ensure(ctx, tx, &self.human_key).await?.into()))
    }
}
