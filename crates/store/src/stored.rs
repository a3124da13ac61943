//! How many bytes each tenant has stored, so that a cap can be kept without looking through its tables.
//!
//! What is written is counted by [`Tx::add`] in the transaction that writes it; what is deleted is counted by triggers of its
//! tables, since sweeps and purges delete rows that nobody has read. Both write to `stored_bytes`, so rows and their count are
//! committed together. A process remembers the sums that it has read last and adds what it has committed since: a look at them
//! costs no statement. What other processes have done meanwhile, and what was deleted, is known at the next reading.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use waybill_kernel::{Code, Error, Mode, Result, Tenant};

use crate::{Ctx, Settings, Sql, Tx, Value, Work};

/// What a tenant stores, by how it is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stored {
    /// Payloads, results, receipts, messages, mail, envelopes.
    Rows,
    /// Files of meshes and what comes with mail.
    Blobs,
}

impl Stored {
    pub const ALL: [Stored; 2] = [Stored::Rows, Stored::Blobs];

    /// As the table has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stored::Rows => "rows",
            Stored::Blobs => "blobs",
        }
    }

    /// What an operator sets.
    const fn setting(self) -> &'static str {
        match self {
            Stored::Rows => "access.stored_bytes_max",
            Stored::Blobs => "access.blob_bytes_max",
        }
    }
}

/// How much each tenant may store; 0 for as much as there is room for. Among the store's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCaps {
    pub rows: i64,
    pub blobs: i64,
}

impl StoredCaps {
    /// Those of this process; none where nobody has set any.
    pub fn of(settings: &Settings) -> Self {
        settings.find().copied().unwrap_or_default()
    }

    const fn of_kind(self, kind: Stored) -> i64 {
        match kind {
            Stored::Rows => self.rows,
            Stored::Blobs => self.blobs,
        }
    }

    /// Whether there is a cap, so that it is worth knowing how much there is.
    pub const fn has(self, kind: Stored) -> bool {
        self.of_kind(kind) > 0
    }

    /// Refuses what would exceed the cap: `used` bytes are there, at least `more` would come.
    pub fn check(self, kind: Stored, used: i64, more: i64) -> Result<()> {
        let limit = self.of_kind(kind);
        if limit <= 0 || used.saturating_add(more) <= limit {
            return Ok(());
        }
        let message = format!(
            "The tenant has stored {used} bytes of {}; at most {limit} are allowed ({}).",
            kind.as_str(),
            kind.setting()
        );
        let refusal = Error::new(Code::TooManyStoredBytes, message);
        Err(refusal.with("limit", limit).with("used", used).with("kind", kind.as_str()))
    }
}

/// Bytes that a transaction has added.
pub(crate) type Added = (Tenant, Stored, i64);

/// One row for each tenant and kind. In the same order for everybody, so that no two wait for each other.
pub(crate) fn merged(added: &[Added]) -> Vec<Added> {
    let mut sums: BTreeMap<(i64, Stored), i64> = BTreeMap::new();
    for (tenant, kind, bytes) in added {
        *sums.entry((tenant.0, *kind)).or_default() += bytes;
    }
    sums.into_iter()
        .filter(|(_, bytes)| *bytes != 0)
        .map(|((tenant, kind), bytes)| (Tenant(tenant), kind, bytes))
        .collect()
}

/// `$1` is the tenant, `$2` the kind, `$3` what is added.
pub(crate) const ADD: Sql = Sql {
    sqlite: "INSERT INTO stored_bytes (tenant, kind, slot, bytes) VALUES ($1, $2, 0, $3) \
             ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes",
    postgres: "INSERT INTO stored_bytes (tenant, kind, slot, bytes) VALUES ($1, $2, pg_backend_pid() % 256, $3) \
               ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes",
};

/// What this process knows.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Known>);

type Sums = HashMap<(Tenant, Stored), i64>;

#[derive(Debug, Default)]
struct Known {
    /// As read last.
    base: Sums,
    /// Committed before the reading that is under way, which will have it.
    before: Sums,
    /// Committed since.
    since: Sums,
}

impl Ledger {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn committed(&self, added: &[Added]) {
        if added.is_empty() {
            return;
        }
        let mut known = self.known();
        for (tenant, kind, bytes) in added {
            *known.since.entry((*tenant, *kind)).or_default() += bytes;
        }
    }

    pub(crate) fn used(&self, tenant: Tenant, kind: Stored) -> i64 {
        let (known, key) = (self.known(), (tenant, kind));
        [&known.base, &known.before, &known.since].iter().filter_map(|sums| sums.get(&key)).sum()
    }

    /// What was committed until now will be in what is read from here on.
    pub(crate) fn begin_reading(&self) {
        let mut known = self.known();
        for (key, bytes) in std::mem::take(&mut known.since) {
            *known.before.entry(key).or_default() += bytes;
        }
    }

    /// What was committed during the reading may count twice until the next one: the cap is kept rather than passed.
    pub(crate) fn end_reading(&self, sums: &[Added]) {
        let mut known = self.known();
        known.base = sums.iter().map(|(tenant, kind, bytes)| ((*tenant, *kind), *bytes)).collect();
        known.before.clear();
    }
}

/// Reads all sums of one store.
pub(crate) struct ReadSums;

impl Work for ReadSums {
    type Output = Vec<Added>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Added>> {
        const SUMS: &str = "SELECT tenant, kind, CAST(sum(bytes) AS BIGINT) FROM stored_bytes GROUP BY tenant, kind ORDER BY tenant, kind";
        let mut sums = Vec::new();
        for row in &tx.query(SUMS, &[]).await? {
            let name = row.text(1)?;
            // A kind of a newer version is none of ours.
            if let Some(kind) = Stored::ALL.into_iter().find(|kind| kind.as_str() == name) {
                sums.push((Tenant(row.int(0)?), kind, row.int(2)?));
            }
        }
        Ok(sums)
    }
}

impl Tx<'_> {
    /// Refuses to store `more` bytes where the tenant has as many as it may have. Counts what this transaction, and on SQLite
    /// those before it in the same commit, have added; what others are adding on PostgreSQL at this moment is not seen. For
    /// operations whose calls are repeated under a key: what is there already is looked for first, and found without room.
    pub async fn check_room(&mut self, ctx: &Ctx<'_>, kind: Stored, more: usize) -> Result<()> {
        const SUM: &str =
            "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM stored_bytes WHERE tenant = $1 AND kind = $2";
        let caps = ctx.settings_if_given::<StoredCaps>().copied().unwrap_or_default();
        if !caps.has(kind) || more == 0 {
            return Ok(());
        }
        let row = self.query_opt(SUM, &[Value::from(kind.as_str())]).await?;
        let stored = row.map_or(Ok(0), |row| row.int(0))?;
        let beside = if kind == Stored::Rows { ctx.stored_beside } else { 0 };
        let used = stored.saturating_add(self.added(kind)).saturating_add(beside);
        caps.check(kind, used, i64::try_from(more).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tenant = Tenant(1);
    const B: Tenant = Tenant(2);

    #[test]
    fn what_is_added_becomes_one_row_for_each_tenant_and_kind() {
        let added = [(B, Stored::Rows, 5), (A, Stored::Blobs, 7), (B, Stored::Rows, 1), (A, Stored::Rows, 0)];
        assert_eq!(merged(&added), [(A, Stored::Blobs, 7), (B, Stored::Rows, 6)]);
    }

    #[test]
    fn what_is_committed_counts_until_it_was_read() {
        let ledger = Ledger::default();
        ledger.committed(&[(A, Stored::Rows, 10)]);
        assert_eq!((ledger.used(A, Stored::Rows), ledger.used(B, Stored::Rows)), (10, 0));
        ledger.begin_reading();
        ledger.committed(&[(A, Stored::Rows, 3)]);
        assert_eq!(ledger.used(A, Stored::Rows), 13);
        ledger.end_reading(&[(A, Stored::Rows, 10), (B, Stored::Blobs, 4)]);
        assert_eq!((ledger.used(A, Stored::Rows), ledger.used(B, Stored::Blobs)), (13, 4));
        // A reading that failed loses nothing.
        ledger.begin_reading();
        ledger.begin_reading();
        assert_eq!(ledger.used(A, Stored::Rows), 13);
    }

    #[test]
    fn a_cap_is_kept_and_zero_is_none() {
        let caps = StoredCaps { rows: 100, blobs: 0 };
        assert!(caps.check(Stored::Rows, 90, 10).is_ok() && caps.check(Stored::Blobs, i64::MAX, 1).is_ok());
        let refusal = caps.check(Stored::Rows, 100, 1).unwrap_err();
        assert_eq!(refusal.code(), Code::TooManyStoredBytes);
        let detail = |name| refusal.detail(name).cloned();
        assert_eq!(
            (detail("limit"), detail("used"), detail("kind")),
            (Some(100.into()), Some(100.into()), Some("rows".into()))
        );
    }
}
