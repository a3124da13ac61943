//! Projects of an archive.

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Tx, Value, Work};

use super::{Put, check_number, numbered, numbers};
use crate::Settings;
use crate::acting::{self, Project};
use crate::archive_rows::{self, ArchiveKind};
use crate::projects::one_at_a_time;
use crate::rules::projects;

#[derive(Clone, Debug)]
pub struct ProjectRecord {
    pub number: Option<i64>,
    pub human_key: String,
    /// Taken where it is one that the path gives.
    pub slug: String,
    pub created_at: Time,
}

pub struct PutProject {
    pub tenant: Tenant,
    pub record: ProjectRecord,
    /// The highest number that is to come.
    pub coming: i64,
    /// Have our own archive follow.
    pub archived: bool,
}

impl Work for PutProject {
    type Output = (Put, Option<Project>);

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const HIGHEST: &str = "SELECT max(project) FROM mail_projects";
        let free = numbers::free(tx, HIGHEST, self.coming).await?;
        let tx = &mut *tx.as_tenant(self.tenant);
        let record = &self.record;
        // Ephemeral or not: where it was is how it is.
        let key = match projects::check(&record.human_key, true) {
            Ok(key) => key,
            Err(error) => return Ok((Put::Refused(error.message().to_owned()), None)),
        };
        if let Some(project) = acting::find_project(tx, &key).await? {
            return Ok((Put::Known, Some(project)));
        }
        if let Some(Err(why)) = record.number.map(check_number) {
            return Ok((Put::Refused(why), None));
        }
        one_at_a_time(tx, self.tenant, b"projects").await?;
        let max = ctx.settings::<Settings>().projects_max;
        if count(tx).await? >= max {
            return Ok((Put::Refused(format!("the tenant has {max} projects, as many as it may have")), None));
        }
        let numbers = if record.number.is_some() { vec![record.number, free] } else { vec![free] };
        for number in numbers {
            for slug in self.slugs(&key) {
                if insert(tx, number, &slug, &key, record.created_at).await? == 0 {
                    continue;
                }
                let Some(project) = acting::find_project(tx, &key).await? else { continue };
                if self.archived {
                    archive_rows::note(tx, ctx.now, project.id, ArchiveKind::Project, project.id).await?;
                }
                let own = record.number.is_none() || number == record.number;
                let put = if own { Put::Written } else { Put::Renumbered };
                return Ok((put, Some(project)));
            }
        }
        Ok((Put::Refused("its slugs are taken".to_owned()), None))
    }
}

impl PutProject {
    /// Those that are woken as the path is; the one it had goes first.
    fn slugs(&self, key: &str) -> Vec<String> {
        let mut slugs = vec![projects::slug(key), projects::marked_slug(key)];
        if slugs[1] == self.record.slug {
            slugs.swap(0, 1);
        }
        slugs
    }
}

async fn count(tx: &mut Tx<'_>) -> Result<i64> {
    let row = tx.query_opt("SELECT count(*) FROM mail_projects WHERE tenant = $1", &[]).await?;
    row.map_or(Ok(0), |row| row.int(0))
}

async fn insert(tx: &mut Tx<'_>, number: Option<i64>, slug: &str, key: &str, created_at: Time) -> Result<u64> {
    const NUMBERED: waybill_store::Sql =
        numbered!("mail_projects", "tenant, slug, human_key, digest, created_at, project", "$1, $2, $3, $4, $5, $6");
    const DRAWN: &str = "INSERT INTO mail_projects (tenant, slug, human_key, digest, created_at) \
                         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    let digest = projects::digest(key);
    let mut params = vec![slug.into(), key.into(), Value::from(&digest[..]), created_at.into()];
    match number {
        None => tx.execute(DRAWN, &params).await,
        Some(number) => {
            params.push(number.into());
            let sql = tx.text(NUMBERED);
            tx.execute(sql, &params).await
        }
    }
}

/// The tenant's projects that are there: messages may name one that the archive does not have.
pub struct KnownProjects(pub Tenant);

impl Work for KnownProjects {
    type Output = Vec<Project>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Project>> {
        const ALL: &str = concat!("SELECT ", acting::project_columns!(), " FROM mail_projects p WHERE p.tenant = $1");
        let tx = &mut *tx.as_tenant(self.0);
        tx.query(ALL, &[]).await?.iter().map(Project::read).collect()
    }
}
