//! Create a topic. Whoever creates it subscribes to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use waybill_kernel::{Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{MemberId, MeshId, TopicName};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use super::subscribe;
use crate::epochs::{self, Reason};
use crate::events::{self, EventKind, NewEvent};
use crate::{Settings, members, metrics, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTopic {
    pub mesh: MeshId,
    pub member: MemberId,
    pub topic: TopicName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedTopic {
    pub topic: TopicName,
    /// False on a plaintext mesh, true until the topic has its first key.
    pub epoch_pending: bool,
}

impl Operation for CreateTopic {
    const SPEC: OperationSpec = OperationSpec { status: 201, ..spec::write("create_topic") };
    type Output = CreatedTopic;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedTopic>> {
        const TAKEN: &str = "SELECT 1 FROM mesh_topics WHERE tenant = $1 AND mesh_id = $2 AND topic = $3";
        const INSERT: &str = "INSERT INTO mesh_topics (tenant, mesh_id, topic, created_by, created_at, epoch, blocked) \
            SELECT $1, $2, $3, $4, $5, 0, 0 WHERE (SELECT count(*) FROM mesh_topics WHERE tenant = $1 AND mesh_id = $2) < $6";
        let max = ctx.settings::<Settings>().topics_max;
        tx.in_turn(Topic::new("mesh.topics", ctx.caller.tenant, self.mesh.as_bytes())).await?;
        // Against the end of the membership, as whoever subscribes to a topic that there is.
        members::lock(tx, self.mesh, self.member).await?;
        let live = members::live(tx, self.mesh, self.member).await?;
        let [mesh, topic] = [Value::from(self.mesh.as_bytes()), Value::from(self.topic.as_str())];
        if tx.query_opt(TAKEN, &[mesh, topic]).await?.is_some() {
            return Err(Error::new(Code::AlreadyExists, format!("The mesh has a topic {} already.", self.topic)));
        }
        let params = [mesh, topic, Value::from(self.member.as_bytes()), Value::from(ctx.now), Value::from(max)];
        if tx.execute(INSERT, &params).await? == 0 {
            metrics::capped("topics");
            let message = format!("The mesh has {max} topics, which is as many as it may have.");
            return Err(Error::new(Code::TooManyTopics, message).with("limit", max));
        }
        subscribe::insert(ctx, tx, self.mesh, self.member, &self.topic).await?;
        let mut events = vec![NewEvent::of(EventKind::TopicCreated, self.member, json!({ "topic": self.topic }))];
        let topics = [self.topic.to_string()];
        events.extend(epochs::demand(ctx, tx, self.mesh, &topics, Reason::Joined).await?);
        events::record(ctx, tx, self.mesh, &events).await?;
        Ok(Reply::Done(CreatedTopic { topic: self.topic.clone(), epoch_pending: !live.plaintext }))
    }
}
