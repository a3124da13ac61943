//! Receives that are made again because the answer was lost: whoever names the same attempt gets the same messages.

use std::time::Duration;

use waybill_kernel::{Error, Result, Tenant, Time};
use waybill_store::{Topic, Tx, Value};

use crate::ends::{by_ids, ids};
use crate::flights::Taken;
use crate::queue::Part;
use crate::rules::handle::Token;

const REMEMBERED_FOR: Duration = Duration::from_secs(300);

/// One attempt, for those who make it at the same moment.
pub(crate) fn attempt_topic(tenant: Tenant, queue: &str, attempt: &str) -> Topic {
    Topic::new("queue.attempt", tenant, format!("{queue}\0{attempt}").as_bytes())
}

/// What an attempt was answered with.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub token: Token,
    pub taken: Vec<Taken>,
}

const FIND: &str = "SELECT token, visible_at, mids FROM fifo_attempts WHERE tenant = $1 AND part = $2 AND attempt = $3 \
                    AND until > $4";
const FLIGHTS: &str = by_ids!("SELECT mid, token, visible_at, receives, first_at FROM flights");
const FORGET: &str = "DELETE FROM fifo_attempts WHERE tenant = $1 AND part = $2 AND attempt = $3";
const KEEP: &str = "INSERT INTO fifo_attempts (tenant, part, attempt, token, visible_at, mids, until) \
                    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant, part, attempt) DO UPDATE SET \
                    token = excluded.token, visible_at = excluded.visible_at, mids = excluded.mids, until = excluded.until";

impl Attempt {
    /// What was answered before, if all of it is still in flight as it was.
    pub(crate) async fn find(tx: &mut Tx<'_>, part: &Part, attempt: &str, now: Time) -> Result<Option<Self>> {
        let params = [part.number.into(), Value::from(attempt), now.into()];
        let Some(row) = tx.query_opt(FIND, &params).await? else { return Ok(None) };
        let (token, visible_at) = (row.bytes(0)?.to_vec(), row.time(1)?);
        let mids: Vec<i64> = serde_json::from_str(row.text(2)?).map_err(Error::internal)?;
        let flights = tx.query(FLIGHTS, &ids(mids.iter().copied())).await?;
        let count = mids.len();
        let mut taken = Vec::with_capacity(count);
        for mid in mids {
            for row in &flights {
                let is_same = row.int(0)? == mid && row.bytes_opt(1)? == Some(&token[..]) && row.time(2)? == visible_at;
                if is_same && visible_at > now {
                    taken.push(Taken { mid, receives: row.int(3)?, first_at: row.time(4)? });
                }
            }
        }
        let Ok(token) = Token::try_from(token) else { return Ok(None) };
        let is_whole = count > 0 && taken.len() == count;
        Ok(is_whole.then_some(Self { token, taken }))
    }

    /// Was such an attempt answered, whatever has become of the messages?
    pub(crate) async fn is_known(tx: &mut Tx<'_>, part: &Part, attempt: &str, now: Time) -> Result<bool> {
        let params = [part.number.into(), Value::from(attempt), now.into()];
        Ok(tx.query_opt(FIND, &params).await?.is_some())
    }

    /// What was answered is no answer any more.
    pub(crate) async fn forget(tx: &mut Tx<'_>, part: &Part, attempt: &str) -> Result<()> {
        tx.execute(FORGET, &[part.number.into(), Value::from(attempt)]).await.map(drop)
    }

    pub(crate) async fn keep(
        tx: &mut Tx<'_>,
        part: &Part,
        attempt: &str,
        (token, mids): (&Token, &[i64]),
        (now, visible_at): (Time, Time),
    ) -> Result<()> {
        let mids = serde_json::to_string(mids).map_err(Error::internal)?;
        let params = [
            part.number.into(),
            Value::from(attempt),
            Value::from(&token[..]),
            visible_at.into(),
            Value::from(&mids),
            now.after(REMEMBERED_FOR).into(),
        ];
        tx.execute(KEEP, &params).await.map(drop)
    }
}
