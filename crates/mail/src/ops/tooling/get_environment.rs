//! How mail is set on this server. No key, no path of the operator and no secret is among it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Resource, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Sql, Tx};

use crate::Settings;
use crate::archive_health::ArchiveHealth;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetEnvironment {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Environment {
    /// Of the server.
    pub version: &'static str,
    /// `sqlite` or `postgres`.
    pub database: &'static str,
    /// Whether this server writes the archive.
    pub writes_archive: bool,
    /// Whether it may touch files of projects.
    pub touches_project_files: bool,
    pub allow_ephemeral_projects: bool,
    pub convert_images: bool,
    /// Settings that are numbers, as `[mail]` calls them.
    pub limits: serde_json::Map<String, serde_json::Value>,
}

impl Operation for GetEnvironment {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_environment",
        route: Route::get("/v1/mail/config/environment"),
        resources: &[Resource::at(
            "resource://config/environment",
            "config-environment",
            "How mail is set on this server, without anything secret.",
        )],
        tool: false,
        title: "Show how mail is set",
        description: "How mail is set on this server: its version, its database, and every bound. Nothing secret is among it.",
        example: Example {
            arguments: "{}",
            answer: r#"{"version": "0.1.0", "database": "sqlite", "writes_archive": true, "touches_project_files": false,
                "allow_ephemeral_projects": false, "convert_images": true, "limits": {"recipients_max": 100}}"#,
        },
        ..super::READ
    };
    type Output = Environment;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Environment>> {
        const DATABASE: Sql = Sql { sqlite: "sqlite", postgres: "postgres" };
        let settings = ctx.settings::<Settings>();
        let limits = settings.ranges().into_iter().map(|setting| (setting.name.to_owned(), setting.value.into()));
        Ok(Reply::Done(Environment {
            version: env!("CARGO_PKG_VERSION"),
            database: tx.text(DATABASE),
            writes_archive: ctx.settings_if_given::<ArchiveHealth>().is_some(),
            touches_project_files: !settings.project_roots.is_empty(),
            allow_ephemeral_projects: settings.allow_ephemeral_projects,
            convert_images: settings.convert_images,
            limits: limits.collect(),
        }))
    }
}
