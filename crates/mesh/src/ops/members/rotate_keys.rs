//! Give a member new keys. It stays the same member: what is sent to an old key still reaches it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Entropy, OperationSpec, Result};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{MemberId, MemberKeys, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::events::{self, EventKind, NewEvent};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKeys {
    pub mesh: MeshId,
    pub member: MemberId,
    pub rotation: Rotation,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RotatedKeys {
    pub member_id: MemberId,
    pub keys: MemberKeys,
}

impl Operation for RotateKeys {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("rotate_keys") };
    const PREPARES: bool = true;
    type Output = RotatedKeys;

    fn prepare(&mut self, _: &dyn Entropy) -> Result<()> {
        self.rotation.verify(self.mesh)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RotatedKeys>> {
        const RETIRE: &str = "UPDATE mesh_keys SET state = 'rotated_out', ended_at = $4 WHERE tenant = $1 AND mesh_id = $2 \
                              AND ed25519 = $3 AND state = 'current'";
        const TAKE: &str = "UPDATE mesh_members SET ed25519 = $4 WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        let Rotation { old, keys, .. } = &self.rotation;
        members::lock(tx, self.mesh, self.member).await?;
        let live = members::live(tx, self.mesh, self.member).await?;
        let rotated = RotatedKeys { member_id: self.member, keys: *keys };
        // Whoever did not get the answer asks again.
        if live.keys == *keys {
            return Ok(Reply::Done(rotated));
        }
        if live.keys.ed25519 != *old {
            return Err(members::revoked());
        }
        members::insert_keys(ctx, tx, self.mesh, self.member, keys, Some(&self.rotation)).await?;
        let mesh = Value::from(self.mesh.as_bytes());
        tx.execute(RETIRE, &[mesh, Value::from(&old.as_bytes()[..]), Value::from(ctx.now)]).await?;
        let params = [mesh, Value::from(self.member.as_bytes()), Value::from(&keys.ed25519.as_bytes()[..])];
        tx.execute(TAKE, &params).await?;
        let data = json!({ "name": live.name, "rotation": self.rotation });
        events::record(ctx, tx, self.mesh, &[NewEvent::of(EventKind::MemberKeypairRotated, self.member, data)]).await?;
        Ok(Reply::Done(rotated))
    }
}
