//! Fans out: every receipt becomes one delivery for each webhook of its tenant that wants it, in the transaction that moves the
//! feed's position, and so does every audit event of a mesh. A tenant without webhooks costs one look into an index for all of its
//! rows on a page.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Result, Tenant, Time};
use waybill_mesh::audit::{self, WrittenEvent};
use waybill_store::effects::{Effect, Feed, Plan};
use waybill_store::{Ctx, Row, Statement, Topic, Tx, Value};
use waybill_tasks::receipts::{self, WrittenReceipt};

use crate::rules::State;
use crate::webhook::{self, DeliveryId, Kinds, TOUCH, WebhookId};
use crate::{Settings, metrics};

/// Receipts of one batch while nobody wants any …
const RECEIPTS_MAX: i64 = 1000;
/// … and at most while there are webhooks, of which a tenant may have many.
const RECEIPTS_WANTED_MAX: i64 = 200;
/// As many deliveries as one batch should make.
const DELIVERIES_USUAL: i64 = 1000;
/// Statements in one round trip.
const AT_ONCE: usize = 25;

/// Where deliveries come from.
pub trait Source: Send + Sync + 'static {
    /// Of its position.
    const NAME: &'static str;
    const FEED: Feed;

    fn read(row: &Row) -> Result<Written>;

    /// Woken by every row.
    fn topic() -> Topic;
}

/// A row of a feed, as far as it matters here.
#[derive(Debug)]
pub struct Written {
    tenant: Tenant,
    id: Uuid,
    kind: String,
    at: Time,
}

/// Receipts of every tenant.
#[derive(Debug)]
pub struct Receipts;

impl Source for Receipts {
    const NAME: &'static str = "webhooks.fan_out";
    const FEED: Feed = receipts::WRITTEN;

    fn read(row: &Row) -> Result<Written> {
        let WrittenReceipt { tenant, receipt_id, receipt_type, created_at } = WrittenReceipt::read(row)?;
        Ok(Written { tenant, id: receipt_id.0, kind: receipt_type, at: created_at })
    }

    fn topic() -> Topic {
        receipts::written()
    }
}

/// What happens to the meshes of every tenant.
#[derive(Debug)]
pub struct Meshes;

impl Source for Meshes {
    const NAME: &'static str = "webhooks.fan_out_meshes";
    const FEED: Feed = audit::WRITTEN;

    fn read(row: &Row) -> Result<Written> {
        let WrittenEvent { tenant, event_id, name, at } = WrittenEvent::read(row)?;
        Ok(Written { tenant, id: event_id.0, kind: name.to_owned(), at })
    }

    fn topic() -> Topic {
        audit::written()
    }
}

#[derive(Debug)]
pub struct FanOut<S = Receipts> {
    source: PhantomData<S>,
    interval: Duration,
    give_up: Duration,
    /// Receipts of the next batch, by what the latest came to.
    batch: AtomicI64,
    /// There were webhooks at the last look.
    wanted: AtomicBool,
    /// Deliveries of the latest batch, told to the metrics once it is committed.
    made: AtomicU64,
}

/// A webhook, as far as it matters here.
struct Wish {
    webhook_id: WebhookId,
    kinds: Kinds,
    created_at: Time,
}

impl FanOut<Receipts> {
    pub fn new(settings: &Settings) -> Self {
        Self::of(settings)
    }
}

impl FanOut<Meshes> {
    pub fn of_meshes(settings: &Settings) -> Self {
        Self::of(settings)
    }
}

impl<S: Source> FanOut<S> {
    fn of(settings: &Settings) -> Self {
        metrics::describe();
        Self {
            source: PhantomData,
            interval: Duration::from_secs(settings.feed_interval_s.max(1)),
            give_up: settings.give_up(),
            batch: AtomicI64::new(RECEIPTS_WANTED_MAX),
            // Until it is known: the first row tells.
            wanted: AtomicBool::new(true),
            made: AtomicU64::new(0),
        }
    }

    /// The more deliveries a receipt leads to, the fewer receipts at a time.
    fn next_batch(&self, receipts: usize, made: u64) -> i64 {
        if !self.wanted.load(Ordering::Relaxed) {
            return RECEIPTS_MAX;
        }
        let (receipts, made) = (i64::try_from(receipts).unwrap_or(1), i64::try_from(made).unwrap_or(i64::MAX));
        (DELIVERIES_USUAL * receipts / made.max(1)).clamp(1, RECEIPTS_WANTED_MAX)
    }

    async fn fan_out(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, receipts: &[Written]) -> Result<u64> {
        let wishes = wishes(tx, receipts).await?;
        self.wanted.store(wishes.is_some(), Ordering::Relaxed);
        let mut made = 0;
        for (tenant, wishes) in wishes.into_iter().flatten() {
            for wish in wishes {
                // One that was written before the webhook was made may still be on its way through the feed.
                let wanted = |receipt: &&Written| {
                    receipt.tenant == tenant && receipt.at >= wish.created_at && wish.kinds.has(&receipt.kind)
                };
                let wanted: Vec<_> = receipts.iter().filter(wanted).collect();
                made += self.enqueue(ctx, tx, tenant, &wish.webhook_id, &wanted).await?;
            }
        }
        Ok(made)
    }

    async fn enqueue(
        &self,
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        tenant: Tenant,
        webhook_id: &WebhookId,
        receipts: &[&Written],
    ) -> Result<u64> {
        const INSERT: &str = "INSERT INTO webhook_deliveries (tenant, webhook_id, delivery_id, receipt_id, receipt_type, state, \
                              attempts, next_at, created_at, keep_until) VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $7, $8)";
        if receipts.is_empty() {
            return Ok(0);
        }
        let (tenant, webhook) = (Value::from(tenant.0), webhook::value(webhook_id));
        if tx.execute(TOUCH, &[tenant, webhook, Value::from(ctx.now)]).await? == 0 {
            return Ok(0);
        }
        let ids: Vec<DeliveryId> = receipts.iter().map(|_| DeliveryId(ctx.ids.next())).collect();
        let give_up_at = ctx.now.after(self.give_up);
        for part in ids.iter().zip(receipts).collect::<Vec<_>>().chunks(AT_ONCE) {
            let mut statements: Vec<Statement<'_>> = Vec::with_capacity(part.len());
            for (id, receipt) in part {
                let params = vec![
                    tenant,
                    webhook,
                    Value::from(id.as_bytes()),
                    Value::from(&receipt.id.as_bytes()[..]),
                    Value::from(&receipt.kind),
                    Value::from(State::PENDING),
                    Value::from(ctx.now),
                    Value::from(give_up_at),
                ];
                statements.push((INSERT, params));
            }
            tx.execute_all(&statements).await?;
        }
        Ok(ids.len() as u64)
    }
}

/// The webhooks of every tenant that these receipts are of; None where no tenant has any.
async fn wishes(tx: &mut Tx<'_>, receipts: &[Written]) -> Result<Option<BTreeMap<Tenant, Vec<Wish>>>> {
    const ANY: &str = "SELECT 1 FROM webhooks WHERE tenant > $1 LIMIT 1";
    const OF: &str = "SELECT webhook_id, kinds, created_at FROM webhooks WHERE tenant = $1 AND disabled_at IS NULL ORDER BY webhook_id";
    if tx.query_opt(ANY, &[Value::from(i64::MIN)]).await?.is_none() {
        return Ok(None);
    }
    let mut wishes = BTreeMap::new();
    let mut tenants: Vec<Tenant> = receipts.iter().map(|receipt| receipt.tenant).collect();
    tenants.sort_unstable();
    tenants.dedup();
    for tenants in tenants.chunks(AT_ONCE) {
        let statements: Vec<Statement<'_>> = tenants.iter().map(|tenant| (OF, vec![Value::from(tenant.0)])).collect();
        for (tenant, rows) in tenants.iter().zip(tx.query_all(&statements).await?) {
            wishes.insert(*tenant, rows.iter().map(Wish::read).collect::<Result<_>>()?);
        }
    }
    Ok(Some(wishes))
}

impl Wish {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            webhook_id: WebhookId::from_slice(row.bytes(0)?)?,
            kinds: Kinds::read(row.text_opt(1)?),
            created_at: row.time(2)?,
        })
    }
}

impl<S: Source> Effect for FanOut<S> {
    const NAME: &'static str = S::NAME;
    const FEED: Feed = S::FEED;

    fn plan(&self) -> Plan {
        Plan { batch: self.batch.load(Ordering::Relaxed), ..Plan::every(self.interval) }
    }

    async fn apply(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, rows: &[Row]) -> Result<()> {
        let receipts = rows.iter().map(S::read).collect::<Result<Vec<_>>>()?;
        let made = self.fan_out(ctx, tx, &receipts).await?;
        if made > 0 {
            tx.wake(webhook::topic(), u32::MAX);
        }
        self.made.store(made, Ordering::Relaxed);
        self.batch.store(self.next_batch(rows.len(), made), Ordering::Relaxed);
        Ok(())
    }

    fn committed(&self) {
        let made = self.made.swap(0, Ordering::Relaxed);
        if made > 0 {
            ::metrics::counter!(metrics::FANNED_OUT).increment(made);
        }
    }

    /// Without webhooks nobody is in a hurry.
    fn topic(&self) -> Option<Topic> {
        self.wanted.load(Ordering::Relaxed).then(S::topic)
    }
}
