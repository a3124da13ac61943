//! What has happened to a mesh: the audit, and what those who are connected are told. Written in the transaction that makes it
//! happen, numbered in the order of commits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{MemberId, MeshId};
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value};

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
    // In the program's own work the tenant is the one that it acts for.
    if let Some(tenant) = tx.tenant() {
        tx.wake(events_topic(tenant, mesh), u32::MAX);
    }
    Ok(())
}
