//! Unsubscribe from a topic. What is not yet acknowledged is still delivered: it was posted for this member, too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId, TopicName};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::epochs::{self, Reason};
use crate::events::{self, EventKind, NewEvent};
use crate::{members, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unsubscribe {
    pub mesh: MeshId,
    pub member: MemberId,
    pub topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Unsubscribed {
    pub topic: TopicName,
    /// False for one who was no subscriber.
    pub was_subscribed: bool,
}

impl Operation for Unsubscribe {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, relieves: true, ..spec::write("unsubscribe") };
    type Output = Unsubscribed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Unsubscribed>> {
        const DELETE: &str = "DELETE FROM mesh_subscriptions WHERE tenant = $1 AND mesh_id = $2 AND topic = $3 \
                              AND member_id = $4";
        // Before the topic, as whoever ends the membership does it.
        members::lock(tx, self.mesh, self.member).await?;
        members::live(tx, self.mesh, self.member).await?;
        super::lock(tx, self.mesh, &self.topic).await?;
        let ids = [self.mesh.as_bytes(), self.member.as_bytes()].map(Value::from);
        let was_subscribed = tx.execute(DELETE, &[ids[0], Value::from(self.topic.as_str()), ids[1]]).await? == 1;
        if was_subscribed {
            let data = json!({ "topic": self.topic });
            let mut events = vec![NewEvent::of(EventKind::TopicUnsubscribed, self.member, data)];
            let topics = [self.topic.to_string()];
            events.extend(epochs::demand(ctx, tx, self.mesh, &topics, Reason::Left).await?);
            events::record(ctx, tx, self.mesh, &events).await?;
        }
        Ok(Reply::Done(Unsubscribed { topic: self.topic.clone(), was_subscribed }))
    }
}
