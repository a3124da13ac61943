//! B2 and B3 in one transaction: the id is claimed first and the number in history taken last but for what needs it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Caller, Code, Error, OperationSpec, Result};
use waybill_mesh_protocol::{DestinationKind, Envelope, Fingerprint, HistoryId, MemberId, MessageId, PublicKey};
use waybill_store::{Ctx, Kind, Operation, Reply, STATEMENTS_MAX, Sql, Statement, Stored, Tx, Value};

use super::{AcceptMessage, Accepted, Known, known_columns};
use crate::counters::{self, Counter};
use crate::posts::{self, Post};
use crate::wakes::{ONE_BY_ONE_MAX, wake_everybody, wake_member};
use crate::{Settings, members, metrics, spec};

/// Refusals of B2: what the transaction has found out about sender and destination.
pub(super) fn is_rejection(code: Code) -> bool {
    matches!(
        code,
        Code::TopicUnknown
            | Code::NotSubscribed
            | Code::MemberUnknown
            | Code::MemberRevoked
            | Code::EpochPending
            | Code::EpochUnknown
            | Code::DestinationUnknown
    )
}

/// Those of one batch are of few senders, and each would read its own again.
static SENDER: Kind = Kind { tables: &["meshes", "mesh_members", "mesh_keys"] };

/// A live member, as whoever sends in its name finds it.
struct Sender {
    key: PublicKey,
    plaintext: bool,
}

/// A message that has passed B1.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Commit {
    pub request: AcceptMessage,
    pub fingerprint: Fingerprint,
    /// Of a message to a queue.
    #[serde(skip)]
    #[schemars(skip)]
    pub post: Option<Post>,
}

/// Where it goes, as B2 has found it.
enum Destination<'a> {
    Topic(&'a str),
    Member(MemberId),
    Queue(&'a Post),
}

impl Operation for Commit {
    const SPEC: OperationSpec = spec::write("commit_message");
    const REPLAYS: bool = true;
    const ADMITS: bool = true;
    type Output = Accepted;

    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        match &self.post {
            Some(post) => post.admit(&self.request, ctx).await,
            None => Ok(()),
        }
    }

    fn is_misjudged(&self) -> bool {
        self.post.as_ref().is_some_and(Post::is_misjudged)
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Accepted>> {
        let (message, history) = (MessageId(ctx.ids.next()), HistoryId(ctx.ids.next()));
        if let Some(known) = self.claim(ctx, tx, message, history).await? {
            let AcceptMessage { member, client_message_id, .. } = &self.request;
            return known.answer(*member, client_message_id, &self.fingerprint).map(Reply::Replay);
        }
        let destination = self.destination(ctx, tx).await?;
        let mentions = self.mention(tx, message).await?;
        let seq = counters::take(tx, self.request.mesh, Counter::History, 1).await?;
        let new = New { message, history, seq, mentions, destination };
        let deliveries = self.write(ctx, tx, &new).await?;
        if let Destination::Queue(post) = new.destination {
            post.send(ctx, tx).await?;
        }
        Ok(Reply::Done(Accepted {
            broker_message_id: message,
            client_message_id: self.request.client_message_id.clone(),
            history_id: history,
            duplicate: false,
            history_available: None,
            first_seen_at: None,
            deliveries,
        }))
    }

    fn committed(&self, _: &Caller, _: &waybill_store::Settings, output: &Accepted) {
        #[cfg(feature = "sabotage")]
        waybill_store::sabotage::point("broker_b3_committed");
        ::metrics::counter!(metrics::DELIVERIES).increment(output.deliveries);
    }
}

struct New<'a> {
    message: MessageId,
    history: HistoryId,
    seq: i64,
    mentions: i64,
    destination: Destination<'a>,
}

impl Commit {
    fn mesh(&self) -> Value<'_> {
        Value::from(self.request.mesh.as_bytes())
    }

    fn sender(&self) -> Value<'_> {
        Value::from(self.request.member.as_bytes())
    }

    fn envelope(&self) -> &Envelope {
        &self.request.envelope
    }

    /// None where the id is ours now. Another transaction that claims it at the same time is waited for on PostgreSQL.
    async fn claim(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        message: MessageId,
        history: HistoryId,
    ) -> Result<Option<Known>> {
        const CLAIM: &str = "INSERT INTO mesh_dedupe (tenant, mesh_id, client_message_id, message_id, history_id, sender, \
            fingerprint, destination_kind, destination_ref, first_seen_at, expires_at, history_available) \
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 1) ON CONFLICT DO NOTHING";
        const FIND: Sql = Sql {
            sqlite: concat!(
                "SELECT ",
                known_columns!(),
                " FROM mesh_dedupe WHERE tenant = $1 AND mesh_id = $2 AND client_message_id = $3"
            ),
            postgres: concat!(
                "SELECT ",
                known_columns!(),
                " FROM mesh_dedupe WHERE tenant = $1 AND mesh_id = $2 AND client_message_id = $3 FOR SHARE"
            ),
        };
        let id = Value::from(self.request.client_message_id.as_str());
        let params = [
            self.mesh(),
            id,
            Value::from(message.as_bytes()),
            Value::from(history.as_bytes()),
            self.sender(),
            Value::from(&self.fingerprint.as_bytes()[..]),
            Value::from(self.envelope().destination_kind.name()),
            Value::from(&self.envelope().destination_ref),
            Value::from(ctx.now),
            Value::from(ctx.settings::<Settings>().dedupe_until(ctx.now)),
        ];
        if tx.execute(CLAIM, &params).await? == 1 {
            return Ok(None);
        }
        let sql = tx.text(FIND);
        let row = tx.query_opt(sql, &[self.mesh(), id]).await?;
        // It was there and has expired in between: the sender tries again and finds it free.
        let row = row.ok_or_else(|| Error::new(Code::Unavailable, "The id was forgotten at this very moment."))?;
        let known = Known::read(&row)?;
        // A run that is repeated after its commit finds its own claim.
        Ok((known.message_id != message).then_some(known))
    }

    /// B2. The sender is looked at again: it may have been revoked since.
    async fn destination(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Destination<'_>> {
        let sender = self.find_sender(tx).await?;
        if sender.key != self.request.key {
            return Err(members::revoked());
        }
        match self.envelope().destination_kind {
            DestinationKind::Topic => self.topic(ctx, tx, sender.plaintext).await,
            DestinationKind::Dm => self.recipient(tx).await,
            DestinationKind::Queue => self.queue(tx, sender.plaintext).await,
        }
    }

    async fn find_sender(&self, tx: &mut Tx<'_>) -> Result<Arc<Sender>> {
        let AcceptMessage { mesh, member, .. } = &self.request;
        let name = format!("{mesh}{member}");
        if let Some(known) = tx.remembered::<Sender>(&SENDER, &name) {
            return Ok(known);
        }
        let live = members::live(tx, *mesh, *member).await?;
        let sender = Arc::new(Sender { key: live.keys.ed25519, plaintext: live.plaintext });
        tx.remember(&SENDER, &name, &sender);
        Ok(sender)
    }

    /// It was allowed in B1, and may not be any more.
    async fn queue(&self, tx: &mut Tx<'_>, plaintext: bool) -> Result<Destination<'_>> {
        if !plaintext {
            return Err(posts::needs_plaintext());
        }
        let is_allowed = posts::is_allowed(tx, self.request.mesh, &self.envelope().destination_ref).await?;
        self.post.as_ref().filter(|_| is_allowed).map(Destination::Queue).ok_or_else(posts::unknown)
    }

    async fn topic(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, plaintext: bool) -> Result<Destination<'_>> {
        const FIND: &str = "SELECT t.epoch, t.blocked, (SELECT count(*) FROM mesh_subscriptions s WHERE s.tenant = $1 \
            AND s.mesh_id = t.mesh_id AND s.topic = t.topic AND s.member_id = $4), t.floor_epoch FROM mesh_topics t \
            WHERE t.tenant = $1 AND t.mesh_id = $2 AND t.topic = $3";
        let topic = self.envelope().destination_ref.as_str();
        let row = tx.query_opt(FIND, &[self.mesh(), Value::from(topic), self.sender()]).await?;
        let row = row.ok_or_else(|| Error::new(Code::TopicUnknown, Code::TopicUnknown.entry().title))?;
        if row.int(2)? == 0 {
            return Err(Error::new(Code::NotSubscribed, Code::NotSubscribed.entry().title));
        }
        if plaintext {
            return Ok(Destination::Topic(topic));
        }
        let (current, given) = (row.int(0)?, self.envelope().epoch.map_or(0, i64::from));
        if row.bool(1)? || current == 0 {
            return Err(Error::new(Code::EpochPending, Code::EpochPending.entry().title));
        }
        // A message is encrypted once, perhaps long before it is sent: what was the newest key then is still taken, unless
        // somebody has it who is not to read any more.
        let oldest =
            current.saturating_sub(ctx.settings::<Settings>().max_concurrent_epochs - 1).max(row.int(3)?).max(1);
        if (oldest..=current).contains(&given) {
            return Ok(Destination::Topic(topic));
        }
        let message = format!("The topic is at epoch {current} and takes messages of {oldest} and later.");
        Err(Error::new(Code::EpochUnknown, message).with("epoch", current))
    }

    /// A key that the recipient has had before is still its own.
    async fn recipient(&self, tx: &mut Tx<'_>) -> Result<Destination<'_>> {
        const FIND: &str = "SELECT m.member_id, m.state FROM mesh_keys k JOIN mesh_members m ON m.tenant = $1 \
            AND m.mesh_id = k.mesh_id AND m.member_id = k.member_id WHERE k.tenant = $1 AND k.mesh_id = $2 AND k.ed25519 = $3";
        let key = self.envelope().destination().recipient().ok_or_else(members::unknown)?;
        let row = tx.query_opt(FIND, &[self.mesh(), Value::from(&key.as_bytes()[..])]).await?;
        let row = row.ok_or_else(members::unknown)?;
        if row.text(1)? != "live" {
            return Err(Error::new(Code::MemberUnknown, "The recipient is no member of the mesh any more."));
        }
        MemberId::from_slice(row.bytes(0)?).map(Destination::Member)
    }

    /// One row for each member that is mentioned; keys that belong to none are passed over.
    async fn mention(&self, tx: &mut Tx<'_>, message: MessageId) -> Result<i64> {
        const INSERT: &str = "INSERT INTO mesh_mentions (tenant, mesh_id, message_id, member_id) \
            SELECT $1, $2, $3, k.member_id FROM mesh_keys k WHERE k.tenant = $1 AND k.mesh_id = $2 AND k.ed25519 = $4 \
            ON CONFLICT DO NOTHING";
        let mut mentions = 0;
        for some in self.envelope().mentions.chunks(STATEMENTS_MAX) {
            let statements: Vec<Statement<'_>> = some
                .iter()
                .map(|key| {
                    let key = Value::from(&key.as_bytes()[..]);
                    (INSERT, vec![self.mesh(), Value::from(message.as_bytes()), key])
                })
                .collect();
            mentions += tx.execute_all(&statements).await?.iter().sum::<u64>();
        }
        i64::try_from(mentions).map_err(Error::internal)
    }

    /// B3: answers with the number of deliveries, whose members are woken. Those of a topic are made by the database, however
    /// many subscribers it has.
    async fn write(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, new: &New<'_>) -> Result<u64> {
        const MESSAGE: &str = "INSERT INTO mesh_messages (tenant, mesh_id, message_id, client_message_id, seq, sender, sender_key, \
            envelope, mentions, dedupe_until, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        const HISTORY: &str = "INSERT INTO mesh_history (tenant, mesh_id, seq, history_id, message_id, sender, topic, recipient, \
            at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        const TO_SUBSCRIBERS: &str = "INSERT INTO mesh_deliveries (tenant, mesh_id, member_id, seq, message_id, created_at) \
            SELECT $1, s.mesh_id, s.member_id, $4, $5, $6 FROM mesh_subscriptions s WHERE s.tenant = $1 AND s.mesh_id = $2 \
            AND s.topic = $3 AND s.member_id <> $7 RETURNING member_id";
        const TO_MEMBER: &str = "INSERT INTO mesh_deliveries (tenant, mesh_id, member_id, seq, message_id, created_at) \
            VALUES ($1, $2, $3, $4, $5, $6)";
        let envelope = serde_json::to_string(self.envelope()).map_err(Error::internal)?;
        tx.check_room(ctx, Stored::Rows, envelope.len()).await?;
        tx.add(Stored::Rows, envelope.len());
        let (message, seq, now) = (Value::from(new.message.as_bytes()), Value::from(new.seq), Value::from(ctx.now));
        let of_message = vec![
            self.mesh(),
            message,
            Value::from(self.request.client_message_id.as_str()),
            seq,
            self.sender(),
            Value::from(&self.request.key.as_bytes()[..]),
            Value::from(&envelope),
            Value::from(new.mentions),
            Value::from(ctx.settings::<Settings>().dedupe_until(ctx.now)),
            now,
        ];
        let (topic, recipient) = match &new.destination {
            Destination::Topic(topic) => (Some(*topic), None),
            Destination::Member(member) => (None, Some(member.as_bytes())),
            // Nobody reads it from the history: it was sent to no member.
            Destination::Queue(_) => (None, None),
        };
        let history = Value::from(new.history.as_bytes());
        let of_history =
            vec![self.mesh(), seq, history, message, self.sender(), Value::from(topic), Value::from(recipient), now];
        let mut rows = vec![(MESSAGE, of_message), (HISTORY, of_history)];
        let (tenant, mesh) = (ctx.caller.tenant, self.request.mesh);
        let topic = match &new.destination {
            Destination::Topic(topic) => *topic,
            Destination::Member(member) => {
                rows.push((TO_MEMBER, vec![self.mesh(), Value::from(member.as_bytes()), seq, message, now]));
                wake_member(tx, tenant, mesh, *member);
                return tx.execute_all(&rows).await.map(|_| 1);
            }
            // Whoever receives from it is woken by the queue.
            Destination::Queue(_) => return tx.execute_all(&rows).await.map(|_| 0),
        };
        tx.execute_all(&rows).await?;
        let of_topic = [self.mesh(), Value::from(topic), seq, message, now, self.sender()];
        let delivered = tx.query(TO_SUBSCRIBERS, &of_topic).await?;
        if delivered.len() > ONE_BY_ONE_MAX {
            wake_everybody(tx, tenant, mesh);
        } else {
            for row in &delivered {
                wake_member(tx, tenant, mesh, MemberId::from_slice(row.bytes(0)?)?);
            }
        }
        Ok(delivered.len() as u64)
    }
}
