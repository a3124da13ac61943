//! `waybill sweeps`

use serde_json::json;
use waybill_kernel::Result;

use super::session::Session;
use crate::cli::Reach;
use crate::output;

const COLUMNS: &[&str] = &[
    "name",
    "interval_ms",
    "last_started_at",
    "last_rows",
    "total_rows",
    "failures",
    "lag_ms",
    "holder",
    "last_error",
];

pub async fn run(reach: Reach) -> Result<()> {
    let session = Session::open(&reach).await?;
    let answer = session.call("list_sweeps", json!({})).await;
    session.close().await;
    let answer = answer?;
    if reach.json {
        return output::json(&answer);
    }
    output::table(COLUMNS, answer["sweeps"].as_array().map_or(&[], Vec::as_slice))
}
