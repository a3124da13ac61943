//! Queues, spoken to as SQS is: what is measured of them, and of others who speak the same.

mod hall;
mod rivals;
mod single;
mod speech;
mod turns;

pub use hall::{Hall, Slice};
pub use rivals::Homes;
pub use speech::{Counter, opened_at, opened_by};
pub use turns::Turns;

/// Whose queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum House {
    Sqlite,
    Postgres,
    /// fauxqs from npm, in its SQLite mode.
    Fauxqs,
    /// The server that npm's elasticmq has, of 2013, in memory.
    ElasticMq,
}

/// What is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// SendMessage.
    Send,
    /// SendMessageBatch of ten.
    Batch,
    /// Ten received, and deleted as a batch.
    Take,
    /// Senders and receivers of batches on one queue; what counts is deleted.
    EndToEnd,
    /// To a FIFO queue, each connection to a group of its own.
    Fifo,
    /// From the send to the answer of a receive that waits.
    Wake,
    /// A receive from a queue that holds a hundred …
    Few,
    /// … and from one that holds a million, of which a hundred thousand are in flight.
    Many,
    /// A receive from a FIFO queue …
    Free,
    /// … and from one with a locked group of a hundred thousand at its head.
    Locked,
    /// A receive of a body of 1 MiB, for what it writes.
    Large,
}

impl Deed {
    /// Whether its queue is a FIFO queue.
    const fn is_fifo(self) -> bool {
        matches!(self, Self::Fifo | Self::Free | Self::Locked)
    }
}

pub const fn name(house: House, deed: Deed) -> &'static str {
    match (house, deed) {
        (House::Sqlite, Deed::Send) => "queue send",
        (House::Sqlite, Deed::Batch) => "queue send batch",
        (House::Sqlite, Deed::Take) => "queue receive+delete",
        (House::Sqlite, Deed::EndToEnd) => "queue end to end",
        (House::Sqlite, Deed::Fifo) => "queue send fifo",
        (House::Sqlite, Deed::Wake) => "queue wake",
        (House::Sqlite, Deed::Few) => "queue receive of 100",
        (House::Sqlite, Deed::Many) => "queue receive of 1 m",
        (House::Sqlite, Deed::Free) => "queue receive fifo",
        (House::Sqlite, Deed::Locked) => "queue receive locked",
        (House::Sqlite, Deed::Large) => "queue receive 1 MiB",
        (House::Postgres, _) => "queue send postgres",
        (House::Fauxqs, Deed::Send) => "fauxqs send",
        (House::Fauxqs, Deed::Batch) => "fauxqs send batch",
        (House::Fauxqs, _) => "fauxqs receive+delete",
        (House::ElasticMq, Deed::Send) => "elasticmq send",
        (House::ElasticMq, Deed::Batch) => "elasticmq send batch",
        (House::ElasticMq, _) => "elasticmq recv+delete",
    }
}
