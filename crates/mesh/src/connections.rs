//! The end of a connection. Whoever was to make a topic's key may be gone with it, so somebody else is asked.

use serde_json::json;
use waybill_kernel::{Mode, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Store, Tx, Value, Work};

use crate::events::{self, EventKind, NewEvent};
use crate::ops::members::ConnectionId;
use crate::{epochs, members};

/// False for one that was replaced before, or whose member is none any more.
pub(crate) async fn remove(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    member: MemberId,
    connection: ConnectionId,
) -> Result<bool> {
    const DELETE: &str = "DELETE FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                          AND connection_id = $4";
    const OTHERS: &str = "SELECT count(*) FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                          AND lease_until > $4";
    members::lock(tx, mesh, member).await?;
    let ids = [Value::from(mesh.as_bytes()), Value::from(member.as_bytes())];
    if tx.execute(DELETE, &[ids[0], ids[1], Value::from(connection.as_bytes())]).await? == 0 {
        return Ok(false);
    }
    let others = tx.query_opt(OTHERS, &[ids[0], ids[1], Value::from(ctx.now)]).await?;
    if others.map_or(Ok(0), |row| row.int(0))? == 0 {
        let live = members::live(tx, mesh, member).await?;
        let data = json!({ "key": live.keys.ed25519, "visible": live.visible });
        let mut events = vec![NewEvent::of(EventKind::PeerLeave, member, data)];
        events.extend(epochs::ask_again(ctx, tx, mesh, member).await?);
        events::record(ctx, tx, mesh, &events).await?;
    }
    Ok(true)
}

/// For a door that has no connection yet. One process has a SQLite file, so whatever is written there is of one that was killed:
/// while its leases lasted its members would be taken for connected. Nodes on PostgreSQL have each other's connections in the same
/// table, which does not say whose they are: there the leases decide. Answers with how many were forgotten; nobody is there who
/// could be told.
pub async fn forget_connections(store: &Store) -> Result<u64> {
    if store.is_postgres() {
        return Ok(0);
    }
    store.system().run(Forget).await
}

struct Forget;

impl Work for Forget {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        tx.execute("DELETE FROM mesh_connections", &[]).await
    }
}
