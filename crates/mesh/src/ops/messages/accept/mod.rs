//! Accept a message. Four phases, in this order:
//!
//! - B0 looks for an earlier message under the same id. It writes nothing and touches no budget, so a message that was accepted
//!   is answered the same however full the window is and whatever has become of its sender since.
//! - B1 checks what can be checked without a transaction, and last asks the limiter.
//! - B2 and B3 are one transaction (`commit.rs`): the id is claimed, the destination looked at, and everything that the message
//!   consists of written. Whatever fails there leaves nothing, the claim included.

mod commit;
mod look;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, OperationSpec, Result, Time};
use waybill_mesh_protocol::{
    ClientMessageId, DestinationKind, Envelope, Fingerprint, HistoryId, MemberId, MeshId, MessageId, PublicKey,
};
use waybill_store::{Answered, Flow, Procedure, Reply, Row, Store};

use self::commit::Commit;
use self::look::Look;
pub use self::look::{LOOKS_MAX, Looked, look_together};
use crate::limiter::{Attempt, Limits, Verdict};
use crate::metrics::{self, Phase};
use crate::posts::{self, Post};
use crate::{Settings, spec};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptMessage {
    pub mesh: MeshId,
    pub member: MemberId,
    /// The key that the member has signed with.
    pub key: PublicKey,
    pub client_message_id: ClientMessageId,
    pub envelope: Envelope,
    /// As the sender has frozen it. It must be that of the envelope.
    #[serde(default)]
    pub request_fingerprint: Option<Fingerprint>,
}

/// 201 where it was accepted by this call, 200 where it was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Accepted {
    pub broker_message_id: MessageId,
    pub client_message_id: ClientMessageId,
    pub history_id: HistoryId,
    pub duplicate: bool,
    /// Of a duplicate: is the message still in the history?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_available: Option<bool>,
    /// Of a duplicate: when it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<Time>,
    /// That this call has made.
    #[serde(skip)]
    #[schemars(skip)]
    deliveries: u64,
}

impl Procedure for AcceptMessage {
    const SPEC: OperationSpec = OperationSpec { status: 201, repeatable: true, ..spec::write("accept_message") };
    const REPLAYS: bool = true;
    type Output = Accepted;

    async fn call(self, flow: &Flow<'_>) -> Answered<Accepted> {
        // Before anything is read: what has no fingerprint is not looked for.
        let fingerprint = self.envelope.fingerprint()?;
        let looked = self.look(flow).await?;
        self.accept(flow, fingerprint, looked).await
    }
}

/// As [`AcceptMessage`], for a message that B0 was done of together with others ([`look_together`]).
#[derive(Deserialize, JsonSchema)]
pub struct AcceptLooked {
    pub request: AcceptMessage,
    #[serde(skip)]
    #[schemars(skip)]
    pub looked: Option<Looked>,
}

impl Procedure for AcceptLooked {
    const SPEC: OperationSpec = <AcceptMessage as Procedure>::SPEC;
    const REPLAYS: bool = true;
    type Output = Accepted;

    async fn call(self, flow: &Flow<'_>) -> Answered<Accepted> {
        match self.looked {
            Some(looked) if !self.request.is_to_queue() => {
                let fingerprint = self.request.envelope.fingerprint()?;
                self.request.accept(flow, fingerprint, looked).await
            }
            _ => self.request.call(flow).await,
        }
    }
}

impl AcceptMessage {
    async fn look(&self, flow: &Flow<'_>) -> Result<Looked> {
        let look = Look {
            mesh: self.mesh,
            member: self.member,
            client_message_ids: vec![self.client_message_id.clone()],
            queue: self.is_to_queue().then(|| self.envelope.destination_ref.clone()),
        };
        let Reply::Done(mut looked) = flow.run(flow.home(), look).await? else {
            return Err(Error::internal("a look neither waits nor replays"));
        };
        looked.pop().ok_or_else(|| Error::internal("a look has found nothing"))
    }

    /// The answer to what B0 has found, or B1 and what follows it.
    async fn accept(self, flow: &Flow<'_>, fingerprint: Fingerprint, looked: Looked) -> Answered<Accepted> {
        let store = flow.home();
        let Looked { known, state, plaintext, slug, queue } = looked;
        #[cfg(feature = "sabotage")]
        waybill_store::sabotage::point("broker_b0");
        #[cfg(feature = "sabotage")]
        let known = known.filter(|_| !waybill_store::sabotage::planted("mesh-b0-after-limiter"));
        if let Some(known) = known {
            let answer = known.answer(self.member, &self.client_message_id, &fingerprint);
            count(Phase::B0, answer.as_ref().err());
            return answer.map(|accepted| (Reply::Replay(accepted), None));
        }
        let refused = |error| {
            metrics::accepted(Phase::B1, "rejected");
            error
        };
        let settings = store.settings().get::<Settings>();
        self.check(&fingerprint, state.as_deref(), plaintext, settings).map_err(refused)?;
        let post = self.is_to_queue().then(|| Post::new(slug));
        if let Some(post) = &post {
            queue.ok_or_else(posts::unknown).and_then(|queue| post.check(&self, queue)).map_err(refused)?;
        }
        let is_charged = self.consume(flow, store, settings).await?;
        self.commit(flow, Parts { fingerprint, post, is_charged }).await
    }
}

/// What became of an id that is used.
fn count(phase: Phase, conflict: Option<&Error>) {
    metrics::accepted(phase, if conflict.is_none() { "duplicate" } else { "conflict" });
    if conflict.is_some() {
        ::metrics::counter!(metrics::MISMATCH).increment(1);
    }
}

/// What B1 hands on.
struct Parts {
    fingerprint: Fingerprint,
    post: Option<Post>,
    is_charged: bool,
}

impl AcceptMessage {
    fn is_to_queue(&self) -> bool {
        self.envelope.destination_kind == DestinationKind::Queue
    }

    /// B1 but for the limiter.
    fn check(
        &self,
        fingerprint: &Fingerprint,
        state: Option<&str>,
        plaintext: bool,
        settings: &Settings,
    ) -> Result<()> {
        match state {
            None => return Err(crate::members::unknown()),
            Some("live") => {}
            Some(_) => return Err(crate::members::revoked()),
        }
        if self.request_fingerprint.as_ref().is_some_and(|given| given != fingerprint) {
            return Err(Error::new(Code::FingerprintMismatch, Code::FingerprintMismatch.entry().title));
        }
        if self.is_to_queue() && !plaintext {
            return Err(posts::needs_plaintext());
        }
        self.envelope.check(plaintext)?;
        let bytes = self.envelope.payload_bytes()?;
        if bytes > settings.inline_bytes {
            let message = format!("The payload has {bytes} bytes; at most {} are taken.", settings.inline_bytes);
            return Err(
                Error::new(Code::PayloadTooLarge, message).with("max_payload_inline_bytes", settings.inline_bytes)
            );
        }
        Ok(())
    }

    /// The end of B1: whether this call has used a unit of the window.
    async fn consume(&self, flow: &Flow<'_>, store: &Store, settings: &Settings) -> Result<bool> {
        let attempt = Attempt {
            tenant: flow.caller.tenant,
            mesh: self.mesh,
            client_message_id: self.client_message_id.as_str(),
            now: store.now(),
            window: settings.window(),
            budget: settings.sends_per_window,
        };
        match store.settings().get::<Limits>().0.consume(attempt).await? {
            Verdict::Counted => Ok(true),
            Verdict::CountedBefore => Ok(false),
            Verdict::Denied { retry_after } => {
                metrics::accepted(Phase::B1, "denied");
                let seconds = retry_after.as_millis().div_ceil(1_000).max(1);
                let message = format!("The mesh may send {} messages per window.", settings.sends_per_window);
                let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
                Err(Error::new(Code::RateLimitExceeded, message).with("retry_after", seconds))
            }
        }
    }

    /// B2 and B3.
    async fn commit(self, flow: &Flow<'_>, parts: Parts) -> Answered<Accepted> {
        let Parts { fingerprint, post, is_charged } = parts;
        let outcome = flow.run(flow.home(), Commit { request: self, fingerprint, post }).await;
        match &outcome {
            Ok(Reply::Replay(_)) => count(Phase::B3, None),
            Ok(_) => metrics::accepted(Phase::B3, "accepted"),
            Err(error) if error.code() == Code::IdempotencyKeyReused => count(Phase::B3, Some(error)),
            Err(error) if commit::is_rejection(error.code()) => {
                metrics::accepted(Phase::B2, "rejected");
                if is_charged {
                    ::metrics::counter!(metrics::CONSUMED_THEN_REJECTED).increment(1);
                }
            }
            // By the queue that it is sent to.
            Err(error) if error.code() == Code::Throttling => metrics::accepted(Phase::B1, "denied"),
            Err(_) => metrics::accepted(Phase::B3, "failed"),
        }
        outcome.map(|reply| (reply, None))
    }
}

/// What is known of an id that is used.
#[derive(Debug)]
struct Known {
    message_id: MessageId,
    history_id: HistoryId,
    sender: MemberId,
    fingerprint: Fingerprint,
    first_seen_at: Time,
    history_available: bool,
}

/// The columns that [`Known::read`] reads.
macro_rules! known_columns {
    () => {
        "message_id, history_id, sender, fingerprint, first_seen_at, history_available"
    };
}
use known_columns;

impl Known {
    fn read(row: &Row) -> Result<Self> {
        let fingerprint = Fingerprint::from_slice(row.bytes(3)?);
        Ok(Self {
            message_id: MessageId::from_slice(row.bytes(0)?)?,
            history_id: HistoryId::from_slice(row.bytes(1)?)?,
            sender: MemberId::from_slice(row.bytes(2)?)?,
            fingerprint: fingerprint.ok_or_else(|| Error::internal("a stored fingerprint is not 32 bytes long"))?,
            first_seen_at: row.time(4)?,
            history_available: row.bool(5)?,
        })
    }

    /// The same answer as before, or what is wrong. Of another sender's message nothing is shown.
    fn answer(&self, member: MemberId, id: &ClientMessageId, given: &Fingerprint) -> Result<Accepted> {
        if self.sender == member && self.fingerprint == *given {
            return Ok(Accepted {
                broker_message_id: self.message_id,
                client_message_id: id.clone(),
                history_id: self.history_id,
                duplicate: true,
                history_available: Some(self.history_available),
                first_seen_at: Some(self.first_seen_at),
                deliveries: 0,
            });
        }
        let conflict = Error::new(Code::IdempotencyKeyReused, "The id was used for another message.")
            .with("client_message_id", id.as_str())
            .with("conflict", "request_fingerprint_mismatch");
        if self.sender != member {
            return Err(conflict);
        }
        Err(conflict.with("broker_fingerprint_prefix", self.fingerprint.prefix()))
    }
}
