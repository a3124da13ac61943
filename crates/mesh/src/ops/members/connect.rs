//! A member's connection begins. Which of several stays is the mesh's policy; that there are several is written down in any case.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{OperationSpec, Result, id_type};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::counters::{self, Counter};
use crate::events::{self, EventKind, NewEvent};
use crate::mesh::Policy;
use crate::wakes::wake_member;
use crate::{Settings, epochs, members, spec};

id_type!(
    /// One socket of one member, named by the door that has it.
    ConnectionId
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    pub mesh: MeshId,
    pub member: MemberId,
    pub connection: ConnectionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Connected {
    /// False where the policy keeps the older connection: this one is to be closed.
    pub admitted: bool,
    pub policy: Policy,
    /// Other live connections of the member. Under `prefer_newest` they were live until now, and find themselves replaced.
    pub siblings: i64,
    /// The last event so far: what happens from now on comes after it.
    pub events_seq: i64,
    /// The last message of the mesh so far.
    pub history_seq: i64,
}

impl Connect {
    /// Live connections of the member. Those of processes that are gone are removed.
    async fn others(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<i64> {
        const FORGET: &str = "DELETE FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                              AND lease_until <= $4";
        const COUNT: &str =
            "SELECT count(*) FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        let [mesh, member] = [Value::from(self.mesh.as_bytes()), Value::from(self.member.as_bytes())];
        tx.execute(FORGET, &[mesh, member, Value::from(ctx.now)]).await?;
        tx.query_opt(COUNT, &[mesh, member]).await?.map_or(Ok(0), |row| row.int(0))
    }

    async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const INSERT: &str = "INSERT INTO mesh_connections (tenant, mesh_id, member_id, connection_id, connected_at, lease_until) \
                              VALUES ($1, $2, $3, $4, $5, $6)";
        let lease = Duration::from_secs(ctx.settings::<Settings>().connection_lease_s);
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.connection.as_bytes()),
            Value::from(ctx.now),
            Value::from(ctx.now.after(lease)),
        ];
        tx.execute(INSERT, &params).await.map(drop)
    }

    async fn replace_others(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const DELETE: &str = "DELETE FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        tx.execute(DELETE, &[Value::from(self.mesh.as_bytes()), Value::from(self.member.as_bytes())]).await?;
        wake_member(tx, ctx.caller.tenant, self.mesh, self.member);
        Ok(())
    }
}

impl Operation for Connect {
    const SPEC: OperationSpec = spec::write("connect");
    type Output = Connected;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Connected>> {
        members::lock(tx, self.mesh, self.member).await?;
        let live = members::live(tx, self.mesh, self.member).await?;
        let siblings = self.others(ctx, tx).await?;
        let admitted = siblings == 0 || live.policy != Policy::PreferOldest;
        let mut events = Vec::new();
        if siblings > 0 {
            let data = json!({ "policy": live.policy, "siblings": siblings, "connection": self.connection });
            events.push(NewEvent::of(EventKind::MemberConcurrentConnection, self.member, data));
        }
        if siblings > 0 && live.policy == Policy::PreferNewest {
            self.replace_others(ctx, tx).await?;
        }
        if admitted {
            self.insert(ctx, tx).await?;
        }
        if admitted && siblings == 0 {
            let data = json!({ "name": live.name, "keys": live.keys, "visible": live.visible });
            events.push(NewEvent::of(EventKind::PeerJoin, self.member, data));
            events.extend(epochs::ask_again(ctx, tx, self.mesh, self.member).await?);
        }
        let history_seq = counters::last(tx, self.mesh, Counter::History).await?;
        events::record(ctx, tx, self.mesh, &events).await?;
        let events_seq = counters::last(tx, self.mesh, Counter::Events).await?;
        Ok(Reply::Done(Connected { admitted, policy: live.policy, siblings, events_seq, history_seq }))
    }
}
