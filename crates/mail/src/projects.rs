//! Making projects, and how they are shown.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Code, Error, Result, Tenant, Time};
use waybill_store::{Ctx, Topic, Tx, Value};

use crate::Settings;
use crate::acting::{self, Project};
use crate::archive_rows::{self, ArchiveKind};
use crate::rules::projects;

/// A project.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ProjectView {
    pub id: i64,
    /// What it is called in paths.
    pub slug: String,
    /// Its absolute path, which names it in every call.
    pub human_key: String,
    pub created_at: Time,
}

impl From<Project> for ProjectView {
    fn from(project: Project) -> Self {
        Self { id: project.id, slug: project.slug, human_key: project.human_key, created_at: project.created_at }
    }
}

/// The project of this path, which is made if there is none. Of many that ask together one makes it.
pub(crate) async fn ensure(ctx: &Ctx<'_>, tx: &mut Tx<'_>, human_key: &str) -> Result<Project> {
    let settings: &Settings = ctx.settings();
    let key = projects::check(human_key, settings.allow_ephemeral_projects)?;
    if let Some(project) = acting::find_project(tx, &key).await? {
        return Ok(project);
    }
    one_at_a_time(tx, ctx.caller.tenant, b"projects").await?;
    // Another path may have the slug already: then this one's is marked.
    for slug in [projects::slug(&key), projects::marked_slug(&key)] {
        insert(ctx, tx, &slug, &key, settings.projects_max).await?;
        if let Some(project) = acting::find_project(tx, &key).await? {
            return Ok(project);
        }
    }
    let max = settings.projects_max;
    let message = format!("The tenant has {max} projects, which is as many as it may have.");
    Err(Error::new(Code::TooManyProjects, message).with("limit", max))
}

async fn insert(ctx: &Ctx<'_>, tx: &mut Tx<'_>, slug: &str, key: &str, max: i64) -> Result<()> {
    const INSERT: &str = "INSERT INTO mail_projects (tenant, slug, human_key, digest, created_at) \
        SELECT $1, $2, $3, $4, $5 WHERE (SELECT count(*) FROM mail_projects WHERE tenant = $1) < $6 \
        ON CONFLICT DO NOTHING RETURNING project";
    let digest = projects::digest(key);
    let params = [slug.into(), key.into(), Value::from(&digest[..]), ctx.now.into(), max.into()];
    let Some(row) = tx.query_opt(INSERT, &params).await? else { return Ok(()) };
    archive_rows::note(tx, ctx.now, row.int(0)?, ArchiveKind::Project, row.int(0)?).await
}

/// Two who count at the same time would both find room for the last one.
pub(crate) async fn one_at_a_time(tx: &mut Tx<'_>, tenant: Tenant, what: &[u8]) -> Result<()> {
    tx.in_turn(Topic::new("mail.count", tenant, what)).await
}
