//! Which tenants of the database an archive of ours is of.

use std::collections::HashMap;
use std::path::Path;

use waybill_archive::layout::Refusals;
use waybill_archive::names;
use waybill_kernel::{Mode, Result, Tenant};
use waybill_store::{Ctx, Store, Tx, Work};

use crate::Source;

const PAGE: i64 = 1_000;

/// The folders of tenants below the root, each with its tenant if the database has it; and what is no such folder. Names are compared
/// as folders have them, where a long one is cut and cannot be read.
pub async fn tenants(store: &Store, root: &Path) -> Result<(Vec<(String, Option<Tenant>)>, Refusals)> {
    let (folders, refused) = Source::tenants(root)?;
    let (mut known, mut after) = (HashMap::new(), i64::MIN);
    loop {
        let page = store.system().run(Known { after }).await?;
        let Some((Tenant(last), _)) = page.last() else { break };
        after = *last;
        known.extend(page.into_iter().map(|(tenant, name)| (names::part(&name), tenant)));
    }
    let found = |folder: String| {
        let tenant = known.get(&folder).copied();
        (folder, tenant)
    };
    Ok((folders.into_iter().map(found).collect(), refused))
}

struct Known {
    after: i64,
}

impl Work for Known {
    type Output = Vec<(Tenant, String)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const KNOWN: &str = "SELECT tenant, name FROM tenants WHERE tenant > $1 ORDER BY tenant LIMIT $2";
        let rows = tx.query(KNOWN, &[self.after.into(), PAGE.into()]).await?;
        rows.iter().map(|row| Ok((Tenant(row.int(0)?), row.text(1)?.to_owned()))).collect()
    }
}
