//! After a commit that failed: the file is opened again and verified before anything more is written to it.
//!
//! When fsync fails, the kernel may have dropped the pages it could not write and call the next fsync a success, so
//! that one proves nothing. What was acknowledged before had its own fsync; in doubt are only the frames of the commit that
//! failed. Therefore nothing is ever built on the log they are in: the acknowledged rest of it is copied into the database
//! and the log is cut to nothing, and only when all of that has reached the disk are writes accepted again. Whether
//! the failed commit has survived is then settled, and the callers who were told "unknown" learn it by their retry.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use super::Connection;
use super::check::{self, Verdict};
use super::connection::is_full;
use super::open;
use super::queue::Taken;
use super::writer::WriterState;
use crate::metrics::REOPENED;
#[cfg(feature = "sabotage")]
use crate::sabotage;

/// Why the file is not written to yet.
enum Refused {
    Later(String),
    /// Tried again, too; first the ballast makes room.
    Full(String),
    /// It is not what was acknowledged any more, and trying again would not bring it back.
    ForGood(String),
}

/// Tries until the file has passed, refusing all who come meanwhile. None when there is nothing left to write for:
/// the program stops.
pub(super) fn until_sound(state: &mut WriterState) -> Option<Connection> {
    loop {
        match attempt(state) {
            Ok(connection) => {
                metrics::counter!(REOPENED).increment(1);
                tracing::warn!(
                    commit_seq = state.commit_seq,
                    "the database was opened again and verified; writing goes on"
                );
                state.condition.set_reopening(false);
                return Some(connection);
            }
            Err(Refused::Full(why)) => {
                tracing::error!("the database cannot be verified yet: {why}");
                state.ballast.release();
                state.condition.set_full(true);
            }
            Err(Refused::Later(why)) => tracing::error!("the database cannot be verified yet: {why}"),
            Err(Refused::ForGood(why)) => {
                tracing::error!("{why} Stop the program and restore a backup.");
                state.condition.set_damaged(why);
                refuse_arrivals(state, None);
                return None;
            }
        }
        if refuse_arrivals(state, Some(Instant::now() + state.options.reopen_pause)) {
            return None;
        }
    }
}

fn attempt(state: &mut WriterState) -> Result<Connection, Refused> {
    let later = |error: &dyn Display| Refused::Later(error.to_string());
    let tables = Arc::clone(&state.tables);
    let mut connection = open::write_connection(&state.options, tables).map_err(|error| later(&error))?;
    let stored = open::stored_meta(connection.raw()).map_err(|error| later(&error))?;
    let found = stored.map_or(0, |meta| meta.commit_seq);
    if found < state.commit_seq {
        let lost = state.commit_seq - found;
        let why = format!("The database has lost {lost} acknowledged commits and takes no more writes.");
        return Err(Refused::ForGood(why));
    }
    // A check that does not end in time is no reason to stay closed: the failed fsync was the log's.
    if let Verdict::Damaged(finding) = check::within(connection.raw(), state.options.check_budget) {
        tracing::error!("{}", check::damaged(&state.options.path, &finding).message());
        let why = "The database is damaged and takes no more writes; the log says what to do.";
        return Err(Refused::ForGood(why.to_owned()));
    }
    #[cfg(feature = "sabotage")]
    sabotage::point_within("in_reopen");
    empty_log(connection.raw())?;
    state.commit_seq = found;
    state.mark.publish(found, stored.map_or(0, |meta| meta.clock_us));
    Ok(connection)
}

fn empty_log(raw: &rusqlite::Connection) -> Result<(), Refused> {
    let busy = raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    match busy {
        Ok(0) => Ok(()),
        Ok(_) => Err(Refused::Later("a read has kept the log from being emptied".to_owned())),
        Err(error) if is_full(&error) => Err(Refused::Full(error.to_string())),
        Err(error) => Err(Refused::Later(error.to_string())),
    }
}

/// Answers all who come until then, or until the program stops: true when it does.
fn refuse_arrivals(state: &WriterState, until: Option<Instant>) -> bool {
    loop {
        match state.queue.take(until.map(|until| until.saturating_duration_since(Instant::now()))) {
            Taken::Item(job) => job.fail(super::writer::stopped(&state.condition)),
            Taken::Nothing if until.is_none_or(|until| Instant::now() < until) => {}
            Taken::Nothing => return false,
            Taken::Closed => return true,
        }
    }
}
