//! The log of the program: which lines are written, in which format, and the thread that writes them.

mod format;
mod lines;
mod rotated;
mod teller;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use tracing_subscriber::filter::Targets;
use waybill_kernel::{Code, Error, Result};

use self::lines::{Lines, Writing};
use self::rotated::Rotated;
use self::teller::Teller;
use crate::config::LogFormat;

/// The MCP library tells two lines per request and every client's mistake, and from `debug` on the arguments of every
/// tool call; the migrations' library tells each step of a first start. From `debug` on PostgreSQL's client tells the
/// values of every statement, payloads and hashes of keys among them, and HTTP's libraries what they carry.
const QUIET: &str = "rmcp=warn,rmcp::service=error,refinery_core=warn,tokio_postgres=warn,h2=info,hyper=info,\
                     hyper_util=info,reqwest=info";

/// Writes what is left when it is dropped.
#[must_use]
pub struct Log(#[expect(dead_code, reason = "kept for its end")] Writing);

/// From now on, to standard error. `wanted` is a level, or levels by the beginning of a module's name.
pub fn start(wanted: &str, format: LogFormat) -> Result<Log> {
    begin(wanted, format, io::stderr())
}

/// From now on, as JSON to a file that is put aside when it is large or old, and to standard error as well if it `is_told`.
pub fn start_in_file(wanted: &str, path: &Path, bytes_max: u64, keep: Duration, is_told: bool) -> Result<Log> {
    let file = Rotated::open(path, bytes_max, keep, is_told).map_err(|error| {
        Error::new(Code::PathUnusable, format!("The log {} cannot be written.", path.display())).because(error)
    })?;
    begin(wanted, LogFormat::Json, file)
}

fn begin(wanted: &str, format: LogFormat, out: impl Write + Send + 'static) -> Result<Log> {
    let invalid = |error| Error::new(Code::ConfigInvalid, format!("--log {wanted:?}: {error}."));
    // Before what was asked for, so that naming them goes above it.
    let targets: Targets = format!("{QUIET},{wanted}").parse().map_err(invalid)?;
    let lines = Lines::default();
    let writing = lines.clone().write_on_a_thread(out)?;
    Teller::new(targets, format, lines).install()?;
    Ok(Log(writing))
}
