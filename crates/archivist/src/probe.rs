//! Looks whether the archive has what it should, without reading all of it: at the start for the newest messages, and now and then for
//! repositories that somebody has removed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use waybill_archive::layout::canonical_path;
use waybill_archive::repo::ProjectKey;
use waybill_kernel::{Mode, Result, Tenant};
use waybill_mail::archive_rows::NO_PROJECT;
use waybill_store::{Ctx, Tx, Work};

use crate::read;
use crate::rows::Whose;
use crate::{Owner, walk};

/// Projects looked at in one transaction.
const PROJECTS: i64 = 500;

/// Which archive a project has. None for one that is gone.
pub(crate) struct FindOwner(pub Whose);

impl Work for FindOwner {
    type Output = Option<Owner>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Owner>> {
        read::owner(tx, self.0.0, self.0.1).await
    }
}

/// A message that should be in the archive.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub whose: Whose,
    pub key: ProjectKey,
    pub path: String,
}

/// The newest messages of all projects, those excepted that wait to be written.
pub(crate) struct Newest(pub i64);

impl Work for Newest {
    type Output = Vec<Expected>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Expected>> {
        const NEWEST: &str = "SELECT tenant, project, message, created_at, subject FROM mail_messages \
                              ORDER BY message DESC LIMIT $1";
        const WAITING: &str =
            "SELECT ref FROM mail_archive_rows WHERE tenant = $1 AND project = $2 AND kind = 'message'";
        /// Nothing of a project that is gone; else what waits to be written.
        type Known = Option<(Owner, HashSet<i64>)>;
        let mut owners: BTreeMap<(i64, i64), Known> = BTreeMap::new();
        let mut expected = Vec::new();
        for row in tx.query(NEWEST, &[self.0.into()]).await? {
            let (tenant, project) = (row.int(0)?, row.int(1)?);
            if let Entry::Vacant(unknown) = owners.entry((tenant, project)) {
                let owner = read::owner(tx, Tenant(tenant), project).await?;
                let waiting = tx.query(WAITING, &[tenant.into(), project.into()]).await?;
                let waiting = waiting.iter().map(|row| row.int(0)).collect::<Result<HashSet<i64>>>()?;
                unknown.insert(owner.map(|owner| (owner, waiting)));
            }
            let Some(Some((owner, waiting))) = owners.get(&(tenant, project)) else { continue };
            if waiting.contains(&row.int(2)?) {
                continue;
            }
            let Ok(path) = canonical_path(row.int(2)?, row.time(3)?, row.text(4)?) else { continue };
            expected.push(Expected {
                whose: (Tenant(tenant), project),
                key: owner.key(),
                path: path.as_str().to_owned(),
            });
        }
        Ok(expected)
    }
}

/// Those without a file. Nothing is opened or made.
pub(crate) fn missing(root: &Path, expected: Vec<Expected>) -> Vec<Expected> {
    let is_missing = |one: &Expected| !one.key.below(root).join("files").join(&one.path).is_file();
    expected.into_iter().filter(is_missing).collect()
}

/// Archives that there should be, some at a time: projects after the given one, and tenants with products.
pub(crate) struct Projects(pub Whose);

impl Work for Projects {
    type Output = Vec<Owner>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Owner>> {
        const NEXT: &str = "SELECT tenant, project FROM mail_projects WHERE project > $1 ORDER BY project LIMIT $2";
        let mut owners = Vec::new();
        for row in tx.query(NEXT, &[self.0.1.into(), PROJECTS.into()]).await? {
            owners.extend(read::owner(tx, Tenant(row.int(0)?), row.int(1)?).await?);
        }
        Ok(owners)
    }
}

/// Tenants that have something of their own to archive.
pub(crate) struct Tenants;

impl Work for Tenants {
    type Output = Vec<Owner>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Owner>> {
        const NEXT: &str = "SELECT tenant FROM mail_products WHERE tenant > $1 ORDER BY tenant LIMIT 1";
        let (mut owners, mut after) = (Vec::new(), i64::MIN);
        while let Some(row) = tx.query_opt(NEXT, &[after.into()]).await? {
            after = row.int(0)?;
            owners.extend(read::owner(tx, Tenant(after), NO_PROJECT).await?);
        }
        Ok(owners)
    }
}

impl Owner {
    pub(crate) fn whose(&self) -> Whose {
        (self.tenant, self.project)
    }

    pub(crate) fn walk(&self, bytes_max: usize) -> walk::Walk {
        walk::Walk::new(self.whose(), bytes_max)
    }
}
