//! Rows from an archive: what was written elsewhere, or before, comes in under its own numbers and times.
//!
//! The program's own work, and no operation: whoever imports holds the data folder. Each piece of work is one bounded transaction;
//! one that is cut off is run again, and what is there already is left as it is. Nothing is ever overwritten: the database decides, also
//! over an archive that says otherwise.

mod agents;
mod messages;
mod numbers;
mod others;
mod projects;
mod reservations;
mod state;
mod words;

pub use agents::{AgentRecord, Nobody, PutAgents};
pub use messages::{FileRecord, MessageRecord, PutMessages};
pub use numbers::{Highest, NUMBER_MAX, Reserve};
pub use others::{ProductRecord, PutProduct, PutSlots, SlotRecord};
pub use projects::{KnownProjects, ProjectRecord, PutProject};
pub use reservations::{PutReservations, ReservationRecord};
pub use state::{ContactRecord, PutContacts, PutSeen, SeenRecord};
pub use words::{ForgetWords, IndexAgain};

pub use crate::recipients::Recipient;

/// Records of one transaction.
pub const BATCH_MAX: usize = 100;

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    Written,
    /// Written under another number, since its own is somebody else's.
    Renumbered,
    /// It is there already.
    Known,
    /// It is not written, for this reason.
    Refused(String),
}

/// An insert that names its number. What stands in its way is left alone, and nothing is written then.
macro_rules! numbered {
    ($table:literal, $columns:literal, $values:literal) => {
        waybill_store::Sql {
            sqlite: concat!("INSERT INTO ", $table, " (", $columns, ") VALUES (", $values, ") ON CONFLICT DO NOTHING"),
            postgres: concat!(
                "INSERT INTO ",
                $table,
                " (",
                $columns,
                ") OVERRIDING SYSTEM VALUE VALUES (",
                $values,
                ") ON CONFLICT DO NOTHING"
            ),
        }
    };
}
pub(crate) use numbered;

/// PostgreSQL has no NUL in texts, and no engine shows one.
fn check_text(what: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("{what} has {} bytes; at most {bytes_max} are taken", text.len()));
    }
    if text.contains('\0') {
        return Err(format!("{what} holds a NUL"));
    }
    Ok(())
}

fn check_number(number: i64) -> Result<(), String> {
    if (1..=NUMBER_MAX).contains(&number) { Ok(()) } else { Err(format!("its number {number} is none")) }
}
