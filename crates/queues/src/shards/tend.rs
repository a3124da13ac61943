//! What keeps the stores of queues in step beside the calls: finishes changes that were cut off, and carries messages from
//! one store to another. Every server does it: whatever it does may be done by two at once.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_kernel::Result;
use waybill_store::Stores;

use super::follow::Changes;
use super::transfers::{ROUND_MAX, carry, departed};

/// Between two looks while nobody has called.
const INTERVAL: Duration = Duration::from_secs(5);
/// Changes that one round finishes.
const CHANGES_MAX: i64 = 256;

/// Until the program stops.
pub async fn tend(stores: Stores, stopping: CancellationToken) {
    while !stopping.is_cancelled() && stores.has_shards() {
        let flags: Vec<_> = stores.all().map(|store| store.flag(departed())).collect();
        let outcome = tend_once(&stores).await;
        let is_more = match outcome {
            Ok(done) => done >= usize::try_from(ROUND_MAX).unwrap_or(usize::MAX),
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(%error, cause, "stores of queues could not be brought in step; it is tried again");
                false
            }
        };
        if is_more {
            continue;
        }
        let woken = futures_util::future::select_all(flags.iter().map(|flag| Box::pin(flag.wait())));
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
            _ = woken => {}
        }
    }
}

/// One round. Answers with how much there was to do; what one store cannot do keeps it from nothing else.
pub async fn tend_once(stores: &Stores) -> Result<usize> {
    let changes = Changes { of: None, limit: CHANGES_MAX }.read(stores).await?;
    let mut done = 0;
    let mut failure = None;
    for change in &changes {
        match change.finish(stores).await {
            Ok(()) => done += 1,
            Err(error) => failure = Some(error),
        }
    }
    for store in stores.all() {
        match carry(stores, store).await {
            Ok(carried) => done += carried,
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(done), Err)
}
