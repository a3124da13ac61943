//! Messages that are stored together: committed in the inbox, then acknowledged, then told.

use std::sync::Arc;

use serde_json::json;
use waybill_kernel::Result;
use waybill_mesh_protocol::frames::{Delivered, Framed};
use waybill_mesh_protocol::{ClientFrame, DeliveryId};

use super::Parts;
use super::writer::Writer;
use crate::events::EventKind;
use crate::files::FileNote;
use crate::inbox::{Arrived, Insert, NewMessage};
use crate::metrics;

#[derive(Default)]
pub(super) struct Batch {
    pub(super) arrived: Vec<Arrived>,
    /// For each of them the file that it tells of.
    pub(super) notes: Vec<Option<FileNote>>,
    /// Held ones, by their ids, that turned out to be nobody's messages.
    pub(super) refused: Vec<String>,
    /// Up to which sequence number everything has been seen once this is stored.
    pub(super) position: Option<i64>,
    /// Deliveries that this is of.
    pub(super) acknowledge: Vec<DeliveryId>,
}

impl Batch {
    /// What counts against the bound of a transaction.
    pub(super) fn len(&self) -> usize {
        self.acknowledge.len().max(self.arrived.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.acknowledge.is_empty() && !self.writes()
    }

    fn writes(&self) -> bool {
        !self.arrived.is_empty() || !self.refused.is_empty() || self.position.is_some()
    }

    /// One transaction. What comes after it happens to the end, whatever becomes of the connection: a message that is told by
    /// nobody now would be a repeat when it comes again.
    pub(super) async fn store(self, parts: Arc<Parts>, writer: Writer) -> Result<()> {
        let writes = self.writes();
        let Self { arrived, notes, refused, position, acknowledge } = self;
        let insert = Arc::new(Insert { arrived, position, refused });
        let ids = if writes { parts.inbox.insert(Arc::clone(&insert)).await?.ids } else { Vec::new() };
        #[cfg(feature = "sabotage")]
        if writes {
            waybill_store::sabotage::point("daemon_inbox_committed");
        }
        let acknowledged = acknowledge_all(&writer, acknowledge).await;
        for ((arrived, note), id) in insert.arrived.iter().zip(notes).zip(ids) {
            let Arrived::Opened(message) = arrived else { continue };
            match id {
                Some(id) => tell(&parts, message, note, id),
                None => metrics::repeat_in(),
            }
        }
        acknowledged
    }
}

async fn acknowledge_all(writer: &Writer, deliveries: Vec<DeliveryId>) -> Result<()> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let write = |delivery_id| Framed::from(ClientFrame::Delivered(Delivered { delivery_id })).write();
    let texts: Result<Vec<String>> = deliveries.into_iter().map(write).collect();
    writer.send_texts(texts?).await
}

/// Of a message that is new.
fn tell(parts: &Parts, message: &NewMessage, note: Option<FileNote>, id: i64) {
    metrics::received();
    let publish = |kind, data| drop(parts.events.publish(kind, parts.clock.now(), data));
    if let Some(note) = note {
        publish(EventKind::FileShared, note.event(message));
    }
    publish(EventKind::Message, event_data(id, message));
}

fn event_data(id: i64, message: &NewMessage) -> serde_json::Value {
    let meta = message.meta.as_deref().and_then(|meta| serde_json::from_slice::<serde_json::Value>(meta).ok());
    json!({
        "id": id,
        "client_message_id": message.client_message_id,
        "broker_message_id": message.broker_message_id,
        "mesh": message.mesh,
        "seq": message.seq,
        "topic": message.topic,
        "sender_pubkey": message.sender_pubkey,
        "sender_name": message.sender_name,
        "body": String::from_utf8_lossy(&message.body),
        "meta": meta,
        "priority": message.priority,
        "mentioned": message.mentioned,
        "reply_to_id": message.reply_to_id,
    })
}
