//! The topics of a mesh.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{OperationSpec, Result, Time};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::{members, rows, spec};

const PAGE_DEFAULT: u32 = 200;
pub const PAGE_MAX: u32 = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTopics {
    pub mesh: MeshId,
    pub member: MemberId,
    /// How many at most; 200 when left out, 1,000 when more is asked for.
    #[serde(default)]
    pub limit: Option<u32>,
    /// `next_after` of the page before.
    #[serde(default)]
    pub after: Option<String>,
}

/// By name.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Topics {
    pub topics: Vec<TopicView>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_after: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct TopicView {
    pub topic: String,
    pub subscribers: i64,
    /// Is whoever asks one of them?
    pub subscribed: bool,
    /// The key that posts are encrypted with; 0 where there is none.
    pub epoch: u32,
    /// The key that is being made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_epoch: Option<u32>,
    /// Posts wait for that key.
    pub blocked: bool,
    pub created_at: Time,
}

impl TopicView {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            topic: row.text(0)?.to_owned(),
            epoch: rows::number(row, 1)?,
            pending_epoch: row.int_opt(2)?.map(u32::try_from).transpose().map_err(waybill_kernel::Error::internal)?,
            blocked: row.bool(3)?,
            created_at: row.time(4)?,
            subscribers: row.int(5)?,
            subscribed: row.int(6)? > 0,
        })
    }
}

impl Operation for ListTopics {
    const SPEC: OperationSpec = spec::read("list_topics");
    type Output = Topics;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Topics>> {
        const LIST: &str = "SELECT t.topic, t.epoch, t.pending_epoch, t.blocked, t.created_at, \
            (SELECT count(*) FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = t.mesh_id AND s.topic = t.topic), \
            (SELECT count(*) FROM mesh_subscriptions o WHERE o.tenant = $1 AND o.mesh_id = t.mesh_id AND o.topic = t.topic \
            AND o.member_id = $3) FROM mesh_topics t WHERE t.tenant = $1 AND t.mesh_id = $2 AND t.topic > $4 \
            ORDER BY t.topic LIMIT $5";
        members::live(tx, self.mesh, self.member).await?;
        let limit = self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(self.after.as_deref().unwrap_or_default()),
            Value::from(i64::from(limit) + 1),
        ];
        let rows = tx.query(LIST, &params).await?;
        let is_more = rows.len() > limit as usize;
        let topics = rows.iter().take(limit as usize).map(TopicView::read).collect::<Result<Vec<_>>>()?;
        let next_after = topics.last().filter(|_| is_more).map(|topic| topic.topic.clone());
        Ok(Reply::Done(Topics { topics, next_after }))
    }
}
