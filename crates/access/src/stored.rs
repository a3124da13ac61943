//! How much each tenant has stored, for whoever looks at the metrics and for the caps.

use std::collections::{BTreeMap, HashMap};

use metrics::{describe_gauge, gauge};
use waybill_kernel::{Mode, Result, Tenant};
use waybill_store::{Ctx, Stored, Stores, Tx, Value, Work};

use crate::TenantId;

const STORED_BYTES: &str = "waybill_tenant_stored_bytes";
/// Tenants with a series of their own, the oldest first; the others share one.
const SHOWN_MAX: i64 = 512;
const OTHERS: &str = "_other";

/// Reads the sums of all stores, which caps go by until the next reading, and shows them. A store that is away keeps what was
/// read of it before.
pub async fn measure_stored(stores: &Stores) -> Result<()> {
    describe_gauge!(STORED_BYTES, "Bytes that each tenant has stored, in rows and in blobs; the same on every node");
    let mut sums: BTreeMap<(Tenant, Stored), i64> = BTreeMap::new();
    let mut outcome = Ok(());
    for store in stores.all() {
        match store.measure_stored_bytes().await {
            Ok(read) => {
                read.into_iter().for_each(|(tenant, kind, bytes)| *sums.entry((tenant, kind)).or_default() += bytes)
            }
            Err(error) => outcome = Err(error),
        }
    }
    outcome?;
    let shown = stores.home().system().run(FirstTenants).await?;
    let mut totals: BTreeMap<(String, Stored), i64> = BTreeMap::new();
    for ((tenant, kind), bytes) in sums {
        let name = shown.get(&tenant).map_or_else(|| OTHERS.to_owned(), TenantId::to_string);
        *totals.entry((name, kind)).or_default() += bytes;
    }
    for ((tenant, kind), bytes) in totals {
        gauge!(STORED_BYTES, "tenant" => tenant, "kind" => kind.as_str()).set(bytes as f64);
    }
    Ok(())
}

struct FirstTenants;

impl Work for FirstTenants {
    type Output = HashMap<Tenant, TenantId>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const FIRST: &str = "SELECT tenant, tenant_id FROM tenants ORDER BY tenant LIMIT $1";
        let rows = tx.query(FIRST, &[Value::from(SHOWN_MAX)]).await?;
        rows.iter().map(|row| Ok((Tenant(row.int(0)?), TenantId::from_slice(row.bytes(1)?)?))).collect()
    }
}
