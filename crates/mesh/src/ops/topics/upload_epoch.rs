//! Boxes of a topic's next key, one for every subscriber. All of them hold the same key, so they come in one call or not at all:
//! of two members that make a key at the same time the first one's is taken, and the other opens its box like everybody else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Entropy, Error, OperationSpec, Result};
use waybill_mesh_protocol::epoch::EpochOf;
use waybill_mesh_protocol::{EpochBox, MemberId, MeshId, PublicKey, TopicName};
use waybill_store::{Ctx, Operation, Reply, STATEMENTS_MAX, Statement, Tx, Value};

use super::Locked;
use crate::events::{self, EventKind, NewEvent};
use crate::{members, spec};

/// Boxes in one call.
pub const BOXES_MAX: usize = 2_000;
/// Older epochs of a topic whose boxes are kept for subscribers that were away.
const EPOCHS_KEPT_MAX: i64 = 256;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UploadEpoch {
    pub mesh: MeshId,
    pub member: MemberId,
    /// The member's key, which has signed the boxes.
    pub key: PublicKey,
    pub topic: TopicName,
    pub epoch: u32,
    pub boxes: Vec<EpochBox>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EpochUploaded {
    /// Posts are made with this epoch's key, whoever has made it. Whoever uploaded boxes opens its own like everybody else.
    pub switched: bool,
    /// Subscribers that had no box. Nothing was kept of such a call: it is asked for again, with all of them.
    pub missing: i64,
}

impl UploadEpoch {
    fn params(&self) -> [Value<'_>; 2] {
        [Value::from(self.mesh.as_bytes()), Value::from(self.topic.as_str())]
    }

    async fn clear(&self, tx: &mut Tx<'_>, topic: &Locked) -> Result<()> {
        const CLEAR: &str =
            "DELETE FROM mesh_epoch_boxes WHERE tenant = $1 AND mesh_id = $2 AND topic = $3 AND epoch > $4";
        let [mesh, name] = self.params();
        tx.execute(CLEAR, &[mesh, name, Value::from(topic.epoch)]).await.map(drop)
    }

    async fn insert(&self, tx: &mut Tx<'_>) -> Result<()> {
        const INSERT: &str = "INSERT INTO mesh_epoch_boxes (tenant, mesh_id, topic, epoch, member_id, minter_key, epoch_box) \
            SELECT $1, $2, $3, $4, k.member_id, $5, $6 FROM mesh_keys k JOIN mesh_subscriptions s ON s.tenant = $1 \
            AND s.mesh_id = k.mesh_id AND s.topic = $3 AND s.member_id = k.member_id \
            WHERE k.tenant = $1 AND k.mesh_id = $2 AND k.ed25519 = $7 AND k.state = 'current' ON CONFLICT DO NOTHING";
        let texts = self.boxes.iter().map(serde_json::to_string).collect::<std::result::Result<Vec<_>, _>>();
        let texts = texts.map_err(Error::internal)?;
        let all: Vec<(&EpochBox, &String)> = self.boxes.iter().zip(&texts).collect();
        let ([mesh, topic], epoch) = (self.params(), Value::from(i64::from(self.epoch)));
        let minter = Value::from(&self.key.as_bytes()[..]);
        for some in all.chunks(STATEMENTS_MAX) {
            let statements: Vec<Statement<'_>> = some
                .iter()
                .map(|(of, text)| {
                    let recipient = Value::from(&of.recipient.as_bytes()[..]);
                    (INSERT, vec![mesh, topic, epoch, minter, Value::from(*text), recipient])
                })
                .collect();
            tx.execute_all(&statements).await?;
        }
        Ok(())
    }

    async fn missing(&self, tx: &mut Tx<'_>) -> Result<i64> {
        const MISSING: &str = "SELECT count(*) FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = $2 AND s.topic = $3 \
            AND NOT EXISTS (SELECT 1 FROM mesh_epoch_boxes b WHERE b.tenant = $1 AND b.mesh_id = s.mesh_id \
            AND b.topic = s.topic AND b.epoch = $4 AND b.member_id = s.member_id)";
        let [mesh, topic] = self.params();
        let row = tx.query_opt(MISSING, &[mesh, topic, Value::from(i64::from(self.epoch))]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    async fn switch(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        // A topic that was blocked before there were floors has no other sign of why it waits.
        const SWITCH: &str = "UPDATE mesh_topics SET epoch = $4, pending_epoch = NULL, blocked = 0, floor_pending = 0, \
            floor_epoch = CASE WHEN floor_pending = 1 OR blocked = 1 THEN $4 ELSE floor_epoch END WHERE tenant = $1 \
            AND mesh_id = $2 AND topic = $3";
        const FORGET: &str =
            "DELETE FROM mesh_epoch_boxes WHERE tenant = $1 AND mesh_id = $2 AND topic = $3 AND epoch < $4";
        let ([mesh, name], epoch) = (self.params(), i64::from(self.epoch));
        tx.execute(SWITCH, &[mesh, name, Value::from(epoch)]).await?;
        tx.execute(FORGET, &[mesh, name, Value::from(epoch - EPOCHS_KEPT_MAX)]).await?;
        let data = json!({ "topic": self.topic, "epoch": self.epoch });
        events::record(ctx, tx, self.mesh, &[NewEvent::of(EventKind::EpochSwitched, self.member, data)]).await
    }
}

impl Operation for UploadEpoch {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("upload_epoch") };
    const PREPARES: bool = true;
    type Output = EpochUploaded;

    fn prepare(&mut self, _: &dyn Entropy) -> Result<()> {
        if self.boxes.is_empty() || self.boxes.len() > BOXES_MAX {
            return Err(Error::invalid(format!("`boxes` has 1 to {BOXES_MAX} entries.")));
        }
        let of = EpochOf { mesh: self.mesh, topic: &self.topic, epoch: self.epoch };
        self.boxes.iter().try_for_each(|boxed| boxed.verify(of, &self.key))
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<EpochUploaded>> {
        const SUBSCRIBED: &str = "SELECT 1 FROM mesh_subscriptions WHERE tenant = $1 AND mesh_id = $2 AND topic = $3 \
                                  AND member_id = $4";
        let live = members::live(tx, self.mesh, self.member).await?;
        if live.keys.ed25519 != self.key {
            return Err(members::revoked());
        }
        let topic = super::lock(tx, self.mesh, &self.topic).await?;
        let [mesh, name] = self.params();
        if tx.query_opt(SUBSCRIBED, &[mesh, name, Value::from(self.member.as_bytes())]).await?.is_none() {
            return Err(Error::new(Code::NotSubscribed, "Only subscribers make the keys of a topic."));
        }
        if topic.epoch == i64::from(self.epoch) {
            return Ok(Reply::Done(EpochUploaded { switched: true, missing: 0 }));
        }
        if topic.pending != Some(i64::from(self.epoch)) {
            return Err(Error::new(Code::EpochUnknown, "The topic waits for no such epoch."));
        }
        self.clear(tx, &topic).await?;
        self.insert(tx).await?;
        let missing = self.missing(tx).await?;
        if missing == 0 {
            self.switch(ctx, tx).await?;
        } else {
            self.clear(tx, &topic).await?;
        }
        Ok(Reply::Done(EpochUploaded { switched: missing == 0, missing }))
    }
}
