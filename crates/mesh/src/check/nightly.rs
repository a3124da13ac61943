//! The check of all meshes, once a night. Where it stands is a row, so a walk over millions of rows is done in small batches, and by
//! another node when one goes away.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use waybill_kernel::{Error, Result, Tenant};
use waybill_mesh_protocol::MeshId;
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Tx, Value};

use super::{Finding, Step, Walk, step};
use crate::{Settings, metrics};

/// A run that has taken this long ends, and goes on when it is next due.
const RUN_TIME: Duration = Duration::from_secs(600);

/// Where the walk stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    tenant: Tenant,
    mesh: MeshId,
    walk: Walk,
    after: Vec<u8>,
}

#[derive(Debug)]
pub struct NightlyCheck {
    interval: Duration,
    /// What the batch under way has come to: counted once it is committed.
    found: Mutex<(u64, Vec<(MeshId, Finding)>)>,
}

impl NightlyCheck {
    pub fn new(settings: &Settings) -> Self {
        Self { interval: Duration::from_secs(settings.check_interval_s.max(1)), found: Mutex::default() }
    }

    fn note(&self, looked_at: u64, findings: Vec<(MeshId, Finding)>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = (looked_at, findings);
    }
}

impl Sweep for NightlyCheck {
    const NAME: &'static str = "mesh.check";

    fn plan(&self) -> Plan {
        Plan { run_time: RUN_TIME, ..Plan::every(self.interval) }
    }

    async fn run_batch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        self.note(0, Vec::new());
        let began = position(tx).await?;
        let mut here = match &began {
            Some(position) => Some(position.clone()),
            None => mesh_after(tx, None).await?,
        };
        let (mut spent, mut looked_at, mut findings) = (0, 0, Vec::new());
        while let Some(position) = here.take_if(|_| spent < limit) {
            let step = {
                let tx = &mut *tx.as_tenant(position.tenant);
                step(tx, ctx.now, position.mesh, position.walk, &position.after, limit - spent).await?
            };
            // A walk over nothing costs a statement as well.
            spent += step.looked_at.max(1);
            looked_at += step.looked_at.unsigned_abs();
            let Step { findings: found, next, .. } = step;
            findings.extend(found.into_iter().map(|finding| (position.mesh, finding)));
            here = match (next, position.walk.next()) {
                (Some(after), _) => Some(Position { after, ..position }),
                (None, Some(walk)) => Some(Position { walk, after: Vec::new(), ..position }),
                (None, None) => mesh_after(tx, Some(&position)).await?,
            };
        }
        if here != began {
            keep(tx, here.as_ref()).await?;
        }
        self.note(looked_at, findings);
        Ok(if here.is_some() { limit.unsigned_abs() } else { 0 })
    }

    fn committed(&self) {
        let (looked_at, findings) = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        if looked_at > 0 {
            ::metrics::counter!(metrics::ORPHAN_CHECK).increment(looked_at);
        }
        for (mesh, Finding { kind, id }) in findings {
            ::metrics::counter!(metrics::VIOLATION, "kind" => kind).increment(1);
            tracing::error!(%mesh, kind, id, "rows of a message do not belong together; `waybill mesh check` lists all");
        }
    }
}

async fn position(tx: &mut Tx<'_>) -> Result<Option<Position>> {
    const FIND: &str = "SELECT walked_tenant, mesh_id, walk, after FROM mesh_check_walk WHERE id = 1";
    let Some(row) = tx.query_opt(FIND, &[]).await? else { return Ok(None) };
    let walk = Walk::numbered(row.int(2)?).ok_or_else(|| Error::internal("an unknown walk"))?;
    let (tenant, mesh) = (Tenant(row.int(0)?), MeshId::from_slice(row.bytes(1)?)?);
    Ok(Some(Position { tenant, mesh, walk, after: row.bytes(3)?.to_vec() }))
}

async fn mesh_after(tx: &mut Tx<'_>, position: Option<&Position>) -> Result<Option<Position>> {
    const NEXT: &str =
        "SELECT tenant, mesh_id FROM meshes WHERE (tenant, mesh_id) > ($1, $2) ORDER BY tenant, mesh_id LIMIT 1";
    let (tenant, mesh) = position.map_or((i64::MIN, &[][..]), |position| (position.tenant.0, position.mesh.as_bytes()));
    let Some(row) = tx.query_opt(NEXT, &[Value::from(tenant), Value::from(mesh)]).await? else { return Ok(None) };
    let (tenant, mesh) = (Tenant(row.int(0)?), MeshId::from_slice(row.bytes(1)?)?);
    Ok(Some(Position { tenant, mesh, walk: Walk::Dedupe, after: Vec::new() }))
}

async fn keep(tx: &mut Tx<'_>, position: Option<&Position>) -> Result<()> {
    const FORGET: &str = "DELETE FROM mesh_check_walk WHERE id = 1";
    const KEEP: &str = "INSERT INTO mesh_check_walk (id, walked_tenant, mesh_id, walk, after) VALUES (1, $1, $2, $3, $4) \
        ON CONFLICT (id) DO UPDATE SET walked_tenant = excluded.walked_tenant, mesh_id = excluded.mesh_id, \
        walk = excluded.walk, after = excluded.after";
    let Some(position) = position else { return tx.execute(FORGET, &[]).await.map(drop) };
    let params = [
        Value::from(position.tenant.0),
        Value::from(position.mesh.as_bytes()),
        Value::from(position.walk.number()),
        Value::from(&position.after[..]),
    ];
    tx.execute(KEEP, &params).await.map(drop)
}
