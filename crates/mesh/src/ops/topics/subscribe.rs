//! Subscribe to a topic: from now on its posts are delivered, and on an encrypted mesh its next key is made for this member too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId, TopicName};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::counters::{self, Counter};
use crate::epochs::{self, Reason};
use crate::events::{self, EventKind, NewEvent};
use crate::{Settings, members, metrics, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    pub mesh: MeshId,
    pub member: MemberId,
    pub topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Subscribed {
    pub topic: TopicName,
    /// False for one who was a subscriber already.
    pub is_new: bool,
}

/// False where there is one already.
pub(super) async fn insert(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    member: MemberId,
    topic: &TopicName,
) -> Result<bool> {
    const INSERT: &str = "INSERT INTO mesh_subscriptions (tenant, mesh_id, topic, member_id, since_seq, created_at) \
                          VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";
    let since = counters::last(tx, mesh, Counter::History).await?;
    let params = [
        Value::from(mesh.as_bytes()),
        Value::from(topic.as_str()),
        Value::from(member.as_bytes()),
        Value::from(since),
        Value::from(ctx.now),
    ];
    Ok(tx.execute(INSERT, &params).await? == 1)
}

impl Subscribe {
    async fn check_room(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const COUNT: &str = "SELECT count(*) FROM mesh_subscriptions WHERE tenant = $1 AND mesh_id = $2 AND topic = $3";
        let max = ctx.settings::<Settings>().encrypted_subscribers_max;
        let row = tx.query_opt(COUNT, &[Value::from(self.mesh.as_bytes()), Value::from(self.topic.as_str())]).await?;
        if row.map_or(Ok(0), |row| row.int(0))? <= max {
            return Ok(());
        }
        metrics::capped("subscribers");
        let message = format!("The topic has {max} subscribers, which is as many as it may have.");
        Err(Error::new(Code::TooManySubscribers, message).with("limit", max))
    }
}

impl Operation for Subscribe {
    const SPEC: OperationSpec = OperationSpec { repeatable: true, ..spec::write("subscribe") };
    type Output = Subscribed;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Subscribed>> {
        // Against the end of the membership: no subscription is left behind.
        members::lock(tx, self.mesh, self.member).await?;
        let live = members::live(tx, self.mesh, self.member).await?;
        super::lock(tx, self.mesh, &self.topic).await?;
        let is_new = insert(ctx, tx, self.mesh, self.member, &self.topic).await?;
        if is_new {
            if !live.plaintext {
                self.check_room(ctx, tx).await?;
            }
            let data = json!({ "topic": self.topic, "name": live.name });
            let mut events = vec![NewEvent::of(EventKind::TopicSubscribed, self.member, data)];
            let topics = [self.topic.to_string()];
            events.extend(epochs::demand(ctx, tx, self.mesh, &topics, Reason::Joined).await?);
            events::record(ctx, tx, self.mesh, &events).await?;
        }
        Ok(Reply::Done(Subscribed { topic: self.topic.clone(), is_new }))
    }
}
