//! The boxes of topics' keys that a member may open.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{EpochKey, MemberId, MemberKeys, MeshId, TopicName};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::{members, rows, spec};

pub const PAGE_MAX: u32 = 200;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListEpochKeys {
    pub mesh: MeshId,
    pub member: MemberId,
    /// Of this topic alone.
    #[serde(default)]
    pub topic: Option<TopicName>,
    /// With `after_epoch` the last key that is known.
    #[serde(default)]
    pub after_topic: Option<TopicName>,
    #[serde(default)]
    pub after_epoch: Option<u32>,
}

/// By topic and epoch. Keys that are being made are not among them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EpochKeys {
    pub keys: Vec<EpochKey>,
    pub more: bool,
    /// Who has made some of these keys and is no member any more: the list of members does not name them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub departed: Vec<Departed>,
}

/// What the list of members has said of one that is none any more, as far as its keys are concerned.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Departed {
    pub member_id: MemberId,
    pub name: String,
    pub is_owner: bool,
    /// Its last ones.
    pub keys: MemberKeys,
    /// From key to key, oldest first, each step signed by both: a topic's key may have been made with an earlier one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rotations: Vec<Rotation>,
}

fn read(row: &Row) -> Result<EpochKey> {
    Ok(EpochKey {
        topic: row.text(0)?.parse()?,
        epoch: rows::number(row, 1)?,
        minter: rows::key(row, 2)?,
        boxed: serde_json::from_str(row.text(3)?).map_err(Error::internal)?,
    })
}

impl ListEpochKeys {
    /// Seldom more than a few: most keys are made by the owner.
    async fn departed(&self, tx: &mut Tx<'_>, ids: BTreeSet<MemberId>) -> Result<Vec<Departed>> {
        let mut departed = Vec::with_capacity(ids.len());
        for member_id in ids {
            let (found, _) = members::find(tx, self.mesh, member_id).await?;
            let rotations = members::rotations(tx, self.mesh, member_id, member_id).await?;
            departed.push(Departed {
                member_id,
                name: found.name,
                is_owner: found.is_owner,
                keys: found.keys,
                rotations: rotations.into_iter().map(|(_, rotation)| rotation).collect(),
            });
        }
        Ok(departed)
    }
}

impl Operation for ListEpochKeys {
    const SPEC: OperationSpec = spec::read("list_epoch_keys");
    type Output = EpochKeys;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<EpochKeys>> {
        const LIST: &str = "SELECT b.topic, b.epoch, b.minter_key, b.epoch_box, (SELECT m.member_id FROM mesh_keys k \
            JOIN mesh_members m ON m.tenant = $1 AND m.mesh_id = k.mesh_id AND m.member_id = k.member_id AND m.state <> 'live' \
            WHERE k.tenant = $1 AND k.mesh_id = b.mesh_id AND k.ed25519 = b.minter_key) \
            FROM mesh_epoch_boxes b JOIN mesh_topics t ON t.tenant = $1 AND t.mesh_id = b.mesh_id AND t.topic = b.topic \
            AND b.epoch <= t.epoch WHERE b.tenant = $1 AND b.mesh_id = $2 AND b.member_id = $3 AND (b.topic, b.epoch) > ($4, $5) \
            AND b.topic >= $6 AND b.topic <= $7 ORDER BY b.topic, b.epoch LIMIT $8";
        // After every name of a topic.
        const END: &str = "~";
        members::live(tx, self.mesh, self.member).await?;
        let (first, last) = self.topic.as_ref().map_or(("", END), |topic| (topic.as_str(), topic.as_str()));
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.after_topic.as_ref().map_or("", TopicName::as_str)),
            Value::from(i64::from(self.after_epoch.unwrap_or(0))),
            Value::from(first),
            Value::from(last),
            Value::from(i64::from(PAGE_MAX)),
        ];
        let rows = tx.query(LIST, &params).await?;
        let keys = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        let mut minters = BTreeSet::new();
        for row in &rows {
            minters.extend(row.bytes_opt(4)?.map(MemberId::from_slice).transpose()?);
        }
        let departed = self.departed(tx, minters).await?;
        let more = keys.len() == PAGE_MAX as usize;
        Ok(Reply::Done(EpochKeys { keys, more, departed }))
    }
}
