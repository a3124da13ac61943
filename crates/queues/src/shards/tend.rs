//! What keeps the stores of queues in step beside the calls: finishes changes that were cut off, moves dead letters for the
//! tasks that were started, and carries messages from one store to another. Every server does it: whatever it does may be
//! done by two at once.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Error, Result};
use waybill_store::Stores;

use super::follow::changes_in;
use super::messages::is_of_store;
use super::moves::move_some;
use super::transfers::{ROUND_MAX, carry, departed};
use crate::move_tasks;

/// Between two looks while nobody has called.
const INTERVAL: Duration = Duration::from_secs(5);
/// While there are tasks: a task makes up for one second of its rate, and no more.
const MOVING_INTERVAL: Duration = Duration::from_millis(500);
/// Changes that one round finishes in each store.
const CHANGES_MAX: i64 = 256;

/// Until the program stops.
pub async fn tend(stores: Stores, stopping: CancellationToken) {
    while !stopping.is_cancelled() && stores.has_shards() {
        let mut flags: Vec<_> = stores.all().map(|store| store.flag(departed())).collect();
        flags.push(stores.home().flag(move_tasks::started()));
        let Round { done, is_moving, failure } = round(&stores).await;
        // What fails is not tried, nor told, more often than without tasks.
        let interval = if is_moving && failure.is_none() { MOVING_INTERVAL } else { INTERVAL };
        if let Some(error) = failure {
            let cause = error.cause().unwrap_or_default();
            tracing::warn!(%error, cause, "stores of queues could not be brought in step; it is tried again");
        }
        if done >= ROUND_MAX {
            continue;
        }
        let woken = futures_util::future::select_all(flags.iter().map(|flag| Box::pin(flag.wait())));
        tokio::select! {
            () = stopping.cancelled() => {}
            () = tokio::time::sleep(interval) => {}
            _ = woken => {}
        }
    }
}

/// One round. Answers with how much there was to do.
pub async fn tend_once(stores: &Stores) -> Result<usize> {
    let round = round(stores).await;
    round.failure.map_or(Ok(round.done), Err)
}

/// What a round has come to.
#[derive(Debug)]
struct Round {
    done: usize,
    /// Tasks are running that move messages between stores.
    is_moving: bool,
    failure: Option<Error>,
}

/// What one store cannot do keeps it from nothing else.
async fn round(stores: &Stores) -> Round {
    let changes = join_all(stores.shards().map(|(name, _)| finish_changes(stores, name))).await;
    // A store that is away holds up what goes out of it, and not what comes from others.
    let (moves, carried) =
        join(Box::pin(move_some(stores)), join_all(stores.all().map(|store| carry(stores, store)))).await;
    let mut round = Round { done: moves.done, is_moving: moves.is_running, failure: moves.failure };
    for outcome in changes {
        match outcome {
            Ok(some) => round.done += some,
            Err(error) => round.failure = Some(error),
        }
    }
    for (some, error) in carried {
        round.done += some;
        round.failure = error.or(round.failure);
    }
    round
}

/// What one store has to follow. When it does not answer, the rest waits for the next round: on PostgreSQL it takes seconds
/// until a store is given up.
async fn finish_changes(stores: &Stores, shard: &str) -> Result<usize> {
    let changes = changes_in(stores, shard, CHANGES_MAX).await?;
    let (mut done, mut failure) = (0, None);
    for change in &changes {
        match change.finish(stores).await {
            Ok(()) => done += 1,
            Err(error) if is_of_store(&error) => return Err(error),
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(done), Err)
}
