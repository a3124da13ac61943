//! What a member has not acknowledged, in the order of commits.
//!
//! Nothing is written when a delivery is pushed: a connection remembers how far it has come, and begins again from the start
//! when something was not acknowledged for a while.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result, id::Uuid};
use waybill_mesh_protocol::frames::Message;
use waybill_mesh_protocol::{DeliveryId, MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{message, message_columns, message_tables};
use crate::mesh::Policy;
use crate::ops::members::ConnectionId;
use crate::spec;

/// Deliveries in one answer: each may have an envelope of the largest size.
pub const PAGE_MAX: u32 = 32;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindDeliveries {
    pub mesh: MeshId,
    pub member: MemberId,
    /// Whose connection it is pushed to; None for one who only looks.
    #[serde(default)]
    pub connection: Option<ConnectionId>,
    /// The sequence number of the last delivery that was pushed; 0 for all.
    #[serde(default)]
    pub after: u64,
    #[serde(default)]
    pub limit: Option<u32>,
}

/// How the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Link {
    Current,
    /// Another connection has taken its place.
    Replaced,
    /// It was not renewed in time and was taken for dead: the member connects again.
    Lost,
    /// The member was revoked or has left.
    Ended,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Deliveries {
    pub link: Link,
    /// None unless the link is current.
    pub deliveries: Vec<Delivery>,
    /// There are more after the last of them.
    pub more: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Delivery {
    pub delivery_id: DeliveryId,
    pub message: Message,
}

/// A delivery is the message's number for one member. The id holds both, so that nothing is stored for it.
pub(super) fn delivery_id(seq: i64, member: MemberId) -> DeliveryId {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&seq.to_be_bytes()[2..]);
    // The bits that say that it is a UUID of the eighth version.
    bytes[6] = 0x80;
    bytes[8] = 0x80;
    bytes[9..].copy_from_slice(&member.as_bytes()[9..]);
    DeliveryId(Uuid::from_bytes(bytes))
}

/// None for an id that was never given to this member.
pub(super) fn seq_of(id: DeliveryId, member: MemberId) -> Option<i64> {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&id.as_bytes()[..6]);
    let seq = i64::from_be_bytes(bytes);
    (delivery_id(seq, member) == id).then_some(seq)
}

impl FindDeliveries {
    async fn link(&self, tx: &mut Tx<'_>) -> Result<Link> {
        const MEMBER: &str = "SELECT state FROM mesh_members WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        const CONNECTIONS: &str =
            "SELECT connection_id FROM mesh_connections WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3";
        let ids = vec![Value::from(self.mesh.as_bytes()), Value::from(self.member.as_bytes())];
        let found = tx.query_all(&[(MEMBER, ids.clone()), (CONNECTIONS, ids)]).await?;
        let [member, connections] = &found[..] else { return Err(Error::internal("two answers were expected")) };
        if member.first().map(|row| row.text(0)).transpose()? != Some("live") {
            return Ok(Link::Ended);
        }
        let Some(own) = &self.connection else { return Ok(Link::Current) };
        if connections.iter().any(|row| row.bytes(0).is_ok_and(|id| id == own.as_bytes())) {
            return Ok(Link::Current);
        }
        // Where the newest is not preferred nobody takes another's place: it was not renewed in time and then forgotten.
        let is_replaced = !connections.is_empty() && self.policy(tx).await? == Policy::PreferNewest;
        Ok(if is_replaced { Link::Replaced } else { Link::Lost })
    }

    async fn policy(&self, tx: &mut Tx<'_>) -> Result<Policy> {
        const POLICY: &str = "SELECT policy FROM meshes WHERE tenant = $1 AND mesh_id = $2";
        let row = tx.query_opt(POLICY, &[Value::from(self.mesh.as_bytes())]).await?;
        Policy::read(row.ok_or_else(|| Error::not_found("mesh"))?.text(0)?)
    }
}

impl Operation for FindDeliveries {
    const SPEC: OperationSpec = spec::read("find_deliveries");
    type Output = Deliveries;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Deliveries>> {
        const FIND: &str = concat!(
            "SELECT ",
            message_columns!(),
            " FROM (SELECT y.mesh_id, y.seq, y.history_id, y.message_id FROM (SELECT mesh_id, seq FROM mesh_deliveries \
             WHERE tenant = $1 AND mesh_id = $2 AND member_id = $3 AND seq > $4 ORDER BY seq LIMIT $5) d \
             JOIN mesh_history y ON y.tenant = $1 AND y.mesh_id = d.mesh_id AND y.seq = d.seq LIMIT $5) y",
            message_tables!(),
            "ORDER BY y.seq"
        );
        let link = self.link(tx).await?;
        if link != Link::Current {
            return Ok(Reply::Done(Deliveries { link, deliveries: Vec::new(), more: false }));
        }
        let limit = self.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(i64::try_from(self.after).map_err(|_| Error::invalid("`after` is no number of a message."))?),
            // One more, so that whoever has the last page need not look for another.
            Value::from(i64::from(limit) + 1),
        ];
        let rows = tx.query(FIND, &params).await?;
        let read = |row: &waybill_store::Row| -> Result<Delivery> {
            Ok(Delivery { delivery_id: delivery_id(row.int(0)?, self.member), message: message(row)? })
        };
        let deliveries = rows.iter().take(limit as usize).map(read).collect::<Result<Vec<_>>>()?;
        let more = rows.len() > limit as usize;
        Ok(Reply::Done(Deliveries { link, deliveries, more }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_id_holds_its_number_for_its_member_alone() {
        let member = MemberId(Uuid::from_u128(0x0198_c0de_1a2b_7c3d_8e4f_5a6b_7c8d_9e10));
        let other = MemberId(Uuid::from_u128(0x0198_c0de_1a2b_7c3d_8e4f_5a6b_7c8d_9e11));
        for seq in [1, 255, 1 << 40, (1 << 48) - 1] {
            let id = delivery_id(seq, member);
            assert_eq!((seq_of(id, member), seq_of(id, other)), (Some(seq), None));
            assert_eq!(id.0.get_version_num(), 8);
        }
        assert_eq!(seq_of(DeliveryId(Uuid::max()), member), None);
    }
}
