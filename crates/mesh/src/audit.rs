//! What the tenant is told of its meshes: every audit event of every mesh, as a feed for domains that act on them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;
use waybill_kernel::{Error, Result, Tenant, Time, id_type};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::effects::Feed;
use waybill_store::{Row, Topic, Tx, Value};

use crate::events::EventKind;

id_type!(
    /// Identifies an audit event within its tenant.
    AuditId
);

/// What stands before the kind where events of several domains are told apart.
pub const PREFIX: &str = "mesh.";

/// In the order of feeds, without what the events say: [`find`] has that.
pub const WRITTEN: Feed = Feed {
    sql: "SELECT xact, seq, tenant, event_id, kind, at FROM mesh_audit \
          WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4",
};

/// Woken by every audit event.
pub fn written() -> Topic {
    Topic::new("mesh audit written", Tenant(0), b"")
}

/// A row of [`WRITTEN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenEvent {
    pub tenant: Tenant,
    pub event_id: AuditId,
    /// With its prefix.
    pub name: &'static str,
    pub at: Time,
}

impl WrittenEvent {
    pub fn read(row: &Row) -> Result<Self> {
        let kind = EventKind::read(row.text(4)?)?;
        Ok(Self {
            tenant: Tenant(row.int(2)?),
            event_id: AuditId::from_slice(row.bytes(3)?)?,
            name: kind.audit_name().ok_or_else(|| Error::internal(format!("{} is not audited", kind.as_str())))?,
            at: row.time(5)?,
        })
    }
}

/// An audit event as the tenant is shown it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AuditEvent {
    pub event_id: AuditId,
    pub mesh_id: MeshId,
    /// The mesh's slug.
    pub mesh: String,
    /// Its place among all events of the mesh.
    pub seq: i64,
    pub kind: EventKind,
    /// Whom it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_id: Option<MemberId>,
    pub data: Json,
    pub at: Time,
}

/// None for one that is not kept any more. In a tenant's transaction, or the program's own that acts for one.
pub async fn find(tx: &mut Tx<'_>, id: AuditId) -> Result<Option<AuditEvent>> {
    const FIND: &str = "SELECT e.mesh_id, h.slug, e.seq, e.kind, e.member_id, e.data, e.at FROM mesh_audit a \
        JOIN mesh_events e ON e.tenant = $1 AND e.mesh_id = a.mesh_id AND e.seq = a.event_seq \
        JOIN meshes h ON h.tenant = $1 AND h.mesh_id = a.mesh_id WHERE a.tenant = $1 AND a.event_id = $2";
    let read = |row: Row| {
        Ok(AuditEvent {
            event_id: id,
            mesh_id: MeshId::from_slice(row.bytes(0)?)?,
            mesh: row.text(1)?.to_owned(),
            seq: row.int(2)?,
            kind: EventKind::read(row.text(3)?)?,
            member_id: row.bytes_opt(4)?.map(MemberId::from_slice).transpose()?,
            data: serde_json::from_str(row.text(5)?).map_err(Error::internal)?,
            at: row.time(6)?,
        })
    };
    tx.query_opt(FIND, &[Value::from(id.as_bytes())]).await?.map(read).transpose()
}
