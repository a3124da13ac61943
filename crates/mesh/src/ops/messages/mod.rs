//! Messages: accepted once, delivered until they are acknowledged, read again from history.

mod accept;
mod acknowledge;
mod history;
mod next_deliveries;

pub use accept::{AcceptLooked, AcceptMessage, Accepted, LOOKS_MAX, Looked, look_together};
pub use acknowledge::{AcknowledgeDeliveries, Acknowledged};
pub use history::ReadHistory;
pub use next_deliveries::{Deliveries, Delivery, FindDeliveries, Link};
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::frames::Message;
use waybill_mesh_protocol::{HistoryId, MemberId, MessageId};
use waybill_store::Row;

use crate::rows;

/// The columns that [`message`] reads, of `mesh_history y` joined with the message as `g`, the sender as `m` and the keys it had
/// then as `k`.
macro_rules! message_columns {
    () => {
        "y.seq, y.history_id, g.message_id, g.client_message_id, g.sender, m.name, k.ed25519, k.x25519, k.x25519_signature, \
         g.created_at, g.envelope"
    };
}

/// What [`message_columns`] needs beside `mesh_history y`, which is a page: a SELECT with a LIMIT of its own.
///
/// PostgreSQL sees through any other form that all rows are of one mesh, and before it has analyzed the tables it then takes the
/// part of an index that names the mesh for as good as the whole key: for each row of a page it would read all of the history.
macro_rules! message_tables {
    () => {
        " JOIN mesh_messages g ON g.tenant = $1 AND g.mesh_id = y.mesh_id AND g.message_id = y.message_id \
         JOIN mesh_members m ON m.tenant = $1 AND m.mesh_id = y.mesh_id AND m.member_id = g.sender \
         JOIN mesh_keys k ON k.tenant = $1 AND k.mesh_id = y.mesh_id AND k.ed25519 = g.sender_key "
    };
}
use {message_columns, message_tables};

fn message(row: &Row) -> Result<Message> {
    Ok(Message {
        seq: u64::try_from(row.int(0)?).map_err(Error::internal)?,
        history_id: HistoryId::from_slice(row.bytes(1)?)?,
        broker_message_id: MessageId::from_slice(row.bytes(2)?)?,
        client_message_id: row.text(3)?.parse()?,
        sender_id: MemberId::from_slice(row.bytes(4)?)?,
        sender_name: row.text(5)?.parse()?,
        sender: rows::keys(row, 6)?,
        accepted_at: row.time(9)?,
        envelope: rows::envelope(row, 10)?,
    })
}
