//! A view that is drawn again and again, until Ctrl-C.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value as Json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use waybill_kernel::{Code, Error, Result};

use super::Watch;
use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

/// Ctrl-C, or a polite request to end.
pub struct Ended {
    interrupt: Signal,
    terminate: Signal,
}

impl Ended {
    pub fn new() -> Result<Self> {
        let on = |kind| signal(kind).map_err(Error::internal);
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Asks once, or until Ctrl-C, and shows each answer: as a line of JSON, or as `draw` does it. At a terminal each takes the
/// place of the one before.
pub async fn show(
    watch: &Watch,
    reach: &Reach,
    ask: impl AsyncFn(&Session) -> Result<Json>,
    draw: impl Fn(&Json) -> Result<()>,
) -> Result<()> {
    let session = Session::open(reach).await?;
    let shown = async {
        if !watch.watch {
            let answer = ask(&session).await?;
            return if reach.json { output::json(&answer) } else { draw(&answer) };
        }
        refuse_without_server(&session)?;
        let clears = !reach.json && std::io::stdout().is_terminal();
        loop {
            let answer = ask(&session).await?;
            if clears {
                clear();
            }
            if reach.json {
                output::json(&answer)?
            } else {
                draw(&answer)?
            }
            tokio::time::sleep(Duration::from_secs(watch.interval)).await;
        }
    };
    // Whoever only looks leaves nothing half-done: Ctrl-C is the ordinary end of a watch.
    let outcome = match watch.watch {
        false => shown.await,
        true => {
            let mut ended = Ended::new()?;
            tokio::select! {
                outcome = shown => outcome,
                () = ended.recv() => Ok(()),
            }
        }
    };
    session.close().await;
    outcome
}

/// A watch that has opened the data folder itself would keep a server from starting, and see nothing change.
fn refuse_without_server(session: &Session) -> Result<()> {
    match session {
        Session::Server { .. } => Ok(()),
        Session::Folder { .. } => {
            Err(Error::new(Code::ServerUnreachable, "No server runs on this data folder, so nothing changes in it."))
        }
    }
}

/// From the top left corner, with nothing below.
fn clear() {
    let mut terminal = std::io::stdout().lock();
    let _ = terminal.write_all(b"\x1b[H\x1b[2J").and_then(|()| terminal.flush());
}
