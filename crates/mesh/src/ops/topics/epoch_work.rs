//! Which keys a member is to make, and for whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::frames::{EpochWanted, Subscriber};
use waybill_mesh_protocol::{MemberId, MeshId, TopicName};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::epochs::keyholder;
use crate::{members, rows, spec};

/// Topics in one answer, each with all of its subscribers. After a full one there may be more.
pub const WORK_PAGE_MAX: usize = 8;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindEpochWork {
    pub mesh: MeshId,
    pub member: MemberId,
    /// The last topic of the answer before.
    #[serde(default)]
    pub after: Option<TopicName>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EpochWork {
    /// By topic, with all subscribers of each, the member itself included. Empty while somebody else is to make the keys.
    pub wanted: Vec<EpochWanted>,
}

impl FindEpochWork {
    async fn subscribers(&self, tx: &mut Tx<'_>, topic: &TopicName) -> Result<Vec<Subscriber>> {
        const SUBSCRIBERS: &str = "SELECT s.member_id, k.ed25519, k.x25519, k.x25519_signature FROM mesh_subscriptions s \
            JOIN mesh_members m ON m.tenant = $1 AND m.mesh_id = s.mesh_id AND m.member_id = s.member_id \
            JOIN mesh_keys k ON k.tenant = $1 AND k.mesh_id = s.mesh_id AND k.ed25519 = m.ed25519 \
            WHERE s.tenant = $1 AND s.mesh_id = $2 AND s.topic = $3 ORDER BY s.member_id";
        let rows = tx.query(SUBSCRIBERS, &[Value::from(self.mesh.as_bytes()), Value::from(topic.as_str())]).await?;
        let read = |row: &_| -> Result<Subscriber> {
            let row: &waybill_store::Row = row;
            Ok(Subscriber { member_id: MemberId::from_slice(row.bytes(0)?)?, keys: rows::keys(row, 1)? })
        };
        rows.iter().map(read).collect()
    }
}

impl Operation for FindEpochWork {
    const SPEC: OperationSpec = spec::read("find_epoch_work");
    type Output = EpochWork;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<EpochWork>> {
        const FIND: &str = concat!(
            "SELECT t.topic, t.pending_epoch FROM mesh_topics t JOIN mesh_subscriptions own ON own.tenant = $1 \
             AND own.mesh_id = t.mesh_id AND own.topic = t.topic AND own.member_id = $4 \
             WHERE t.tenant = $1 AND t.mesh_id = $2 AND t.pending_epoch IS NOT NULL AND ",
            keyholder!(),
            " = $4 AND t.topic > $6 ORDER BY t.topic LIMIT $5"
        );
        members::live(tx, self.mesh, self.member).await?;
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(ctx.now),
            Value::from(self.member.as_bytes()),
            Value::from(WORK_PAGE_MAX as i64),
            Value::from(self.after.as_ref().map_or("", TopicName::as_str)),
        ];
        let mut wanted = Vec::new();
        for row in tx.query(FIND, &params).await? {
            let topic: TopicName = row.text(0)?.parse()?;
            let subscribers = self.subscribers(tx, &topic).await?;
            wanted.push(EpochWanted { topic, epoch: rows::number(&row, 1)?, subscribers });
        }
        Ok(Reply::Done(EpochWork { wanted }))
    }
}
