//! Receipts in the order of feeds: those addressed to a principal, and those of them that are open obligations.

use waybill_kernel::{Error, PrincipalKind, Result, Tenant, cursor};
use waybill_store::effects::{Cursor, Feed};
use waybill_store::{Ctx, Topic, Tx, Value};

use super::record::receipt_columns;
use super::{ReceiptId, ReceiptRecord, archive};
use crate::Settings;
use crate::actor::actor;
use crate::task::TaskId;

/// `$6` is the addressee. Two ranges rather than one comparison of pairs: SQLite does not look a pair up in an index whose
/// last column is the row's own number, and would read everything the addressee has ever got.
macro_rules! addressed {
    ($filter:literal) => {
        concat!(
            "SELECT * FROM (SELECT r.xact, r.seq, ",
            receipt_columns!(),
            " FROM receipts r WHERE r.tenant = $1 AND r.addressee = $6",
            $filter,
            " AND r.xact = $2 AND r.seq > $3 AND r.xact < $4 ORDER BY r.seq LIMIT $5) AS same_xact \
             UNION ALL SELECT * FROM (SELECT r.xact, r.seq, ",
            receipt_columns!(),
            " FROM receipts r WHERE r.tenant = $1 AND r.addressee = $6",
            $filter,
            " AND r.xact > $2 AND r.xact < $4 ORDER BY r.xact, r.seq LIMIT $5) AS later_xact \
             ORDER BY 1, 2 LIMIT $5"
        )
    };
}

/// Everything addressed to a principal.
pub(crate) const INBOX: Feed = Feed { sql: addressed!("") };
/// Its open obligations: costs as much as there are open ones.
pub(crate) const OPEN: Feed = Feed { sql: addressed!(" AND r.open = 1") };

/// Where the columns of a receipt begin in the rows of these feeds.
pub(crate) const RECEIPT_AT: usize = 2;

/// Woken when a receipt is addressed to this principal.
pub(crate) fn topic(tenant: Tenant, addressee: &str) -> Topic {
    Topic::new("receipts", tenant, addressee.as_bytes())
}

/// Of whom or of what a list is: a position in it belongs to nothing else.
#[derive(Clone, Copy)]
pub(crate) enum Of<'a> {
    Addressee(&'a str),
    Task(TaskId),
}

/// A page of a list, and the receipt to go on from later.
pub(crate) struct Listed {
    pub receipts: Vec<ReceiptRecord>,
    /// None when there is none before which nothing can be added any more.
    pub last: Option<ReceiptId>,
}

/// From its beginning a list shows whatever is committed. Whoever goes on from a receipt follows a feed: receipts come when
/// everything before them is there, so that none is missed. So does the receipt to go on from.
pub(crate) async fn list(
    tx: &mut Tx<'_>,
    feed: Feed,
    (since, of): (Option<ReceiptId>, Of<'_>),
    limit: i64,
    further: &[Value<'_>],
) -> Result<Listed> {
    let after = position_after(tx, since, of).await?;
    // Before the page is read: everything below it is in the page.
    let horizon = tx.horizon().await?;
    let page = match since {
        Some(_) => feed.read_below(tx, horizon, after, limit, further).await?,
        None => feed.read_all(tx, after, limit, further).await?,
    };
    let mut listed = Listed { receipts: Vec::with_capacity(page.rows.len()), last: None };
    for row in &page.rows {
        let receipt = ReceiptRecord::from_row(row, RECEIPT_AT)?;
        if row.int(0)? < horizon {
            listed.last = Some(receipt.receipt_id);
        }
        listed.receipts.push(receipt);
    }
    Ok(listed)
}

/// The position after a receipt that such a list has given out.
pub(crate) async fn position_after(tx: &mut Tx<'_>, since: Option<ReceiptId>, of: Of<'_>) -> Result<Cursor> {
    let Some(since) = since else { return Ok(Cursor::START) };
    // A receipt keeps its position when it goes to the archive, and so does whoever has read up to it.
    let row = archive::locate(tx, since).await?.ok_or_else(cursor::refused)?;
    let belongs = match of {
        Of::Addressee(addressee) => row.text(2)? == addressee,
        Of::Task(task_id) => row.bytes_opt(3)? == Some(task_id.as_bytes()),
    };
    if belongs { Ok(Cursor { xact: row.int(0)?, seq: row.int(1)? }) } else { Err(cursor::refused()) }
}

/// Whose receipts: the caller's own unless a principal is named, and another's for admin and system only.
pub(crate) fn whose(ctx: &Ctx<'_>, kind: Option<PrincipalKind>, id: Option<&str>) -> Result<String> {
    actor(ctx, kind, id, PrincipalKind::Agent)
}

/// Receipts per page: too many are cut, none is a mistake.
pub(crate) fn page_size(settings: &Settings, field: &str, asked: Option<i64>) -> Result<i64> {
    let size = asked.unwrap_or(settings.list_limit);
    if size < 1 {
        return Err(Error::invalid(format!("{field} must be at least 1.")));
    }
    Ok(size.min(settings.list_limit_max))
}
