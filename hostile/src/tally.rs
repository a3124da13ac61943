//! What the attackers were answered, for whoever reads the report.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub struct Tally {
    opened: AtomicU64,
    refused: AtomicU64,
    statuses: Mutex<BTreeMap<u16, u64>>,
}

impl Tally {
    /// A connection was made.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection could not be made, or was ended by the server.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn answered(&self, status: u16) {
        *self.statuses.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// How many answers had this status.
    pub fn count(&self, status: u16) -> u64 {
        let statuses = self.statuses.lock().unwrap_or_else(PoisonError::into_inner);
        statuses.get(&status).copied().unwrap_or_default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opened, refused) = (self.opened.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        write!(f, "{opened} connections made, {refused} refused or ended by the server; answers:")?;
        let statuses = self.statuses.lock().unwrap_or_else(PoisonError::into_inner);
        if statuses.is_empty() {
            return f.write_str(" none");
        }
        statuses.iter().try_for_each(|(status, count)| write!(f, " {count} × {status}"))
    }
}
