//! How many messages are in which state, how old the oldest is, and how much room they take.

use serde::Serialize;
use waybill_kernel::{Mode, Result, Time};
use waybill_store::{Ctx, Tx, Work};

use super::rules::Status;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    pub pending: u64,
    pub inflight: u64,
    pub done: u64,
    pub dead: u64,
    pub aborted: u64,
    /// When the oldest message that is not yet delivered was handed over.
    pub oldest_at: Option<Time>,
}

impl Figures {
    pub fn of(&self, status: Status) -> u64 {
        match status {
            Status::Pending => self.pending,
            Status::Inflight => self.inflight,
            Status::Done => self.done,
            Status::Dead => self.dead,
            Status::Aborted => self.aborted,
        }
    }
}

pub(super) struct Read;

impl Work for Read {
    type Output = Figures;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Figures> {
        const COUNT: &str = "SELECT count(*) FROM outbox WHERE status = $1";
        // Rows are numbered from one and never deleted, so the last number is how many there are. Those that are done are by
        // far the most, and counting them would read all of them.
        const ALL: &str = "SELECT max(id) FROM outbox";
        const OLDEST: &str = "SELECT min(enqueued_at) FROM outbox WHERE status IN ('pending', 'inflight') AND is_head = 1";
        let mut counts = [0; 4];
        let rare = [Status::Pending, Status::Inflight, Status::Dead, Status::Aborted];
        for (count, status) in counts.iter_mut().zip(rare) {
            let row = tx.query_opt(COUNT, &[status.as_str().into()]).await?;
            *count = u64::try_from(row.map_or(Ok(0), |row| row.int(0))?).unwrap_or(0);
        }
        let [pending, inflight, dead, aborted] = counts;
        let all = tx.query_opt(ALL, &[]).await?.map(|row| row.int_opt(0)).transpose()?.flatten().unwrap_or(0);
        let done = u64::try_from(all).unwrap_or(0).saturating_sub(pending + inflight + dead + aborted);
        let oldest_at = tx.query_opt(OLDEST, &[]).await?.map(|row| row.time_opt(0)).transpose()?.flatten();
        Ok(Figures { pending, inflight, done, dead, aborted, oldest_at })
    }
}

/// Bytes of the pages that hold something. Pages that `prune` has emptied are used again before the file grows.
pub(super) struct Measure;

impl Work for Measure {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const USED: &str = "SELECT (c.page_count - f.freelist_count) * s.page_size \
                            FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s";
        let used = tx.query_opt(USED, &[]).await?.map_or(Ok(0), |row| row.int(0))?;
        Ok(u64::try_from(used).unwrap_or(0))
    }
}
