//! Sweeps, feeds and jobs on both engines: nothing is done twice, skipped, or done by somebody who was replaced.

mod feeds;
mod jobs;
mod sweeps;

use waybill_kernel::{Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};
use waybill_testkit::stores::TestStore;

/// What effects write in these tests is the rows of a table that the product has anyway.
pub const NOTE: &str =
    "INSERT INTO results (tenant, task_id, outcome, error, completed_at) VALUES (1, $1, 'noted', NULL, $2)";

/// Writes `count` results that a sweep may take away.
pub struct Notes(pub u8);

impl Work for Notes {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        for number in 0..self.0 {
            tx.execute(NOTE, &[Value::from(&[number][..]), Value::from(ctx.now)]).await?;
        }
        Ok(())
    }
}

pub async fn notes(on: &TestStore) -> i64 {
    on.count("SELECT count(*) FROM results").await.unwrap()
}
