//! B0, and what B1 has to know: one read of the ids, the member and the mesh. Messages that a member sends together are looked at
//! together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, Error, OperationSpec, Result};
use waybill_mesh_protocol::{ClientMessageId, MemberId, MeshId};
use waybill_queues::Reachable;
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Store, Tx, Value};

use super::{Known, known_columns};
use crate::{posts, spec};

/// Messages that are looked at together.
pub const LOOKS_MAX: usize = STATEMENTS_MAX - 1;

#[derive(Deserialize, JsonSchema)]
pub(super) struct Look {
    pub mesh: MeshId,
    pub member: MemberId,
    pub client_message_ids: Vec<ClientMessageId>,
    /// That they are sent to, if they are sent to one.
    pub queue: Option<String>,
}

/// What B0 has found of one message.
#[derive(Serialize, JsonSchema)]
pub struct Looked {
    #[serde(skip)]
    #[schemars(skip)]
    pub(super) known: Option<Known>,
    /// Of the member; None for one that never was.
    pub(super) state: Option<String>,
    pub(super) plaintext: bool,
    /// The mesh's.
    pub(super) slug: String,
    /// None for one that is not allowed, and for one that there is not.
    #[serde(skip)]
    #[schemars(skip)]
    pub(super) queue: Option<Reachable>,
}

/// B0 of several messages to topics and members, in their order. What is found is good for one attempt, made at once: what has
/// changed in between is found by the transaction.
pub async fn look_together(
    store: &Store,
    caller: &Caller,
    mesh: MeshId,
    member: MemberId,
    client_message_ids: Vec<ClientMessageId>,
) -> Result<Vec<Looked>> {
    let look = Look { mesh, member, client_message_ids, queue: None };
    match store.run(look, caller.clone()).await? {
        Reply::Done(looked) => Ok(looked),
        _ => Err(Error::internal("a look neither waits nor replays")),
    }
}

impl Operation for Look {
    const SPEC: OperationSpec = spec::read("look_for_message");
    /// One for each id.
    type Output = Vec<Looked>;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Vec<Looked>>> {
        const KNOWN: &str = concat!(
            "SELECT ",
            known_columns!(),
            " FROM mesh_dedupe WHERE tenant = $1 AND mesh_id = $2 AND client_message_id = $3"
        );
        const STANDING: &str = "SELECT h.plaintext, h.slug, m.state FROM meshes h LEFT JOIN mesh_members m ON m.tenant = $1 \
            AND m.mesh_id = h.mesh_id AND m.member_id = $3 WHERE h.tenant = $1 AND h.mesh_id = $2";
        if self.client_message_ids.len() > LOOKS_MAX {
            return Err(Error::internal("too many messages are looked at together"));
        }
        let mesh = Value::from(self.mesh.as_bytes());
        let mut statements = vec![(STANDING, vec![mesh, Value::from(self.member.as_bytes())])];
        statements.extend(self.client_message_ids.iter().map(|id| (KNOWN, vec![mesh, Value::from(id.as_str())])));
        let found = tx.query_all(&statements).await?;
        let first = |index: usize| found.get(index).and_then(|rows| rows.first());
        let standing = first(0).ok_or_else(|| Error::not_found("mesh"))?;
        let mut all = Vec::with_capacity(self.client_message_ids.len());
        for index in 1..=self.client_message_ids.len() {
            let known = first(index).map(Known::read).transpose()?;
            let queue = match &self.queue {
                Some(queue) if known.is_none() => posts::find(tx, self.mesh, queue).await?,
                _ => None,
            };
            all.push(Looked {
                known,
                state: standing.text_opt(2)?.map(str::to_owned),
                plaintext: standing.bool(0)?,
                slug: standing.text(1)?.to_owned(),
                queue,
            });
        }
        Ok(Reply::Done(all))
    }
}
