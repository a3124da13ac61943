//! The numbers of history and of events, one row per mesh and kind.

use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::MeshId;
use waybill_store::{Tx, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    History,
    Events,
}

impl Counter {
    pub(crate) const ALL: [Counter; 2] = [Counter::History, Counter::Events];

    const fn name(self) -> &'static str {
        match self {
            Counter::History => "history",
            Counter::Events => "events",
        }
    }
}

/// For a new mesh.
pub(crate) async fn begin(tx: &mut Tx<'_>, mesh: MeshId) -> Result<()> {
    const INSERT: &str = "INSERT INTO mesh_counters (tenant, mesh_id, kind, last) VALUES ($1, $2, $3, 0)";
    for counter in Counter::ALL {
        tx.execute(INSERT, &[Value::from(mesh.as_bytes()), Value::from(counter.name())]).await?;
    }
    Ok(())
}

/// Takes so many numbers and answers with the last of them. On PostgreSQL the row stays locked until the commit: whoever takes the
/// next number commits later.
pub(crate) async fn take(tx: &mut Tx<'_>, mesh: MeshId, counter: Counter, numbers: usize) -> Result<i64> {
    const TAKE: &str = "UPDATE mesh_counters SET last = last + $4 WHERE tenant = $1 AND mesh_id = $2 AND kind = $3 \
                        RETURNING last";
    let numbers = i64::try_from(numbers).map_err(Error::internal)?;
    let params = [Value::from(mesh.as_bytes()), Value::from(counter.name()), Value::from(numbers)];
    let row = tx.query_opt(TAKE, &params).await?;
    row.ok_or_else(|| Error::not_found("mesh"))?.int(0)
}

/// The last number that was given out and committed.
pub(crate) async fn last(tx: &mut Tx<'_>, mesh: MeshId, counter: Counter) -> Result<i64> {
    const LAST: &str = "SELECT last FROM mesh_counters WHERE tenant = $1 AND mesh_id = $2 AND kind = $3";
    let row = tx.query_opt(LAST, &[Value::from(mesh.as_bytes()), Value::from(counter.name())]).await?;
    row.ok_or_else(|| Error::not_found("mesh"))?.int(0)
}
