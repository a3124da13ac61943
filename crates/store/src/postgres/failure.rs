//! What a failed statement, commit or connection means: try again, give up, or nobody knows.

use tokio_postgres::error::SqlState;
use waybill_kernel::{Code, Error};

pub(super) enum Failure {
    /// Not committed; a second run may succeed (serialization failure, deadlock).
    Again(Error),
    /// Not committed; the connection or the server is gone, another may be there.
    Lost(Error),
    Final(Error),
    /// Perhaps committed, perhaps not: nothing but another question can tell.
    Unknown(Error),
}

impl Failure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Again(error) | Self::Lost(error) | Self::Final(error) | Self::Unknown(error) => error,
        }
    }
}

/// A statement inside a transaction failed: nothing of it is committed.
pub(super) fn of_statement(error: &tokio_postgres::Error) -> Failure {
    let Some(state) = error.code() else { return Failure::Lost(unreachable(error)) };
    if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED {
        return Failure::Again(contended(error));
    }
    if is_gone(state) {
        return Failure::Lost(unreachable(error));
    }
    Failure::Final(match *state {
        SqlState::DISK_FULL => Error::new(Code::StorageFull, Code::StorageFull.entry().title).because(describe(error)),
        SqlState::QUERY_CANCELED | SqlState::LOCK_NOT_AVAILABLE => contended(error),
        SqlState::CHARACTER_NOT_IN_REPERTOIRE => Error::invalid("A text holds a NUL character."),
        _ => Error::internal(describe(error)),
    })
}

/// COMMIT was sent. An answer of the server is the truth; silence is not "no".
pub(super) fn of_commit(error: &tokio_postgres::Error) -> Failure {
    match error.code() {
        Some(state) if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED => {
            Failure::Again(contended(error))
        }
        // Raised by deferred checks and full disks before the commit record is written.
        Some(state) if !is_gone(state) => of_statement(error),
        _ => unknown(&describe(error)),
    }
}

/// Is it the server's own word about a statement that COMMIT was sent after? Errors of connections are told by poolers too,
/// which do not know what the server has done.
pub(super) fn is_last_word(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| !state.code().starts_with("08"))
}

/// Perhaps committed, perhaps not.
pub(super) fn unknown(cause: &str) -> Failure {
    Failure::Unknown(Error::new(Code::Unavailable, Code::Unavailable.entry().title).because(cause))
}

/// No answer to a statement: nothing of its transaction is committed, and the link is of no use any more.
pub(super) fn silent() -> Failure {
    Failure::Lost(
        Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title).because("the link is silent"),
    )
}

pub(super) fn no_connection(error: &deadpool_postgres::PoolError) -> Failure {
    match error {
        deadpool_postgres::PoolError::Closed => Failure::Final(crate::store::shutting_down()),
        // Others have taken the server's last places: the connections that we have are as good as before.
        deadpool_postgres::PoolError::Backend(full) if full.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
            Failure::Again(unreachable(full))
        }
        other => Failure::Lost(Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title).because(other)),
    }
}

/// The server is stopping, starting, or has become a standby.
fn is_gone(state: &SqlState) -> bool {
    state.code().starts_with("08")
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ]
        .contains(state)
}

fn unreachable(error: &tokio_postgres::Error) -> Error {
    Error::new(Code::StoreUnavailable, Code::StoreUnavailable.entry().title).because(describe(error))
}

fn contended(error: &tokio_postgres::Error) -> Error {
    Error::new(Code::Overloaded, "The database was too busy with the same rows.").because(describe(error))
}

/// The driver's own text says only "db error".
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => {
            std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        }
    }
}
