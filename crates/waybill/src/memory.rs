//! Gives memory back after a burst, so that a server does not stay at the size of its worst minute.

use std::time::Duration;

use rustix::param::page_size;
use tokio_util::sync::CancellationToken;

const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Below this there is nothing worth a search.
const RESIDENT_BYTES_MIN: u64 = 48 << 20;
/// A search that gave back less was in vain …
const WORTH_BYTES: u64 = 4 << 20;
/// … and is not repeated at the next looks, of which there are so many: within a minute after a burst it is.
const LOOKS_SKIPPED: u32 = 2;

/// After this a start is over, and most of what it ran is not run again.
const STARTED_AFTER: Duration = Duration::from_secs(1);

pub async fn keep_small(stopping: CancellationToken) {
    tokio::select! {
        () = stopping.cancelled() => return,
        () = tokio::time::sleep(STARTED_AFTER) => {}
    }
    let _ = tokio::task::spawn_blocking(|| {
        waybill_heap::give_back_code();
        waybill_heap::give_back_free_pages();
    })
    .await;
    let mut skipped = 0;
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if skipped > 0 {
            skipped -= 1;
        } else if !tokio::task::spawn_blocking(give_back).await.unwrap_or(false) {
            skipped = LOOKS_SKIPPED;
        }
    }
}

/// False for a search in vain.
fn give_back() -> bool {
    let Some(before) = resident_bytes().filter(|bytes| *bytes > RESIDENT_BYTES_MIN) else { return true };
    waybill_heap::give_back_free_pages();
    resident_bytes().is_some_and(|after| before.saturating_sub(after) > WORTH_BYTES)
}

fn resident_bytes() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_between_other_blocks_is_given_back() {
        let mut blocks: Vec<Option<Vec<u8>>> = (0..60_000).map(|_| Some(vec![1; 2_000])).collect();
        let full = resident_bytes().unwrap();
        // Whole runs of them, with a block left here and there that keeps the heap from shrinking by itself.
        blocks.iter_mut().enumerate().filter(|(number, _)| number % 500 != 0).for_each(|(_, block)| *block = None);
        give_back();
        let after = resident_bytes().unwrap();
        assert!(full - after > 60_000_000, "{full} bytes, then {after}");
        assert_eq!(blocks.iter().flatten().count(), 120);
    }
}
