//! How messages end: their rows go, and the part's total learns of it.
//!
//! A flight goes before its message: on PostgreSQL it is what a receive that takes the message again at this moment
//! locks.

use waybill_kernel::{Error, Result};
use waybill_store::{Sql, Tx, Value};

use crate::flights::MESSAGES_MAX;
use crate::queue::{Part, is_alone};

/// Deletes messages. On SQLite the statement answers with their ids; on PostgreSQL it notes them as departures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End(pub(crate) Sql);

/// `$with` stands before the DELETE and ends with a comma, or is empty.
macro_rules! end {
    ($delete:expr) => {
        end!("", "", $delete)
    };
    ($sqlite:expr, $postgres:expr, $delete:expr) => {
        $crate::ends::End(::waybill_store::Sql {
            sqlite: concat!($sqlite, $delete, " RETURNING mid"),
            postgres: concat!(
                "WITH ",
                $postgres,
                "gone AS (",
                $delete,
                " RETURNING mid) INSERT INTO departures (mid, tenant) SELECT gone.mid, $1 FROM gone"
            ),
        })
    };
}
pub(crate) use end;

/// Rows of this many messages by their ids; the ids that are left over are NULL.
macro_rules! by_ids {
    ($before:literal) => {
        concat!($before, " WHERE tenant = $1 AND mid IN ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
    };
}
pub(crate) use by_ids;

const FLIGHTS: &str = by_ids!("DELETE FROM flights");
const MESSAGES: End = end!(by_ids!("DELETE FROM messages"));
const TAKE_OFF: &str = "UPDATE parts SET total = total - $3 WHERE tenant = $1 AND part = $2";

impl End {
    pub(crate) async fn run(self, tx: &mut Tx<'_>, part: &Part, params: &[Value<'_>]) -> Result<()> {
        let sql = tx.text(self.0);
        if !is_alone(tx) {
            // Nobody waits for its answer.
            return tx.conclude(&[(sql, params.to_vec())], &[], || Error::internal("nothing is demanded")).await;
        }
        let mut counted = 0;
        for row in &tx.query(sql, params).await? {
            counted += i64::from(row.int(0)? < part.counted);
        }
        if counted > 0 {
            tx.execute(TAKE_OFF, &[part.number.into(), Value::from(counted)]).await?;
        }
        Ok(())
    }
}

/// Up to ten messages whose flights are gone.
pub(crate) async fn end_messages(tx: &mut Tx<'_>, part: &Part, mids: &[i64]) -> Result<()> {
    MESSAGES.run(tx, part, &ids(mids.iter().copied())).await
}

/// Up to ten messages, with the flights that they have.
pub(crate) async fn end_all(tx: &mut Tx<'_>, part: &Part, mids: &[i64]) -> Result<()> {
    tx.execute(FLIGHTS, &ids(mids.iter().copied())).await?;
    end_messages(tx, part, mids).await
}

pub(crate) fn ids<'a>(mids: impl Iterator<Item = i64>) -> Vec<Value<'a>> {
    mids.map(Some).chain(std::iter::repeat(None)).take(MESSAGES_MAX).map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_left_over_are_null() {
        let ids = ids([7, 8].into_iter());
        assert_eq!((ids.len(), ids[1], ids[2]), (MESSAGES_MAX, Value::Int(Some(8)), Value::Int(None)));
    }
}
