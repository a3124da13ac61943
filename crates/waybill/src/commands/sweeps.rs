//! `waybill sweeps`

use serde_json::json;
use waybill_kernel::Result;

use super::session::call;
use crate::cli::Reach;
use crate::output;

const SWEEPS: &[&str] = &[
    "name",
    "interval_ms",
    "last_started_at",
    "last_rows",
    "total_rows",
    "failures",
    "lag_ms",
    "behind_ms",
    "holder",
    "last_error",
];

const FEEDS: &[&str] = &["name", "seq", "moved_at", "behind_ms"];
const JOBS: &[&str] = &["kind", "ready", "running", "dead", "lag_ms"];

pub async fn run(reach: Reach) -> Result<()> {
    let answer = call(&reach, "list_sweeps", json!({})).await?;
    if reach.json {
        return output::json(&answer);
    }
    for (title, columns) in [("sweeps", SWEEPS), ("feeds", FEEDS), ("jobs", JOBS)] {
        output::line(&format!("{title}:"))?;
        output::table(columns, answer[title].as_array().map_or(&[], Vec::as_slice))?;
    }
    Ok(())
}
