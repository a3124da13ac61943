//! From rows to what is filed. Each function reads what it is asked for as the database has it now; all of them act for one tenant.

mod agents;
mod messages;
mod others;

pub(crate) use agents::{agent, seen, seen_buckets};
pub(crate) use messages::{Messages, size_of};
pub(crate) use others::{agent_reservations, agent_slots, product, reservation};
use waybill_archive::layout::{ProjectFile, TENANT, TenantRef};
use waybill_kernel::{Result, Tenant, Time};
use waybill_mail::archive_rows::NO_PROJECT;
use waybill_store::Tx;

use crate::{Item, Owner};

/// None for a project that is gone.
pub(crate) async fn owner(tx: &mut Tx<'_>, tenant: Tenant, project: i64) -> Result<Option<Owner>> {
    const TENANT_ROW: &str = "SELECT name, created_at FROM tenants WHERE tenant = $1";
    const PROJECT: &str = "SELECT slug, human_key, created_at FROM mail_projects WHERE tenant = $1 AND project = $2";
    let mut tx = tx.as_tenant(tenant);
    let Some(row) = tx.query_opt(TENANT_ROW, &[]).await? else { return Ok(None) };
    let own = Owner {
        tenant,
        tenant_name: row.text(0)?.to_owned(),
        project: NO_PROJECT,
        slug: TENANT.to_owned(),
        human_key: String::new(),
        created_at: row.time(1)?,
    };
    if project == NO_PROJECT {
        return Ok(Some(own));
    }
    let Some(row) = tx.query_opt(PROJECT, &[project.into()]).await? else { return Ok(None) };
    let (slug, human_key) = (row.text(0)?.to_owned(), row.text(1)?.to_owned());
    Ok(Some(Owner { project, slug, human_key, created_at: row.time(2)?, ..own }))
}

/// What a project is called, as its file says.
pub(crate) fn project(owner: &Owner) -> Item {
    let tenant = TenantRef { name: owner.tenant_name.clone() };
    Item::Project(ProjectFile {
        id: owner.project,
        slug: owner.slug.clone(),
        human_key: owner.human_key.clone(),
        created_ts: owner.created_at,
        tenant: Some(tenant),
    })
}

/// A little before a look: a transaction that is open during it has an older time.
pub(crate) fn looked_until(now: Time) -> Time {
    const OPEN_US: i64 = 300_000_000;
    Time::from_micros(now.micros().saturating_sub(OPEN_US).max(0))
}
