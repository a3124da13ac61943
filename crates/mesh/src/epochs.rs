//! Keys of topics on encrypted meshes. The broker has none: it asks a subscriber to make the next one, keeps a box of it for every
//! subscriber, and lets posts be made with it once all have theirs.

use serde_json::json;
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value};

use crate::events::{EventKind, NewEvent};

/// Why a topic needs another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Somebody is to read what comes. A key that is being made already will do.
    Joined,
    /// Somebody is not to read what comes. A key that is being made may have been made for it as well.
    Left,
    /// As before, and until there is another key nothing is posted.
    Revoked,
}

impl Reason {
    const fn statement(self) -> &'static str {
        match self {
            Reason::Joined => {
                "UPDATE mesh_topics SET pending_epoch = coalesce(pending_epoch, epoch + 1) WHERE tenant = $1 \
                 AND mesh_id = $2 AND topic = $3"
            }
            Reason::Left => {
                "UPDATE mesh_topics SET pending_epoch = coalesce(pending_epoch, epoch) + 1, floor_pending = 1 WHERE tenant = $1 \
                 AND mesh_id = $2 AND topic = $3"
            }
            Reason::Revoked => {
                "UPDATE mesh_topics SET pending_epoch = coalesce(pending_epoch, epoch) + 1, floor_pending = 1, blocked = 1 \
                 WHERE tenant = $1 AND mesh_id = $2 AND topic = $3"
            }
        }
    }
}

/// Has the next key made of each of these topics, and answers with who is asked to. Nothing on a plaintext mesh.
pub(crate) async fn demand(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    topics: &[String],
    reason: Reason,
) -> Result<Vec<NewEvent>> {
    if topics.is_empty() || is_plaintext(tx, mesh).await? {
        return Ok(Vec::new());
    }
    for some in topics.chunks(STATEMENTS_MAX) {
        let statements: Vec<Statement<'_>> = some
            .iter()
            .map(|topic| (reason.statement(), vec![Value::from(mesh.as_bytes()), Value::from(topic)]))
            .collect();
        tx.execute_all(&statements).await?;
    }
    keyholders(ctx, tx, mesh, topics).await
}

async fn is_plaintext(tx: &mut Tx<'_>, mesh: MeshId) -> Result<bool> {
    const PLAINTEXT: &str = "SELECT plaintext FROM meshes WHERE tenant = $1 AND mesh_id = $2";
    let row = tx.query_opt(PLAINTEXT, &[Value::from(mesh.as_bytes())]).await?;
    row.ok_or_else(|| Error::not_found("mesh"))?.bool(0)
}

/// Who is to make the key of a topic: of the subscribers that are connected the owner, or else the one with the lowest id.
macro_rules! keyholder {
    () => {
        "(SELECT s.member_id FROM mesh_subscriptions s JOIN mesh_connections c ON c.tenant = $1 AND c.mesh_id = s.mesh_id \
         AND c.member_id = s.member_id AND c.lease_until > $3 JOIN meshes h ON h.tenant = $1 AND h.mesh_id = s.mesh_id \
         WHERE s.tenant = $1 AND s.mesh_id = t.mesh_id AND s.topic = t.topic \
         ORDER BY CASE WHEN s.member_id = h.owner THEN 0 ELSE 1 END, s.member_id LIMIT 1)"
    };
}
pub(crate) use keyholder;

async fn keyholders(ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId, topics: &[String]) -> Result<Vec<NewEvent>> {
    const FIND: &str = concat!(
        "SELECT t.topic, t.pending_epoch, ",
        keyholder!(),
        " FROM mesh_topics t WHERE t.tenant = $1 AND t.mesh_id = $2 AND t.topic = $4 AND t.pending_epoch IS NOT NULL"
    );
    let mut events = Vec::new();
    for some in topics.chunks(STATEMENTS_MAX) {
        let statements: Vec<Statement<'_>> = some
            .iter()
            .map(|topic| (FIND, vec![Value::from(mesh.as_bytes()), Value::from(ctx.now), Value::from(topic)]))
            .collect();
        for row in tx.query_all(&statements).await?.iter().flatten() {
            let data = json!({ "topic": row.text(0)?, "epoch": row.int(1)? });
            let member = row.bytes_opt(2)?.map(MemberId::from_slice).transpose()?;
            events.push(NewEvent { kind: EventKind::EpochRequested, member, data });
        }
    }
    Ok(events)
}

/// A subscriber has come or gone: who is to make the keys that its topics wait for may have changed.
pub(crate) async fn ask_again(ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId, member: MemberId) -> Result<Vec<NewEvent>> {
    const PENDING: &str = "SELECT s.topic FROM mesh_subscriptions s JOIN mesh_topics t ON t.tenant = $1 \
        AND t.mesh_id = s.mesh_id AND t.topic = s.topic AND t.pending_epoch IS NOT NULL \
        WHERE s.tenant = $1 AND s.mesh_id = $2 AND s.member_id = $3";
    let rows = tx.query(PENDING, &[Value::from(mesh.as_bytes()), Value::from(member.as_bytes())]).await?;
    let topics = rows.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
    keyholders(ctx, tx, mesh, &topics).await
}
