//! One operation, one transaction, two databases.
//!
//! `Store` runs an [`Operation`] in a transaction, on SQLite (one writer thread, group commit) or PostgreSQL (lanes),
//! and answers after the commit is durable. Everything that differs between the two engines stays in here.

mod complaint;
mod decode;
mod domain;
pub mod effects;
mod hold;
pub mod lanes;
mod lexer;
mod metrics;
pub mod migrate;
mod operation;
mod postgres;
mod private;
mod procedure;
pub mod registry;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod safety;
mod settings;
pub mod shares;
mod sqlite;
mod statement;
mod store;
mod stored;
pub mod stores;
mod tenant_check;
mod turns;
mod tx;
mod value;
mod waits;
mod wake;

pub use decode::decode;
pub use domain::{Domain, Mcp, Naming, Rule};
pub use hold::{Hold, Holding};
pub use metrics::OperationFigures;
pub use migrate::Migration;
pub use operation::{Call, Ctx, Event, Operation, Reach, Reply, Sharing, Turn, Until, Wait, Work};
pub use postgres::Options as PostgresOptions;
pub use procedure::{Answered, Flow, Procedure, Waiting};
pub use registry::{Answer, Entry, Registry, StreamEntry};
pub use settings::Settings;
pub use sqlite::Options as SqliteOptions;
pub use store::{Backend, Health, Store, System};
pub use stored::{Stored, StoredCaps};
pub use stores::{Shard, StoreRole, Stores};
pub use tx::{AsTenant, Gate, Kind, Otherwise, STATEMENTS_MAX, Sql, Statement, Tx};
pub use value::{Cell, Row, Value};
pub use waits::PoolFigures;
pub use wake::{Topic, WakeFlag};

/// The tables the store itself needs.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "meta", sql: include_str!("../schema/V0001__meta.sql") },
    Migration { version: 4, name: "effects", sql: include_str!("../schema/V0004__effects.sql") },
    Migration { version: 10, name: "behind", sql: include_str!("../schema/V0010__behind.sql") },
    Migration { version: 21, name: "demanded", sql: include_str!("../schema/V0021__demanded.sql") },
    Migration { version: 22, name: "shards", sql: include_str!("../schema/V0022__shards.sql") },
];

/// For stores that count what tenants have stored. Not among those of every store: files that a daemon has made have higher numbers
/// already, and a lower one would stop it.
pub const STORED_BYTES: Migration =
    Migration { version: 72, name: "stored_bytes", sql: include_str!("../schema/V0072__stored_bytes.sql") };
