//! The mesh: what a daemon takes from programs beside it, how long a message is on its way to another daemon, how many go, what idle
//! sockets cost the broker, and how a day's worth of messages leaves an outbox.

mod drain;
mod pair;
mod slices;
mod sockets;

pub use drain::Drain;
pub use slices::{Pairs, Slice};
pub use sockets::Sockets;

use std::path::Path;

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// POST /v1/send over the daemon's socket, durable when it is answered; the broker is away.
    Send,
    /// One message at a time, from the call to the event of the other daemon.
    EndToEnd,
    /// One daemon posts to 16 topics, another gets it all.
    Topics,
}

pub const fn name(deed: Deed) -> &'static str {
    match deed {
        Deed::Send => "mesh send",
        Deed::EndToEnd => "mesh end to end",
        Deed::Topics => "mesh topics",
    }
}

/// What is looked at once and not in rounds.
pub struct Load {
    pub sockets: Option<Sockets>,
    pub drain: Option<Drain>,
    /// What could not be looked at, and why.
    pub failures: Vec<(&'static str, String)>,
}

/// How much of it. Less than is promised about shows that it works, and nothing else.
#[derive(Clone, Copy)]
pub struct Size {
    pub sockets: usize,
    pub messages: usize,
}

pub async fn measure(waybill: &Path, dir: &Path, size: Size) -> Load {
    let mut failures = Vec::new();
    let sockets = sockets::measure(waybill, &dir.join("sockets"), size.sockets).await;
    let sockets = sockets.map_err(|error| failures.push(("mesh sockets", format!("{error:#}")))).ok();
    let drain = drain::measure(waybill, &dir.join("drain"), size.messages).await;
    let drain = drain.map_err(|error| failures.push(("mesh drain", format!("{error:#}")))).ok();
    Load { sockets, drain, failures }
}
