//! What was sent to a member, in the order of commits, acknowledged or not.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, OperationSpec, Result};
use waybill_mesh_protocol::frames::{HistoryPage, Message};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use super::{message, message_columns, message_tables};
use crate::{members, spec};

/// Messages in one answer: each may have an envelope of the largest size.
pub const PAGE_MAX: u32 = 32;
/// Rows of the mesh's history that one call looks at: most of them may be for others.
const LOOKED_AT_MAX: i64 = 1_000;

/// Direct messages to the member, and posts of others to topics that it subscribes to, from when it did.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadHistory {
    pub mesh: MeshId,
    pub member: MemberId,
    /// The last sequence number that was seen; 0 for all that there is.
    #[serde(default)]
    pub after: u64,
    #[serde(default)]
    pub limit: Option<u32>,
    /// Only those that mention the member.
    #[serde(default)]
    pub mentions: bool,
}

/// What is for the member, of the history `y`; further conditions, the order and the end of the page follow.
macro_rules! page {
    () => {
        " FROM (SELECT y.mesh_id, y.seq, y.history_id, y.message_id FROM mesh_history y \
         WHERE y.tenant = $1 AND y.mesh_id = $2 AND y.seq > $4 AND y.seq <= $5 AND (y.recipient = $3 \
         OR y.sender <> $3 AND EXISTS (SELECT 1 FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = y.mesh_id \
         AND s.topic = y.topic AND s.member_id = $3 AND s.since_seq < y.seq))"
    };
}

impl ReadHistory {
    /// The last row that this call looks at.
    async fn horizon(&self, tx: &mut Tx<'_>, after: i64) -> Result<Option<i64>> {
        const HORIZON: &str = "SELECT max(h.seq) FROM (SELECT seq FROM mesh_history WHERE tenant = $1 AND mesh_id = $2 \
                               AND seq > $3 ORDER BY seq LIMIT $4) AS h";
        let params = [Value::from(self.mesh.as_bytes()), Value::from(after), Value::from(LOOKED_AT_MAX)];
        tx.query_opt(HORIZON, &params).await?.map_or(Ok(None), |row| row.int_opt(0))
    }

    async fn read(&self, tx: &mut Tx<'_>, after: i64, horizon: i64, limit: u32) -> Result<Vec<Row>> {
        const ALL: &str = concat!(
            "SELECT ",
            message_columns!(),
            page!(),
            " ORDER BY y.seq LIMIT $6) y",
            message_tables!(),
            "ORDER BY y.seq"
        );
        const MENTIONS: &str = concat!(
            "SELECT ",
            message_columns!(),
            page!(),
            " AND EXISTS (SELECT 1 FROM mesh_mentions n WHERE n.tenant = $1 AND n.mesh_id = y.mesh_id \
             AND n.message_id = y.message_id AND n.member_id = $3) ORDER BY y.seq LIMIT $6) y",
            message_tables!(),
            "ORDER BY y.seq"
        );
        let params = [
            Value::from(self.mesh.as_bytes()),
            Value::from(self.member.as_bytes()),
            Value::from(after),
            Value::from(horizon),
            Value::from(i64::from(limit)),
        ];
        tx.query(if self.mentions { MENTIONS } else { ALL }, &params).await
    }
}

impl Operation for ReadHistory {
    const SPEC: OperationSpec = spec::read("read_history");
    type Output = HistoryPage;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<HistoryPage>> {
        let after = i64::try_from(self.after).map_err(|_| Error::invalid("`after` is no number of a message."))?;
        let limit = self.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        members::live(tx, self.mesh, self.member).await?;
        let Some(horizon) = self.horizon(tx, after).await? else {
            return Ok(Reply::Done(HistoryPage { messages: Vec::new(), next_after: self.after, more: false }));
        };
        let rows = self.read(tx, after, horizon, limit).await?;
        let messages = rows.iter().map(message).collect::<Result<Vec<Message>>>()?;
        let is_full = messages.len() == limit as usize;
        let last = messages.last().filter(|_| is_full).map(|message| message.seq);
        let next_after = last.map_or_else(|| u64::try_from(horizon).map_err(Error::internal), Ok)?;
        // What was committed since, or is behind the horizon, is found by the next call.
        let next = i64::try_from(next_after).map_err(Error::internal)?;
        let more = is_full || self.horizon(tx, next).await?.is_some();
        Ok(Reply::Done(HistoryPage { messages, next_after, more }))
    }
}
