//! A project by its path, made if there is none. Safe to call at every start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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
    /// How a path becomes a project: by itself, `dir`, also where git-remote, git-toplevel or git-common-dir is asked for.
    #[schemars(extend("x-rare" = true))]
    pub identity_mode: Option<String>,
}

/// How clients of other servers ask for a project to be told. All but the first need a working tree, which a server does
/// not have.
const IDENTITY_MODES: [&str; 4] = [DIR, "git-remote", "git-toplevel", "git-common-dir"];
const DIR: &str = "dir";

/// The project, and by what it is one.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ensured {
    #[serde(flatten)]
    pub project: ProjectView,
    /// How the path became a project: always `dir`, by itself.
    pub identity_mode: &'static str,
    /// The same, as the existing servers call it.
    pub identity_mode_used: &'static str,
    /// The path as it is stored: whoever gives it in another spelling means this project.
    pub canonical_path: String,
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
                "created_at": "2026-01-05T12:30:00.000000Z", "identity_mode": "dir", "identity_mode_used": "dir",
                "canonical_path": "/data/projects/backend"}"#,
        },
        ..OperationSpec::WRITE
    };
    type Output = Ensured;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Ensured>> {
        if let Some(mode) = &self.identity_mode
            && !IDENTITY_MODES.contains(&mode.as_str())
        {
            return Err(Error::invalid(format!("identity_mode must be one of {}.", IDENTITY_MODES.join(", "))));
        }
        let project: ProjectView = projects::ensure(ctx, tx, &self.human_key).await?.into();
        let canonical_path = project.human_key.clone();
        Ok(Reply::Done(Ensured { project, identity_mode: DIR, identity_mode_used: DIR, canonical_path }))
    }
}
