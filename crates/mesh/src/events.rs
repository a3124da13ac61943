//! What has happened to a mesh: the audit, and what those who are connected are told. Written in the transaction that makes it
//! happen, numbered in the order of commits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value};

use crate::audit::{self, AuditId};
use crate::counters::{self, Counter};
use crate::wakes::events_topic;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[schemars(inline)]
        pub enum EventKind { $($(#[$doc])* #[serde(rename = $name)] $kind),+ }

        impl EventKind {
            pub const ALL: &'static [EventKind] = &[$(EventKind::$kind),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(EventKind::$kind => $name),+ }
            }

            pub(crate) fn read(stored: &str) -> Result<Self> {
                let known = Self::ALL.iter().copied().find(|kind| kind.as_str() == stored);
                known.ok_or_else(|| Error::internal(format!("an event is of the kind {stored}")))
            }
        }
    };
}

kinds! {
    MeshCreated = "mesh_created",
    PolicyChanged = "policy_changed",
    InviteIssued = "invite_issued",
    /// `data`: `name`, `keys`, `invite_id`.
    MemberJoined = "member_joined",
    /// `data`: `key`, `name`.
    MemberLeft = "member_left",
    /// `data`: `key`, `from`, `to`.
    MemberRenamed = "member_renamed",
    /// `data`: `name`, `rotation`.
    MemberKeypairRotated = "member_keypair_rotated",
    /// `data`: `key`, `name`, `by`.
    MemberRevoked = "member_revoked",
    /// `data`: `policy`, `siblings`, `connection`.
    MemberConcurrentConnection = "member_concurrent_connection",
    /// A member has connected that was not. `data`: `name`, `keys`, `visible`.
    PeerJoin = "peer_join",
    /// A member's last connection has ended. `data`: `key`, `visible`.
    PeerLeave = "peer_leave",
    TopicCreated = "topic_created",
    TopicSubscribed = "topic_subscribed",
    TopicUnsubscribed = "topic_unsubscribed",
    /// A topic needs a new key. `member` is who is to make it, absent while no subscriber is connected; `data`: `topic`, `epoch`.
    EpochRequested = "epoch_requested",
    /// Posts are made with a new key, which subscribers may fetch. `data`: `topic`, `epoch`.
    EpochSwitched = "epoch_switched",
    /// Members may send to a queue of the tenant. `data`: `queue`.
    QueueAllowed = "queue_allowed",
    /// `data`: `queue`.
    QueueDisallowed = "queue_disallowed",
    /// `data`: `file_id`, and `topic` or `to` if it is not for everybody.
    FileShared = "file_shared",
}

impl EventKind {
    /// What the tenant is told of it as; None for what only those who are connected need.
    pub const fn audit_name(self) -> Option<&'static str> {
        Some(match self {
            EventKind::MeshCreated => "mesh.mesh_created",
            EventKind::PolicyChanged => "mesh.policy_changed",
            EventKind::InviteIssued => "mesh.invite_issued",
            EventKind::MemberJoined => "mesh.member_joined",
            EventKind::MemberLeft => "mesh.member_left",
            EventKind::MemberRenamed => "mesh.member_renamed",
            EventKind::MemberKeypairRotated => "mesh.member_keypair_rotated",
            EventKind::MemberRevoked => "mesh.member_revoked",
            EventKind::MemberConcurrentConnection => "mesh.member_concurrent_connection",
            EventKind::TopicCreated => "mesh.topic_created",
            EventKind::QueueAllowed => "mesh.queue_allowed",
            EventKind::QueueDisallowed => "mesh.queue_disallowed",
            EventKind::PeerJoin
            | EventKind::PeerLeave
            | EventKind::TopicSubscribed
            | EventKind::TopicUnsubscribed
            | EventKind::EpochRequested
            | EventKind::EpochSwitched
            | EventKind::FileShared => return None,
        })
    }
}

pub(crate) struct NewEvent {
    pub kind: EventKind,
    pub member: Option<MemberId>,
    pub data: Json,
}

impl NewEvent {
    pub(crate) fn of(kind: EventKind, member: MemberId, data: Json) -> Self {
        Self { kind, member: Some(member), data }
    }
}

/// The last thing that an operation writes: from here to its commit nobody else can write an event of the mesh.
pub(crate) async fn record(ctx: &Ctx<'_>, tx: &mut Tx<'_>, mesh: MeshId, events: &[NewEvent]) -> Result<()> {
    const INSERT: &str = "INSERT INTO mesh_events (tenant, mesh_id, seq, kind, member_id, data, at) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7)";
    if events.is_empty() {
        return Ok(());
    }
    let last = counters::take(tx, mesh, Counter::Events, events.len()).await?;
    let first = last + 1 - i64::try_from(events.len()).unwrap_or(i64::MAX);
    let texts: Vec<String> = events.iter().map(|event| event.data.to_string()).collect();
    let rows: Vec<(i64, &NewEvent, &String)> =
        (first..).zip(events.iter().zip(&texts)).map(|(seq, (event, text))| (seq, event, text)).collect();
    for some in rows.chunks(STATEMENTS_MAX) {
        let mut statements: Vec<Statement<'_>> = Vec::with_capacity(some.len());
        for (seq, event, text) in some {
            let params = vec![
                Value::from(mesh.as_bytes()),
                Value::from(*seq),
                Value::from(event.kind.as_str()),
                Value::from(event.member.as_ref().map(MemberId::as_bytes)),
                Value::from(text.as_str()),
                Value::from(ctx.now),
            ];
            statements.push((INSERT, params));
        }
        tx.execute_all(&statements).await?;
    }
    note_for_audit(ctx, tx, mesh, &rows).await?;
    // In the program's own work the tenant is the one that it acts for.
    if let Some(tenant) = tx.tenant() {
        tx.wake(events_topic(tenant, mesh), u32::MAX);
    }
    Ok(())
}

/// Those that the tenant may be told of, in the order of feeds.
async fn note_for_audit(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    mesh: MeshId,
    rows: &[(i64, &NewEvent, &String)],
) -> Result<()> {
    const INSERT: &str = "INSERT INTO mesh_audit (tenant, event_id, mesh_id, event_seq, kind, at) \
                          VALUES ($1, $2, $3, $4, $5, $6)";
    let audited = rows.iter().filter(|(_, event, _)| event.kind.audit_name().is_some());
    let audited: Vec<(AuditId, i64, EventKind)> =
        audited.map(|(seq, event, _)| (AuditId(ctx.ids.next()), *seq, event.kind)).collect();
    for some in audited.chunks(STATEMENTS_MAX) {
        let mut statements: Vec<Statement<'_>> = Vec::with_capacity(some.len());
        for (id, seq, kind) in some {
            let params = vec![
                Value::from(id.as_bytes()),
                Value::from(mesh.as_bytes()),
                Value::from(*seq),
                Value::from(kind.as_str()),
                Value::from(ctx.now),
            ];
            statements.push((INSERT, params));
        }
        tx.execute_all(&statements).await?;
    }
    if !audited.is_empty() {
        tx.wake(audit::written(), u32::MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_the_audit_is_the_kind_with_its_prefix() {
        for kind in EventKind::ALL {
            let Some(name) = kind.audit_name() else { continue };
            assert_eq!(name, format!("{}{}", audit::PREFIX, kind.as_str()));
        }
    }
}
