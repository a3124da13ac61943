//! The outbox: every message a local program has handed over, in `outbox.db`, durable before the program is answered.
//!
//! The file is a store of its own, as the server's is: one writer, one commit for all who wait, an answer only after the commit.
//! Its work runs as the program's own ([`waybill_store::System`]): the file belongs to one member and has no tenants to keep apart.
//!
//! An id once written is never released. A row ends as done, dead or aborted, and stays; `prune` takes its payload alone.
//!
//! Only the oldest live row of a destination may be sent (`is_head`). Whoever ends a row makes the next one of its line the head,
//! in the same transaction, so that finding what may be sent never reads the lines behind.

mod accept;
mod advance;
mod claim;
mod expire;
mod figures;
mod inspect;
mod known;
mod line;
mod list;
mod own;
mod prune;
mod requeue;
mod reseal;
mod reset;
pub mod rules;
mod settle;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};
use waybill_store::{Backend, Migration, Settings as StoreSettings, SqliteOptions, Store};

pub use accept::Accept;
pub use claim::{Claimed, Flight};
pub use figures::Figures;
pub use inspect::{Chain, Inspected};
pub use list::{LIMIT_MAX, Listed, Query, Summary};
pub use prune::Pruned;
pub(crate) use requeue::not_requeueable;
pub use requeue::{Requeue, Requeued};
pub use reseal::Unsent;
pub use rules::{Conflict, Found, Outcome, Pressure, Settled, Status, Verdict};

use crate::config;
use crate::outbox::rules::Digest;

/// Numbered above those of the store itself; no other file has these tables.
pub const MIGRATIONS: &[Migration] =
    &[Migration { version: 201, name: "outbox", sql: include_str!("../../schema/outbox/V0201__outbox.sql") }];

/// Room kept for a full disk: settling what is in flight needs little.
const BALLAST_BYTES: u64 = 1 << 20;
/// What a row takes beside its texts: columns, indexes, page overhead.
const ROW_BYTES: u64 = 512;
/// Nobody has said in this run how old a message may become.
const UNTOLD_MS: u64 = u64::MAX;

/// A message as it is sent: made once, at accept, and the same at every attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// JSON of the envelope.
    pub envelope: String,
    pub wire_fingerprint: Digest,
    pub destination_kind: String,
    pub destination_ref: String,
    pub key_id: Option<String>,
    pub epoch: Option<i64>,
}

#[derive(Clone)]
pub struct Outbox(Arc<Inner>);

struct Inner {
    store: Store,
    settings: config::Outbox,
    /// Told when there may be something to send that was not there before.
    arrivals: Notify,
    /// How often everything in flight was given up.
    resets: Arc<AtomicU64>,
    /// [`UNTOLD_MS`] until the settings or a broker say it.
    max_age_ms: AtomicU64,
    measured: Mutex<Measured>,
    /// What was ever accepted in this run.
    added_bytes: AtomicU64,
}

/// One look at the file. What was accepted after it is added to it.
#[derive(Clone, Copy, Default)]
struct Measured {
    used_bytes: u64,
    /// What had been accepted before the look.
    added_bytes: u64,
}

impl Outbox {
    /// Opens or creates the file; what a crash left in flight is pending again. A damaged file is refused and not touched.
    pub async fn open(
        path: &Path,
        settings: config::Outbox,
        clock: &Arc<Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self> {
        let options =
            SqliteOptions { name: "outbox".to_owned(), ballast_bytes: BALLAST_BYTES, ..SqliteOptions::at(path) };
        let opened = Store::open(
            Backend::Sqlite(options),
            MIGRATIONS,
            StoreSettings::default(),
            Arc::clone(clock),
            Arc::clone(entropy),
        );
        let store = opened.await.map_err(|error| match error.code() {
            Code::DatabaseUnusable => damaged(path, &error),
            _ => error,
        })?;
        let max_age_ms = settings.max_age_seconds.map_or(UNTOLD_MS, |seconds| millis(Duration::from_secs(seconds)));
        let inner = Inner {
            store,
            arrivals: Notify::new(),
            resets: Arc::default(),
            max_age_ms: AtomicU64::new(max_age_ms),
            measured: Mutex::default(),
            added_bytes: AtomicU64::new(0),
            settings,
        };
        let outbox = Self(Arc::new(inner));
        outbox.reset().await?;
        outbox.measure().await?;
        Ok(outbox)
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Whose messages these are from now on. Those of another member end; their number is returned.
    pub async fn belongs_to(&self, member: &str) -> Result<u64> {
        self.0.store.system().run(own::Own(member.to_owned())).await
    }

    /// The accept table. Returns after the commit; calls at the same time share one.
    pub async fn accept(&self, accept: Accept) -> Result<Verdict> {
        let bytes = accept.bytes() + ROW_BYTES;
        let (id, fingerprint) = (accept.client_message_id.clone(), accept.request_fingerprint);
        let refuses_new = self.pressure() >= Pressure::Refusing;
        match self.0.store.system().run(accept::Write { accept, refuses_new }).await {
            Ok((verdict, is_head)) => {
                if verdict == Verdict::Insert {
                    self.0.added_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                // One behind others is looked for by whoever ends those.
                if is_head {
                    self.0.arrivals.notify_one();
                }
                Ok(verdict)
            }
            // A full disk takes no new id, and an old one is answered from its row.
            Err(error) if error.code() == Code::StorageFull => match self.known(&id).await? {
                Some(found) => Ok(rules::accept(Some(found), &fingerprint)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The row that has the id, if any.
    pub async fn known(&self, client_message_id: &str) -> Result<Option<Found>> {
        self.0.store.system().run(known::Known(client_message_id.to_owned())).await
    }

    /// Ends the attempts named, each by its row, and takes what may be sent next, up to `room`: in flight, and durably so, before
    /// anybody has seen it. At most one message per destination, none for a destination that has one in flight. One commit
    /// for all of it.
    ///
    /// It is for the connection of now: run after a later [`Self::reset`] it claims nothing. It needs not be polled by its
    /// caller, and dropping it undoes nothing.
    pub fn advance(
        &self,
        ended: Vec<(i64, Outcome)>,
        room: usize,
    ) -> impl Future<Output = Result<(Vec<Option<Settled>>, Claimed)>> + Send + use<> {
        let outbox = self.clone();
        let fence = advance::Fence::new(&self.0.resets);
        // A connection begins with what the broker says; before that nothing is too old.
        let max_age = self.max_age().unwrap_or(Duration::MAX);
        let terms = settle::Terms { max_age, backoff: self.0.settings.backoff() };
        let ended = ended.into_iter().map(|(id, outcome)| {
            // One that was delivered has no pause.
            let is_delivered = matches!(outcome, Outcome::Delivered { .. });
            let draw = if is_delivered { 0 } else { rules::draw(self.0.store.entropy().as_ref()) };
            settle::Ended { id, outcome, draw }
        });
        let work = advance::Advance { ended: ended.collect(), room, terms, fence };
        async move { outbox.0.store.system().run(work).await }
    }

    /// As [`Self::advance`], where nothing has ended.
    pub async fn claim(&self, limit: usize) -> Result<Claimed> {
        Ok(self.advance(Vec::new(), limit).await?.1)
    }

    /// Ends one attempt and takes nothing. None when the row is not in flight, so that an answer that comes twice changes nothing.
    pub async fn settle(&self, id: i64, outcome: Outcome) -> Result<Option<Settled>> {
        Ok(self.advance(vec![(id, outcome)], 0).await?.0.pop().flatten())
    }

    /// What was in flight goes back to pending, and everything is due soon. For the start, and for a connection that was lost
    /// together with the answers to what was sent over it.
    pub async fn reset(&self) -> Result<u64> {
        let pause = Duration::from_millis(self.0.settings.restart_pause_ms);
        // Before the rows go back: an advance that comes after them finds that its connection is gone.
        self.0.resets.fetch_add(1, Ordering::SeqCst);
        let count = self.0.store.system().run(reset::Reset { pause }).await?;
        self.0.arrivals.notify_one();
        Ok(count)
    }

    /// Ends what has become too old, however long the broker was away. Returns how many: none until it is known how old a message
    /// may become, since a guess could end what the broker would still take.
    pub async fn expire(&self) -> Result<u64> {
        let Some(max_age) = self.max_age() else { return Ok(0) };
        let mut count = 0;
        for _ in 0..expire::ROUNDS_MAX {
            let ended = self.0.store.system().run(expire::Expire { max_age }).await?;
            if ended == 0 {
                break;
            }
            count += ended;
        }
        if count > 0 {
            self.0.arrivals.notify_one();
        }
        Ok(count)
    }

    pub async fn list(&self, query: Query) -> Result<Listed> {
        self.0.store.system().run(list::List::new(query)?).await
    }

    /// A message with all that it replaced and was replaced by.
    pub async fn inspect(&self, client_message_id: &str) -> Result<Chain> {
        self.0.store.system().run(inspect::Inspect(client_message_id.to_owned())).await
    }

    pub async fn requeue(&self, requeue: Requeue) -> Result<Requeued> {
        if self.pressure() >= Pressure::Full {
            return Err(no_room());
        }
        let requeued = self.0.store.system().run(requeue).await?;
        self.0.arrivals.notify_one();
        Ok(requeued)
    }

    /// Removes the payloads of messages that were delivered longer ago than this. Without `confirm` they are only counted.
    pub async fn prune(&self, older_than: Duration, confirm: bool) -> Result<Pruned> {
        let pruned = prune::prune(&self.0.store, older_than, confirm).await?;
        if confirm {
            self.measure().await?;
        }
        Ok(pruned)
    }

    pub fn prune_age(&self) -> Duration {
        Duration::from_millis(self.0.settings.prune_age_ms)
    }

    /// Messages for a destination that were never sent, the oldest first, after the row named. `but_for`: without those that were
    /// sealed for this key.
    pub async fn unsent(
        &self,
        kind: &str,
        reference: &str,
        but_for: Option<&str>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Unsent>> {
        let (kind, reference, but_for) = (kind.to_owned(), reference.to_owned(), but_for.map(str::to_owned));
        self.0.store.system().run(reseal::ReadUnsent { kind, reference, but_for, after, limit }).await
    }

    /// Where messages wait to be sent to, as kind and reference.
    pub async fn destinations(&self) -> Result<Vec<(String, String)>> {
        self.0.store.system().run(reseal::Destinations).await
    }

    /// Of these destinations the one that has messages waiting; of several, where the newest one is.
    pub async fn occupied(&self, kind: &str, references: Vec<String>) -> Result<Option<String>> {
        self.0.store.system().run(line::Occupied { kind: kind.to_owned(), references }).await
    }

    /// Another envelope for a message that was never sent. False when it has been meanwhile: then it stays as it was sent.
    pub async fn reseal(&self, id: i64, parcel: Parcel) -> Result<bool> {
        self.0.store.system().run(reseal::Reseal { id, parcel }).await
    }

    pub async fn figures(&self) -> Result<Figures> {
        self.0.store.system().run(figures::Read { counts_done: true }).await
    }

    /// As [`Self::figures`], without those that are done: what waits, and what is wrong.
    pub async fn open_figures(&self) -> Result<Figures> {
        self.0.store.system().run(figures::Read { counts_done: false }).await
    }

    /// Looks how much room is used.
    pub async fn measure(&self) -> Result<u64> {
        let added_bytes = self.0.added_bytes.load(Ordering::Relaxed);
        let used_bytes = self.0.store.system().run(figures::Measure).await?;
        let mut measured = self.0.measured.lock().unwrap_or_else(PoisonError::into_inner);
        // Of two looks at once the one that began later counts, whichever ends last.
        if added_bytes >= measured.added_bytes {
            // A row that is counted after it was seen here is there twice until the next look; none is ever left out.
            *measured = Measured { used_bytes, added_bytes };
        }
        Ok(used_bytes)
    }

    fn budget(&self) -> rules::Budget {
        let config::Outbox { bytes_max, pressure_percent, refuse_percent, .. } = self.0.settings;
        rules::Budget { bytes_max, pressure_percent, refuse_percent }
    }

    pub fn used_bytes(&self) -> u64 {
        let measured = *self.0.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let added = self.0.added_bytes.load(Ordering::Relaxed).saturating_sub(measured.added_bytes);
        measured.used_bytes.saturating_add(added)
    }

    pub fn used_percent(&self) -> u64 {
        self.budget().percent(self.used_bytes())
    }

    pub fn pressure(&self) -> Pressure {
        self.budget().pressure(self.used_bytes())
    }

    pub fn sweep_interval(&self) -> Duration {
        Duration::from_millis(self.0.settings.sweep_ms)
    }

    /// Waits until something may be sent that could not be before. One waiter; a word that came before it began is kept.
    pub async fn arrived(&self) {
        self.0.arrivals.notified().await;
    }

    /// None until the settings or a broker have said it in this run.
    fn max_age(&self) -> Option<Duration> {
        let max_age_ms = self.0.max_age_ms.load(Ordering::Relaxed);
        (max_age_ms != UNTOLD_MS).then(|| Duration::from_millis(max_age_ms))
    }

    /// As the broker's memory of ids allows; whoever negotiates knows.
    pub fn set_max_age(&self, max_age: Duration) {
        self.0.max_age_ms.store(millis(max_age), Ordering::Relaxed);
    }

    /// What the operator wants it to be, which must be within what the broker remembers.
    pub fn max_age_wanted(&self) -> Option<Duration> {
        self.0.settings.max_age_seconds.map(Duration::from_secs)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn no_room() -> Error {
    Error::new(Code::InsufficientStorage, Code::InsufficientStorage.entry().title)
}

/// What the store says about the server's database is not what to do about this one.
fn damaged(path: &Path, error: &Error) -> Error {
    let finding = error.message().split(". ").next().unwrap_or_default().trim_end_matches('.');
    Error::new(Code::OutboxDamaged, format!("{finding}. The daemon does not start with {}.", path.display()))
}
