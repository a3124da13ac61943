//! Looking into a queue store by store.

use waybill_kernel::cursor;
use waybill_store::{Answered, Flow, Reply};

use super::placed::OnShards;
use super::step::Calls;
use crate::ops::operator::peek_messages::{PeekMessages, Peeked};
use crate::rules::names::is_fifo;

impl OnShards for PeekMessages {
    async fn dispatch(self, flow: &Flow<'_>) -> Answered<Peeked> {
        if !flow.stores.has_shards() || !is_fifo(&self.queue) {
            return flow.home().run_in_turn(self, flow.caller.clone()).await;
        }
        match Calls::of(flow, &self.queue).await? {
            None => flow.home().run_in_turn(self, flow.caller.clone()).await,
            Some(calls) => page(self, flow, &calls).await,
        }
    }
}

/// One page of one store. Its cursor is that of the store, behind the number of the store in the order of partitions.
async fn page(request: PeekMessages, flow: &Flow<'_>, calls: &Calls<'_>) -> Answered<Peeked> {
    let stores = calls.route.stores(0);
    let (index, inner) = match request.cursor.as_deref() {
        None => (0, None),
        Some(text) => {
            let (index, inner) = text.split_once('.').ok_or_else(cursor::refused)?;
            let index = index.parse::<usize>().map_err(|_| cursor::refused())?;
            (index, Some(inner.to_owned()).filter(|inner| !inner.is_empty()))
        }
    };
    let name = stores.get(index).ok_or_else(cursor::refused)?;
    let step = PeekMessages { cursor: inner, ..request };
    // A page may be large: the turn of the read is held until the answer is taken.
    let (reply, turn) = calls.store(name)?.run_in_turn(step, flow.caller.clone()).await?;
    let (Reply::Done(mut peeked) | Reply::Replay(mut peeked) | Reply::Empty { answer: mut peeked, .. }) = reply;
    peeked.next_cursor = match peeked.next_cursor.take() {
        Some(inner) => Some(format!("{index}.{inner}")),
        None => (index + 1 < stores.len()).then(|| format!("{}.", index + 1)),
    };
    Ok((Reply::Done(peeked), turn))
}
