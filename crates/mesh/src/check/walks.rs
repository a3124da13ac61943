//! One walk over each table of a mesh's messages, some rows at a time. Each window is one statement, which sees one state of the
//! database: rows that are written meanwhile are seen with all that belongs to them or not at all.

use waybill_kernel::{Error, Result, Time};
use waybill_mesh_protocol::{MemberId, MeshId, MessageId};
use waybill_store::{Row, Tx, Value};

use super::{
    DEDUPE_OF_ANOTHER_MESSAGE, DEDUPE_WITHOUT_MESSAGE, DELIVERY_WITHOUT_DEDUPE, DELIVERY_WITHOUT_MESSAGE, Finding,
    HISTORY_WITHOUT_MESSAGE, MENTION_WITHOUT_MESSAGE, MENTIONS_DIFFER, MESSAGE_WITHOUT_DEDUPE, MESSAGE_WITHOUT_HISTORY,
    PRUNED_MESSAGE_THERE,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    Dedupe,
    Messages,
    History,
    Deliveries,
    Mentions,
}

impl Walk {
    pub(crate) const ALL: [Walk; 5] = [Walk::Dedupe, Walk::Messages, Walk::History, Walk::Deliveries, Walk::Mentions];

    pub(crate) const fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn numbered(number: i64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    pub(crate) fn next(self) -> Option<Self> {
        Self::numbered(self.number() + 1)
    }

    /// Whether these bytes can be the key of a row of this walk; nothing is before all of them.
    pub(crate) fn is_key(self, key: &[u8]) -> bool {
        match self {
            _ if key.is_empty() => true,
            Walk::Dedupe => std::str::from_utf8(key).is_ok_and(|text| !text.contains('\0')),
            Walk::Messages => key.len() == 16,
            Walk::History => key.len() == 8,
            Walk::Deliveries => key.len() == 16 + 8,
            Walk::Mentions => key.len() == 16 + 16,
        }
    }

    const fn statement(self) -> &'static str {
        match self {
            Walk::Dedupe => {
                "SELECT d.client_message_id, d.history_available, g.client_message_id FROM (SELECT mesh_id, client_message_id, \
                 message_id, history_available FROM mesh_dedupe WHERE tenant = $1 AND mesh_id = $2 \
                 AND client_message_id > $3 ORDER BY client_message_id LIMIT $4) AS d LEFT JOIN mesh_messages g \
                 ON g.tenant = $1 AND g.mesh_id = d.mesh_id AND g.message_id = d.message_id ORDER BY d.client_message_id"
            }
            Walk::Messages => {
                "SELECT g.message_id, g.dedupe_until, g.mentions, d.history_available, y.seq, (SELECT count(*) \
                 FROM mesh_mentions n WHERE n.tenant = $1 AND n.mesh_id = g.mesh_id AND n.message_id = g.message_id) \
                 FROM (SELECT mesh_id, message_id, client_message_id, dedupe_until, mentions, seq FROM mesh_messages \
                 WHERE tenant = $1 AND mesh_id = $2 AND message_id > $3 ORDER BY message_id LIMIT $4) AS g \
                 LEFT JOIN mesh_dedupe d ON d.tenant = $1 AND d.mesh_id = g.mesh_id \
                 AND d.client_message_id = g.client_message_id AND d.message_id = g.message_id \
                 LEFT JOIN mesh_history y ON y.tenant = $1 AND y.mesh_id = g.mesh_id AND y.seq = g.seq \
                 AND y.message_id = g.message_id ORDER BY g.message_id"
            }
            Walk::History => {
                "SELECT y.seq, g.seq FROM (SELECT mesh_id, seq, message_id FROM mesh_history WHERE tenant = $1 AND mesh_id = $2 \
                 AND seq > $3 ORDER BY seq LIMIT $4) AS y LEFT JOIN mesh_messages g ON g.tenant = $1 \
                 AND g.mesh_id = y.mesh_id AND g.message_id = y.message_id AND g.seq = y.seq ORDER BY y.seq"
            }
            Walk::Deliveries => {
                "SELECT v.member_id, v.seq, g.message_id, g.dedupe_until, d.history_available FROM (SELECT mesh_id, member_id, \
                 seq, message_id FROM mesh_deliveries WHERE tenant = $1 AND mesh_id = $2 AND (member_id, seq) > ($3, $5) \
                 ORDER BY member_id, seq LIMIT $4) AS v LEFT JOIN mesh_messages g ON g.tenant = $1 \
                 AND g.mesh_id = v.mesh_id AND g.message_id = v.message_id LEFT JOIN mesh_dedupe d ON d.tenant = $1 \
                 AND d.mesh_id = g.mesh_id AND d.client_message_id = g.client_message_id AND d.message_id = g.message_id \
                 ORDER BY v.member_id, v.seq"
            }
            Walk::Mentions => {
                "SELECT n.message_id, n.member_id, g.message_id FROM (SELECT mesh_id, message_id, member_id FROM mesh_mentions \
                 WHERE tenant = $1 AND mesh_id = $2 AND (message_id, member_id) > ($3, $5) \
                 ORDER BY message_id, member_id LIMIT $4) AS n LEFT JOIN mesh_messages g ON g.tenant = $1 \
                 AND g.mesh_id = n.mesh_id AND g.message_id = n.message_id ORDER BY n.message_id, n.member_id"
            }
        }
    }

    /// What is wrong about a row, and the key to go on from.
    fn judge(self, row: &Row, now: Time) -> Result<(Vec<Finding>, Vec<u8>)> {
        match self {
            Walk::Dedupe => dedupe(row),
            Walk::Messages => message(row, now),
            Walk::History => history(row),
            Walk::Deliveries => delivery(row, now),
            Walk::Mentions => mention(row),
        }
    }
}

/// What one window came to.
pub(crate) struct Step {
    pub looked_at: i64,
    pub findings: Vec<Finding>,
    /// The last key that was looked at; None at the end of the walk.
    pub next: Option<Vec<u8>>,
}

/// Looks at up to `limit` rows after a key. An empty key is before all others.
pub(crate) async fn step(
    tx: &mut Tx<'_>,
    now: Time,
    mesh: MeshId,
    walk: Walk,
    after: &[u8],
    limit: i64,
) -> Result<Step> {
    let id = Value::from(mesh.as_bytes());
    let rows = match walk {
        Walk::Dedupe => {
            let after = std::str::from_utf8(after).map_err(Error::internal)?;
            tx.query(walk.statement(), &[id, Value::from(after), Value::from(limit)]).await?
        }
        Walk::Messages => tx.query(walk.statement(), &[id, Value::from(after), Value::from(limit)]).await?,
        Walk::History => tx.query(walk.statement(), &[id, Value::from(number(after)?), Value::from(limit)]).await?,
        Walk::Deliveries => {
            let (member, seq) = after.split_at(after.len().min(16));
            let params = [id, Value::from(member), Value::from(limit), Value::from(number(seq)?)];
            tx.query(walk.statement(), &params).await?
        }
        Walk::Mentions => {
            let (message, member) = after.split_at(after.len().min(16));
            let params = [id, Value::from(message), Value::from(limit), Value::from(member)];
            tx.query(walk.statement(), &params).await?
        }
    };
    let (mut findings, mut last) = (Vec::new(), None);
    for row in &rows {
        let (found, key) = walk.judge(row, now)?;
        findings.extend(found);
        last = Some(key);
    }
    let looked_at = i64::try_from(rows.len()).map_err(Error::internal)?;
    Ok(Step { looked_at, findings, next: last.filter(|_| looked_at == limit) })
}

fn number(key: &[u8]) -> Result<i64> {
    if key.is_empty() {
        return Ok(0);
    }
    key.try_into().map(i64::from_be_bytes).map_err(Error::internal)
}

fn found(kind: &'static str, id: impl ToString) -> Finding {
    Finding { kind, id: id.to_string() }
}

fn dedupe(row: &Row) -> Result<(Vec<Finding>, Vec<u8>)> {
    let (id, available, of) = (row.text(0)?, row.bool(1)?, row.text_opt(2)?);
    let kind = match of {
        None if available => Some(DEDUPE_WITHOUT_MESSAGE),
        None => None,
        Some(of) if of != id => Some(DEDUPE_OF_ANOTHER_MESSAGE),
        Some(_) if !available => Some(PRUNED_MESSAGE_THERE),
        Some(_) => None,
    };
    Ok((kind.map(|kind| found(kind, id)).into_iter().collect(), id.as_bytes().to_vec()))
}

/// The row of the id is to be there, or its time is over.
fn may_be_alone(row: &Row, until: usize, dedupe: usize, now: Time) -> Result<bool> {
    Ok(row.int_opt(dedupe)?.is_some() || row.time_opt(until)?.is_some_and(|until| until <= now))
}

fn message(row: &Row, now: Time) -> Result<(Vec<Finding>, Vec<u8>)> {
    let id = MessageId::from_slice(row.bytes(0)?)?;
    let mut findings = Vec::new();
    if !may_be_alone(row, 1, 3, now)? {
        findings.push(found(MESSAGE_WITHOUT_DEDUPE, id));
    }
    if row.int_opt(4)?.is_none() {
        findings.push(found(MESSAGE_WITHOUT_HISTORY, id));
    }
    if row.int(2)? != row.int(5)? {
        findings.push(found(MENTIONS_DIFFER, id));
    }
    Ok((findings, row.bytes(0)?.to_vec()))
}

fn history(row: &Row) -> Result<(Vec<Finding>, Vec<u8>)> {
    let seq = row.int(0)?;
    let finding = row.int_opt(1)?.is_none().then(|| found(HISTORY_WITHOUT_MESSAGE, format!("history {seq}")));
    Ok((finding.into_iter().collect(), seq.to_be_bytes().to_vec()))
}

fn delivery(row: &Row, now: Time) -> Result<(Vec<Finding>, Vec<u8>)> {
    let (member, seq) = (MemberId::from_slice(row.bytes(0)?)?, row.int(1)?);
    let id = || format!("delivery {seq} to {member}");
    let finding = if row.bytes_opt(2)?.is_none() {
        Some(found(DELIVERY_WITHOUT_MESSAGE, id()))
    } else if !may_be_alone(row, 3, 4, now)? {
        Some(found(DELIVERY_WITHOUT_DEDUPE, id()))
    } else {
        None
    };
    Ok((finding.into_iter().collect(), [row.bytes(0)?, &seq.to_be_bytes()].concat()))
}

fn mention(row: &Row) -> Result<(Vec<Finding>, Vec<u8>)> {
    let (message, member) = (MessageId::from_slice(row.bytes(0)?)?, MemberId::from_slice(row.bytes(1)?)?);
    let is_alone = row.bytes_opt(2)?.is_none();
    let finding = is_alone.then(|| found(MENTION_WITHOUT_MESSAGE, format!("mention of {member} in {message}")));
    Ok((finding.into_iter().collect(), [row.bytes(0)?, row.bytes(1)?].concat()))
}
