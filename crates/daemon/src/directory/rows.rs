//! The directory's rows in `inbox.db`: read once at start, written before memory changes.

use waybill_kernel::{Error, Mode, Result};
use waybill_mesh_protocol::{BoxPublicKey, MemberId, MemberKeys, PublicKey, TopicKey};
use waybill_store::{Ctx, Row, Tx, Value, Work};
use zeroize::Zeroizing;

use super::{Change, Former, Member, State, Topic};

/// Everything there is.
pub(super) struct Load;

impl Work for Load {
    type Output = State;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<State> {
        const MEMBERS: &str =
            "SELECT member, name, ed25519, x25519, x25519_signature, is_owner, state FROM directory_members";
        const FORMER: &str = "SELECT ed25519, member, x25519 FROM directory_former_keys";
        const TOPICS: &str = "SELECT topic, subscribed, epoch FROM directory_topics";
        const KEYS: &str = "SELECT topic, epoch, secret FROM directory_epoch_keys";
        let mut state = State::default();
        for row in tx.query(MEMBERS, &[]).await? {
            state.apply(Change::Member(read_member(&row)?));
        }
        for row in tx.query(FORMER, &[]).await? {
            let former = Former { ed25519: parsed(&row, 0)?, member: member_id(&row, 1)?, x25519: parsed(&row, 2)? };
            state.apply(Change::Former(former));
        }
        for row in tx.query(TOPICS, &[]).await? {
            let topic = Topic {
                name: row.text(0)?.to_owned(),
                subscribed: row.bool(1)?,
                epoch: row.int_opt(2)?.map(epoch).transpose()?,
            };
            state.apply(Change::Topic(topic));
        }
        for row in tx.query(KEYS, &[]).await? {
            let secret = Zeroizing::new(<[u8; 32]>::try_from(row.bytes(2)?).map_err(Error::internal)?);
            let key = TopicKey::from_bytes(*secret);
            state.apply(Change::EpochKey { topic: row.text(0)?.to_owned(), epoch: epoch(row.int(1)?)?, key });
        }
        Ok(state)
    }
}

fn read_member(row: &Row) -> Result<Member> {
    let keys = MemberKeys {
        ed25519: parsed::<PublicKey>(row, 2)?,
        x25519: parsed::<BoxPublicKey>(row, 3)?,
        x25519_signature: parsed(row, 4)?,
    };
    Ok(Member {
        id: member_id(row, 0)?,
        name: row.text(1)?.to_owned(),
        keys,
        is_owner: row.bool(5)?,
        state: super::Standing::from_stored(row.text(6)?)?,
    })
}

fn parsed<T: std::str::FromStr>(row: &Row, column: usize) -> Result<T>
where
    T::Err: std::fmt::Display,
{
    row.text(column)?.parse().map_err(Error::internal)
}

fn epoch(stored: i64) -> Result<u32> {
    stored.try_into().map_err(Error::internal)
}

fn member_id(row: &Row, column: usize) -> Result<MemberId> {
    waybill_kernel::id::Uuid::parse_str(row.text(column)?).map(MemberId).map_err(Error::internal)
}

/// Writes changes, all or none.
pub(super) struct Save(pub(super) Vec<Change>);

impl Work for Save {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        for change in &self.0 {
            save(ctx, tx, change).await?;
        }
        Ok(())
    }
}

async fn save(ctx: &Ctx<'_>, tx: &mut Tx<'_>, change: &Change) -> Result<()> {
    const MEMBER: &str = "INSERT INTO directory_members (member, name, ed25519, x25519, x25519_signature, is_owner, state) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (member) DO UPDATE SET name = excluded.name, \
                          ed25519 = excluded.ed25519, x25519 = excluded.x25519, \
                          x25519_signature = excluded.x25519_signature, is_owner = excluded.is_owner, \
                          state = excluded.state";
    const FORGET: &str = "DELETE FROM directory_members WHERE member = $1";
    const FORMER: &str = "INSERT INTO directory_former_keys (ed25519, member, x25519, rotated_at) VALUES ($1, $2, $3, $4) \
                          ON CONFLICT (ed25519) DO NOTHING";
    const TOPIC: &str = "INSERT INTO directory_topics (topic, subscribed, epoch) VALUES ($1, $2, $3) \
                         ON CONFLICT (topic) DO UPDATE SET subscribed = excluded.subscribed, epoch = excluded.epoch";
    const KEY: &str = "INSERT INTO directory_epoch_keys (topic, epoch, secret) VALUES ($1, $2, $3) \
                       ON CONFLICT (topic, epoch) DO NOTHING";
    match change {
        Change::Member(member) => {
            let id = member.id.to_string();
            let keys = [
                member.keys.ed25519.to_string(),
                member.keys.x25519.to_string(),
                member.keys.x25519_signature.to_string(),
            ];
            let [ed25519, x25519, signature] = &keys;
            let params = [
                Value::from(&id),
                Value::from(&member.name),
                Value::from(ed25519),
                Value::from(x25519),
                Value::from(signature),
                member.is_owner.into(),
                Value::from(member.state.as_str()),
            ];
            tx.execute(MEMBER, &params).await?;
        }
        Change::Forget(id) => {
            let id = id.to_string();
            tx.execute(FORGET, &[Value::from(&id)]).await?;
        }
        Change::Former(former) => {
            let texts = [former.ed25519.to_string(), former.member.to_string(), former.x25519.to_string()];
            let [ed25519, member, x25519] = &texts;
            let params = [Value::from(ed25519), Value::from(member), Value::from(x25519), ctx.now.into()];
            tx.execute(FORMER, &params).await?;
        }
        Change::Topic(topic) => {
            let params = [Value::from(&topic.name), topic.subscribed.into(), topic.epoch.map(i64::from).into()];
            tx.execute(TOPIC, &params).await?;
        }
        Change::EpochKey { topic, epoch, key } => {
            let secret = Zeroizing::new(*key.as_bytes());
            tx.execute(KEY, &[Value::from(topic), i64::from(*epoch).into(), Value::from(secret.as_slice())]).await?;
        }
    }
    Ok(())
}
