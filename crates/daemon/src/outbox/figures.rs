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

pub(super) struct Read {
    /// Those that are done are by far the most, and counting them reads all of their index.
    pub(super) counts_done: bool,
}

impl Work for Read {
    type Output = Figures;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Figures> {
        const COUNT: &str = "SELECT count(*) FROM outbox WHERE status = $1";
        const OLDEST: &str = "SELECT min(enqueued_at) FROM outbox INDEXED BY outbox_heads WHERE is_head = 1";
        let mut figures = Figures::default();
        for status in Status::ALL {
            if status == Status::Done && !self.counts_done {
                continue;
            }
            let row = tx.query_opt(COUNT, &[status.as_str().into()]).await?;
            let count = u64::try_from(row.map_or(Ok(0), |row| row.int(0))?).unwrap_or(0);
            *match status {
                Status::Pending => &mut figures.pending,
                Status::Inflight => &mut figures.inflight,
                Status::Done => &mut figures.done,
                Status::Dead => &mut figures.dead,
                Status::Aborted => &mut figures.aborted,
            } = count;
        }
        figures.oldest_at = tx.query_opt(OLDEST, &[]).await?.map(|row| row.time_opt(0)).transpose()?.flatten();
        Ok(figures)
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
