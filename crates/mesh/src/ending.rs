//! The end of a membership, whoever ends it. What the member could still have read goes in the same transaction.

use serde_json::{Value as Json, json};
use waybill_kernel::Result;
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Tx, Value};

use crate::epochs::{self, Reason};
use crate::events::{self, EventKind, NewEvent};
use crate::rows;
use crate::wakes::wake_member;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Revoked,
    Left,
}

impl Ending {
    const fn state(self) -> &'static str {
        match self {
            Ending::Revoked => "revoked",
            Ending::Left => "left",
        }
    }

    const fn event(self) -> EventKind {
        match self {
            Ending::Revoked => EventKind::MemberRevoked,
            Ending::Left => EventKind::MemberLeft,
        }
    }

    const fn reason(self) -> Reason {
        match self {
            Ending::Revoked => Reason::Revoked,
            Ending::Left => Reason::Left,
        }
    }
}

/// False for a member that is none any more. `by` is whoever ends it: a member, an operator, or nobody. In a tenant's transaction, or the program's own that acts for one.
pub(crate) async fn end(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    member: MemberId,
    ending: Ending,
    by: Json,
) -> Result<bool> {
    const END: &str = "UPDATE mesh_members SET state = $4, ended_at = $5, status = NULL, summary = NULL WHERE tenant = $1 \
                       AND mesh_id = $2 AND member_id = $3 AND state = 'live' RETURNING ed25519, name";
    const TOPICS: &str = "DELETE FROM mesh_subscriptions WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                          RETURNING topic";
    const OTHERS: [&str; 3] = [
        "DELETE FROM mesh_deliveries WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3",
        "DELETE FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3",
        "DELETE FROM mesh_epoch_boxes WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3",
    ];
    let ids = [Value::from(mesh.as_bytes()), Value::from(member.as_bytes())];
    let params = [ids[0], ids[1], Value::from(ending.state()), Value::from(ctx.now)];
    let Some(row) = tx.query_opt(END, &params).await? else { return Ok(false) };
    let data = json!({ "key": rows::key(&row, 0)?, "name": row.text(1)?, "by": by });
    let rows = tx.query(TOPICS, &ids).await?;
    let topics = rows.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>>>()?;
    tx.execute_all(&OTHERS.map(|sql| (sql, ids.to_vec()))).await?;
    let mut events = vec![NewEvent::of(ending.event(), member, data)];
    events.extend(epochs::demand(ctx, tx, mesh, &topics, ending.reason()).await?);
    events::record(ctx, tx, mesh, &events).await?;
    if let Some(tenant) = tx.tenant() {
        wake_member(tx, tenant, mesh, member);
    }
    Ok(true)
}
