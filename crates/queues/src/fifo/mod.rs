//! FIFO queues: within a group messages are received in the order in which they were sent, and one that was sent twice is
//! kept once.
//!
//! A group is a row, locked by whoever adds, takes, changes or deletes messages of it, and a line of its messages. On
//! PostgreSQL a sender draws numbers only when it holds the group's row: within a group the order of numbers is the
//! order of commits, and groups do not wait for each other. A receive picks groups by their `ready_at`, never by looking
//! through messages, so a group that is blocked costs others nothing however long it is.
//!
//! A queue may have several partitions, each with its own part, numbers and deduplication ids: a group is in one of them
//! (rules/partitions.rs), and nothing that a sender writes is shared with those of other partitions.
//!
//! A receive takes several messages from the front of a group at once. Until all of them are gone or visible again
//! nobody gets a message of that group; then it begins at the front again.

mod attempts;
mod groups;
mod send;
mod take;

pub(crate) use attempts::{Attempt, attempt_topic};
pub(crate) use groups::{Settled, end, groups_of, hold, hold_free, put_off, settle};
pub(crate) use send::{Accepted, Arriving, arrive, send, transfer};
pub(crate) use take::{Held, Want, next_ready, take};

/// As those who send and receive know the number of a message. It rises with each message of a partition, also over a purge:
/// generations are microseconds, of which more pass than messages come.
pub(crate) fn sequence(generation: i64, number: i64) -> String {
    format!("{:020}", generation.saturating_add(number))
}
