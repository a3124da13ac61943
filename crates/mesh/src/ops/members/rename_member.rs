//! Rename a member: itself, or any by the owner.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MemberName, MeshId, PublicKey};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::events::{self, EventKind, NewEvent};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameMember {
    pub mesh: MeshId,
    pub member: MemberId,
    pub name: MemberName,
    /// Whose name, where it is not the member's own: for the owner alone.
    #[serde(default)]
    pub key: Option<PublicKey>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RenamedMember {
    pub member_id: MemberId,
    pub name: MemberName,
}

impl Operation for RenameMember {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("rename_member") };
    type Output = RenamedMember;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<RenamedMember>> {
        const TAKEN: &str =
            "SELECT 1 FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND name = $3 AND state = 'live'";
        const RENAME: &str = "UPDATE mesh_members SET name = $4 WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 \
                              AND state = 'live'";
        let member_id = match &self.key {
            Some(key) => members::by_key(tx, self.mesh, key).await?,
            None => self.member,
        };
        if member_id != self.member {
            members::owner(tx, self.mesh, self.member, "rename others").await?;
        }
        // Names are given out where members are made, too.
        members::in_turn(ctx, tx, self.mesh).await?;
        let before = members::live(tx, self.mesh, member_id).await?;
        let renamed = RenamedMember { member_id, name: self.name.clone() };
        if before.name == self.name.as_str() {
            return Ok(Reply::Done(renamed));
        }
        let [mesh, name] = [Value::from(self.mesh.as_bytes()), Value::from(self.name.as_str())];
        if tx.query_opt(TAKEN, &[mesh, name]).await?.is_some() {
            return Err(members::name_taken(&self.name));
        }
        if tx.execute(RENAME, &[mesh, Value::from(member_id.as_bytes()), name]).await? == 0 {
            return Err(members::revoked());
        }
        let data = json!({ "from": before.name, "to": self.name, "key": before.keys.ed25519 });
        events::record(ctx, tx, self.mesh, &[NewEvent::of(EventKind::MemberRenamed, member_id, data)]).await?;
        Ok(Reply::Done(renamed))
    }
}
