//! B0, and what B1 has to know: one read of the id, the member and the mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::{ClientMessageId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{Known, known_columns};
use crate::spec;

#[derive(Deserialize, JsonSchema)]
pub(super) struct Look {
    pub mesh: MeshId,
    pub member: MemberId,
    pub client_message_id: ClientMessageId,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Looked {
    #[serde(skip)]
    #[schemars(skip)]
    pub known: Option<Known>,
    /// Of the member; None for one that never was.
    pub state: Option<String>,
    pub plaintext: bool,
}

impl Operation for Look {
    const SPEC: OperationSpec = spec::read("look_for_message");
    type Output = Looked;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Looked>> {
        const KNOWN: &str = concat!(
            "SELECT ",
            known_columns!(),
            " FROM mesh_dedupe WHERE tenant = $1 AND mesh_id = $2 AND client_message_id = $3"
        );
        const MEMBER: &str = "SELECT state FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        const MESH: &str = "SELECT plaintext FROM meshes WHERE tenant = $1 AND mesh_id = $2";
        let mesh = Value::from(self.mesh.as_bytes());
        let statements = [
            (KNOWN, vec![mesh, Value::from(self.client_message_id.as_str())]),
            (MEMBER, vec![mesh, Value::from(self.member.as_bytes())]),
            (MESH, vec![mesh]),
        ];
        let found = tx.query_all(&statements).await?;
        let first = |place: usize| found.get(place).and_then(|rows| rows.first());
        Ok(Reply::Done(Looked {
            known: first(0).map(Known::read).transpose()?,
            state: first(1).map(|row| row.text(0).map(str::to_owned)).transpose()?,
            plaintext: first(2).ok_or_else(|| Error::not_found("mesh"))?.bool(0)?,
        }))
    }
}
