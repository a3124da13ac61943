//! Keeps the full-text index of SQLite in shape: every commit of a message leaves a small segment, and a search reads all of them.
//! Here they become few and large, a little at a time. PostgreSQL's index needs none of this.

use std::time::Duration;

use waybill_kernel::Result;
use waybill_store::effects::{Plan, Sweep};
use waybill_store::{Ctx, Sql, Tx};

const INTERVAL: Duration = Duration::from_secs(1);
/// Pages of the index that one batch writes: a few milliseconds.
const PAGES: i64 = 200;
/// So few segments cost a search nothing.
const SEGMENTS_MIN: u64 = 8;

pub struct MergeSearch;

impl Sweep for MergeSearch {
    const NAME: &'static str = "mail.merge_search";

    fn plan(&self) -> Plan {
        Plan { batch: PAGES, ..Plan::every(INTERVAL) }
    }

    /// Goes on for as long as merging changes anything.
    async fn run_batch(&self, _: &Ctx<'_>, tx: &mut Tx<'_>, limit: i64) -> Result<u64> {
        const MERGE: &str = "INSERT INTO mail_fts (mail_fts, rank) VALUES ('merge', $1)";
        let Some(before) = structure(tx).await?.filter(|block| segments(block) >= SEGMENTS_MIN) else { return Ok(0) };
        tx.execute(MERGE, &[limit.into()]).await?;
        let after = structure(tx).await?;
        Ok(if after.as_ref() == Some(&before) { 0 } else { limit.unsigned_abs() })
    }
}

/// FTS5's record of its segments. None on PostgreSQL.
async fn structure(tx: &mut Tx<'_>) -> Result<Option<Vec<u8>>> {
    const STRUCTURE: Sql = Sql {
        sqlite: "SELECT block FROM mail_fts_data WHERE id = 10",
        postgres: "SELECT words::text::bytea FROM mail_search WHERE false",
    };
    let sql = tx.text(STRUCTURE);
    let row = tx.query_opt(sql, &[]).await?;
    row.map(|row| row.bytes(0).map(<[u8]>::to_vec)).transpose()
}

/// After four bytes the record has two numbers: of levels, and of segments.
fn segments(block: &[u8]) -> u64 {
    let mut rest = block.get(4..).unwrap_or_default();
    number(&mut rest);
    number(&mut rest)
}

/// Seven bits per byte, the highest first; the last byte has its top bit clear.
fn number(rest: &mut &[u8]) -> u64 {
    let mut value = 0_u64;
    while let Some((byte, after)) = rest.split_first() {
        *rest = after;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_the_record_counts_the_segments() {
        assert_eq!(segments(&[0, 0, 0, 9, 2, 7, 1]), 7);
        assert_eq!(segments(&[0, 0, 0, 9, 1, 0x81, 0x02]), 130);
        assert_eq!((segments(&[]), segments(&[1, 2, 3])), (0, 0));
    }
}
