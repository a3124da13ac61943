//! A door says which connections it still has. Those that it does not renew end by themselves, also when its process is killed.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Statement, Tx, Value};

use super::connect::ConnectionId;
use crate::{Settings, spec};

/// Connections in one call.
pub const CONNECTIONS_MAX: usize = 1_000;

/// All of one tenant, which is the caller's.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepConnections {
    pub connections: Vec<ConnectionRef>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ConnectionRef {
    pub mesh: MeshId,
    pub member: MemberId,
    pub connection: ConnectionId,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct KeptConnections {
    /// How many of them are still their members' own. The others find out when they look for deliveries.
    pub kept: u64,
}

impl Operation for KeepConnections {
    const SPEC: OperationSpec = OperationSpec { relieves: true, repeatable: true, ..spec::write("keep_connections") };
    type Output = KeptConnections;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<KeptConnections>> {
        const KEEP: &str = "UPDATE mesh_connections SET lease_until = $5 WHERE tenant = $1 AND mesh_id = $2 \
                            AND member_id = $3 AND connection_id = $4";
        if self.connections.len() > CONNECTIONS_MAX {
            return Err(Error::invalid(format!("`connections` has at most {CONNECTIONS_MAX} entries.")));
        }
        let until = ctx.now.after(Duration::from_secs(ctx.settings::<Settings>().connection_lease_s));
        let mut kept = 0;
        for some in self.connections.chunks(STATEMENTS_MAX) {
            let statements: Vec<Statement<'_>> = some
                .iter()
                .map(|of| {
                    let ids = [of.mesh.as_bytes(), of.member.as_bytes(), of.connection.as_bytes()].map(Value::from);
                    (KEEP, ids.into_iter().chain([Value::from(until)]).collect())
                })
                .collect();
            kept += tx.execute_all(&statements).await?.iter().sum::<u64>();
        }
        Ok(Reply::Done(KeptConnections { kept }))
    }
}
