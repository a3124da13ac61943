//! What has happened to a mesh since. A door reads it once for all the connections it has of that mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use waybill_kernel::{Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::events::EventKind;
use crate::spec;

pub const PAGE_MAX: u32 = 200;

/// For the door itself and for audits: whoever runs it has seen to who is asking.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadMeshEvents {
    pub mesh: MeshId,
    /// The last number that is known.
    pub after: i64,
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MeshEvents {
    pub events: Vec<MeshEvent>,
    /// There may be more after the last of them.
    pub more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct MeshEvent {
    pub seq: i64,
    pub kind: EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    pub data: Json,
    pub at: Time,
}

impl MeshEvent {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            seq: row.int(0)?,
            kind: EventKind::read(row.text(1)?)?,
            member: row.bytes_opt(2)?.map(MemberId::from_slice).transpose()?,
            data: serde_json::from_str(row.text(3)?).map_err(Error::internal)?,
            at: row.time(4)?,
        })
    }
}

impl Operation for ReadMeshEvents {
    const SPEC: OperationSpec = spec::read("read_mesh_events");
    type Output = MeshEvents;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<MeshEvents>> {
        const LIST: &str = "SELECT seq, kind, member_id, data, at FROM mesh_events WHERE tenant = $1 AND mesh_id = $2 \
                            AND seq > $3 ORDER BY seq LIMIT $4";
        let limit = self.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let params = [Value::from(self.mesh.as_bytes()), Value::from(self.after), Value::from(i64::from(limit))];
        let rows = tx.query(LIST, &params).await?;
        let events = rows.iter().map(MeshEvent::read).collect::<Result<Vec<_>>>()?;
        let more = events.len() == limit as usize;
        Ok(Reply::Done(MeshEvents { events, more }))
    }
}
