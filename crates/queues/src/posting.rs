//! For domains that send to queues in transactions of their own. Those are transactions of home, so only a queue that has all of its
//! messages there can be sent to. What is sent is a [`SendMessage`](crate::ops::SendMessage), admitted before the transaction and run
//! within it as its last writes: there is no second way into a queue.

use waybill_kernel::Result;
use waybill_store::Tx;

use crate::queue::Queue;
use crate::rules::names::is_name;

/// A queue, as whoever would send to it finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reachable {
    /// False where other stores than home hold partitions of it, whose transactions are not this one.
    pub is_here: bool,
    /// Of a message with all of its attributes.
    pub message_bytes_max: usize,
}

/// By its name, which is no URL. None where there is no such queue.
pub async fn look_for_queue(tx: &mut Tx<'_>, name: &str) -> Result<Option<Reachable>> {
    if !is_name(name) {
        return Ok(None);
    }
    let queue = Queue::find(tx, name).await?;
    Ok(queue.map(|queue| Reachable {
        is_here: !queue.is_spread(),
        message_bytes_max: queue.attributes.message_bytes_max(),
    }))
}
