//! How much is in the queues of all tenants, for the metrics. Read beside the writes, a bounded number of queues in a round;
//! the next round goes on where this one has ended.

use std::collections::BTreeSet;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Error, Mode, Result, Tenant};
use waybill_store::{Ctx, Row, Stores, Tx, Value, Work};

use crate::catalog::Entry;
use crate::counts::Counts;
use crate::metrics::{DepthGauges, PerQueue, depths};
use crate::rules::names::account_number;
use crate::shards::{Elsewhere, Route, held};

/// Queues that one transaction counts.
const PAGE_MAX: i64 = 64;
/// Pages in one round, and messages in flight or delayed that are counted in it.
const PAGES_MAX: usize = 16;
const COUNTED_MAX: i64 = 200_000;

/// What is remembered between two rounds.
pub struct Figures {
    gauges: PerQueue<DepthGauges>,
    /// The queue that was looked at last.
    after: (i64, String),
    /// Of this pass: the queues that have gauges of their own, and what the others have together.
    seen: BTreeSet<(String, String)>,
    other: Option<[i64; 3]>,
}

impl Default for Figures {
    fn default() -> Self {
        Self { gauges: depths(), after: (0, String::new()), seen: BTreeSet::new(), other: None }
    }
}

impl Figures {
    /// Counts, and sets the gauges. Where a store does not answer, the gauges of the queues that have something there stay as
    /// they are, all others are set, and it fails.
    pub async fn measure(&mut self, stores: &Stores) -> Result<()> {
        let (mut counted, mut failure) = (0, None);
        for _ in 0..PAGES_MAX {
            let (tenant, name) = self.after.clone();
            let mut page = stores.home().system().run(Page { tenant, name }).await?;
            failure = add_others(&mut page, stores).await.or(failure);
            for found in &page {
                counted += found.messages[1] + found.messages[2];
                self.set(found);
            }
            match page.last().filter(|_| page.len() as i64 == PAGE_MAX) {
                Some(last) => self.after = (last.tenant, last.queue.clone()),
                None => {
                    self.end_pass();
                    break;
                }
            }
            if counted >= COUNTED_MAX {
                break;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn set(&mut self, found: &Found) {
        match self.gauges.own(&found.account, &found.queue) {
            Some(gauges) => {
                if found.is_whole {
                    gauges.set(found.messages);
                }
                self.seen.insert((found.account.clone(), found.queue.clone()));
            }
            None => {
                let other = self.other.get_or_insert([0; 3]);
                for (sum, figure) in other.iter_mut().zip(found.messages) {
                    *sum += figure;
                }
            }
        }
    }

    /// What was not met is gone.
    fn end_pass(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.gauges.for_each(|account, queue, gauges| {
            if !seen.contains(&(account.to_owned(), queue.to_owned())) {
                gauges.set([0; 3]);
            }
        });
        if let Some(other) = self.other.as_mut() {
            self.gauges.other().set(*other);
            *other = [0; 3];
        }
        self.after = (0, String::new());
    }
}

struct Found {
    tenant: i64,
    account: String,
    queue: String,
    /// Visible, in flight, delayed.
    messages: [i64; 3],
    /// Of a queue that has partitions elsewhere than in home.
    route: Option<Route>,
    /// Every store that has some of it was asked.
    is_whole: bool,
}

/// Some queues, after this one.
struct Page {
    tenant: i64,
    name: String,
}

impl Work for Page {
    type Output = Vec<Found>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Found>> {
        const QUEUES: &str = "SELECT q.tenant, q.name, t.tenant_id FROM queues q JOIN tenants t ON t.tenant = q.tenant \
                              WHERE (q.tenant, q.name) > ($1, $2) ORDER BY q.tenant, q.name LIMIT $3";
        let params = [Value::from(self.tenant), Value::from(&self.name), Value::from(PAGE_MAX)];
        let rows = tx.query(QUEUES, &params).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(Found::read(ctx, tx, row).await?);
        }
        Ok(found)
    }
}

impl Found {
    async fn read(ctx: &Ctx<'_>, tx: &mut Tx<'_>, row: &Row) -> Result<Self> {
        let (tenant, name) = (Tenant(row.int(0)?), row.text(1)?);
        let tenant_id = Uuid::from_slice(row.bytes(2)?).map_err(waybill_kernel::Error::internal)?;
        let tx = &mut *tx.as_tenant(tenant);
        // One that was deleted at this moment is as good as empty.
        let (messages, route) = match Entry::find(tx, name).await? {
            None => ([0; 3], None),
            Some(entry) => {
                let counts = Counts::of(tx, name, entry.generation, ctx.now).await?;
                let route = |shards| Route::new((entry.incarnation, entry.generation), shards);
                (counts.each(), entry.shards.map(route))
            }
        };
        let account = account_number(tenant, tenant_id);
        Ok(Self { tenant: tenant.0, account, queue: name.to_owned(), messages, route, is_whole: true })
    }
}

/// What partitions in other stores hold. Answers with what is wrong with one of those stores.
async fn add_others(page: &mut [Found], stores: &Stores) -> Option<Error> {
    let (mut indexes, mut asked) = (Vec::new(), Vec::new());
    for (index, found) in page.iter().enumerate() {
        if let Some(route) = &found.route {
            indexes.push(index);
            asked.push(Elsewhere { tenant: Tenant(found.tenant), queue: &found.queue, route });
        }
    }
    let (all, failure) = held(stores, &asked).await;
    for (index, held) in indexes.into_iter().zip(all) {
        let found = &mut page[index];
        let Some(held) = held else {
            found.is_whole = false;
            continue;
        };
        for (figure, more) in found.messages.iter_mut().zip(held.counts.each()) {
            *figure += more;
        }
    }
    failure
}
