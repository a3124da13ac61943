//! B0, and what B1 has to know: one read of the id, the member and the mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::{ClientMessageId, MemberId, MeshId};
use waybill_queues::Reachable;
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{Known, known_columns};
use crate::{posts, spec};

#[derive(Deserialize, JsonSchema)]
pub(super) struct Look {
    pub mesh: MeshId,
    pub member: MemberId,
    pub client_message_id: ClientMessageId,
    /// That it is sent to, if it is sent to one.
    pub queue: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Looked {
    #[serde(skip)]
    #[schemars(skip)]
    pub known: Option<Known>,
    /// Of the member; None for one that never was.
    pub state: Option<String>,
    pub plaintext: bool,
    /// The mesh's.
    pub slug: String,
    /// None for one that is not allowed, and for one that there is not.
    #[serde(skip)]
    #[schemars(skip)]
    pub queue: Option<Reachable>,
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
        const MESH: &str = "SELECT plaintext, slug FROM meshes WHERE tenant = $1 AND mesh_id = $2";
        let mesh = Value::from(self.mesh.as_bytes());
        let statements = [
            (KNOWN, vec![mesh, Value::from(self.client_message_id.as_str())]),
            (MEMBER, vec![mesh, Value::from(self.member.as_bytes())]),
            (MESH, vec![mesh]),
        ];
        let found = tx.query_all(&statements).await?;
        let first = |place: usize| found.get(place).and_then(|rows| rows.first());
        let of_mesh = first(2).ok_or_else(|| Error::not_found("mesh"))?;
        let known = first(0).map(Known::read).transpose()?;
        let queue = match &self.queue {
            Some(queue) if known.is_none() => posts::find(tx, self.mesh, queue).await?,
            _ => None,
        };
        Ok(Reply::Done(Looked {
            known,
            state: first(1).map(|row| row.text(0).map(str::to_owned)).transpose()?,
            plaintext: of_mesh.bool(0)?,
            slug: of_mesh.text(1)?.to_owned(),
            queue,
        }))
    }
}
