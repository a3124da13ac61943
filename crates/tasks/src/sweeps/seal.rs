//! The sealer: appends committed receipts to their tenant's chain, in the order in which the feed gives them out. Never on
//! the path of a write, where one row per tenant would make all of the tenant's writes wait for each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Result, Tenant, Time};
use waybill_store::effects::{Effect, Feed, Plan};
use waybill_store::{Ctx, Row, Statement, Tx, Value};

use crate::Settings;
use crate::metrics;
use crate::receipts::chain::{Content, Digest, Link, ORIGIN, Parties};
use crate::receipts::{ReceiptId, ReceiptType};
use crate::settings::seconds_of;

/// Links written in one round trip.
const LINKS_AT_ONCE: usize = 25;

#[derive(Debug)]
pub struct Seal {
    interval_s: i64,
    batch: i64,
    /// Of each type in the latest batch, told to the metrics once it is committed.
    sealed: [AtomicU64; ReceiptType::ALL.len()],
}

impl Seal {
    pub fn new(settings: &Settings) -> Self {
        metrics::describe();
        let sealed = std::array::from_fn(|_| AtomicU64::new(0));
        Self { interval_s: settings.chain_interval_s, batch: settings.chain_batch, sealed }
    }
}

impl Effect for Seal {
    const NAME: &'static str = "receipts.chain";
    const FEED: Feed = Feed {
        sql: "SELECT xact, seq, tenant, receipt_id, receipt_type, sender, addressee, parents, created_at, body, task_id, \
              lease_id, schedule_id, instance FROM receipts \
              WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4",
    };

    fn plan(&self) -> Plan {
        Plan { batch: self.batch.max(1), ..Plan::every(seconds_of(self.interval_s.max(1))) }
    }

    async fn apply(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, rows: &[Row]) -> Result<()> {
        const INSERT: &str = "INSERT INTO chain (tenant, position, receipt_id, receipt_type, parents, created_at, salt, \
                              content, parties, link) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let mut heads: HashMap<i64, (i64, Digest)> = HashMap::new();
        let mut links = Vec::with_capacity(rows.len());
        for row in rows {
            let tenant = row.int(2)?;
            let head = match heads.get(&tenant) {
                Some(head) => *head,
                None => head(tx, Tenant(tenant)).await?,
            };
            let link = NewLink::make(ctx, row, head)?;
            heads.insert(tenant, (link.position, link.link));
            links.push(link);
        }
        for links in links.chunks(LINKS_AT_ONCE) {
            let statements: Vec<Statement<'_>> = links.iter().map(|link| (INSERT, link.params())).collect();
            tx.execute_all(&statements).await?;
        }
        for (kind, sealed) in ReceiptType::ALL.iter().zip(&self.sealed) {
            let count = links.iter().filter(|link| link.receipt_type == kind.as_str()).count();
            sealed.store(count as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Every receipt comes by here once, whichever node and door it was written through.
    fn committed(&self) {
        for (kind, sealed) in ReceiptType::ALL.iter().zip(&self.sealed) {
            let count = sealed.swap(0, Ordering::Relaxed);
            if count > 0 {
                ::metrics::counter!(metrics::RECEIPTS, "type" => kind.as_str()).increment(count);
            }
        }
    }
}

/// The last link of the tenant's chain, or what comes before the first.
async fn head(tx: &mut Tx<'_>, tenant: Tenant) -> Result<(i64, Digest)> {
    const HEAD: &str = "SELECT position, link FROM chain WHERE tenant = $1 ORDER BY position DESC LIMIT 1";
    match tx.query_opt(HEAD, &[Value::from(tenant.0)]).await? {
        None => Ok((0, ORIGIN)),
        Some(row) => Ok((row.int(0)?, Digest::try_from(row.bytes(1)?).map_err(Error::internal)?)),
    }
}

struct NewLink {
    tenant: i64,
    position: i64,
    receipt_id: ReceiptId,
    receipt_type: String,
    parents: Vec<u8>,
    created_at: Time,
    salt: Vec<u8>,
    content: Digest,
    parties: Digest,
    link: Digest,
}

impl NewLink {
    fn make(ctx: &Ctx<'_>, row: &Row, (position, previous): (i64, Digest)) -> Result<Self> {
        // Two ids have 124 random bits between them.
        let salt = [*ctx.ids.next().as_bytes(), *ctx.ids.next().as_bytes()].concat();
        let content = content(row, 9)?.digest(&salt);
        let parties = Parties { from: row.text(5)?.to_owned(), to: row.text(6)?.to_owned() }.digest(&salt);
        let link = Link {
            position: position + 1,
            receipt_id: ReceiptId::from_slice(row.bytes(3)?)?,
            receipt_type: row.text(4)?,
            parents: row.bytes(7)?,
            created_at: row.time(8)?,
            content: &content,
            parties: &parties,
        };
        let hash = link.after(&previous);
        Ok(Self {
            tenant: row.int(2)?,
            position: link.position,
            receipt_id: link.receipt_id,
            receipt_type: link.receipt_type.to_owned(),
            parents: link.parents.to_vec(),
            created_at: link.created_at,
            salt,
            content,
            parties,
            link: hash,
        })
    }

    fn params(&self) -> Vec<Value<'_>> {
        vec![
            Value::from(self.tenant),
            Value::from(self.position),
            Value::from(self.receipt_id.as_bytes()),
            Value::from(&self.receipt_type),
            Value::from(&self.parents[..]),
            Value::from(self.created_at),
            Value::from(&self.salt[..]),
            Value::from(&self.content[..]),
            Value::from(&self.parties[..]),
            Value::from(&self.link[..]),
        ]
    }
}

/// From body, task, lease, schedule and instance, which stand from `first` on.
pub(crate) fn content(row: &Row, first: usize) -> Result<Content> {
    let id = |column| -> Result<Option<String>> {
        let id = row.bytes_opt(column)?.map(Uuid::from_slice).transpose().map_err(Error::internal)?;
        Ok(id.map(|id| id.to_string()))
    };
    Ok(Content {
        body: row.text(first)?.to_owned(),
        task_id: id(first + 1)?,
        lease_id: id(first + 2)?,
        schedule_id: row.text_opt(first + 3)?.map(str::to_owned),
        instance: row.text(first + 4)?.to_owned(),
    })
}
