//! What every worker of this program shares: its client, its name, its log, and how it is asked to stop.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use waybill_client::{Backoff, Client, Options};
use waybill_kernel::{Code, Error, Result};

use super::flags::Connection;
use super::secrecy;
use crate::commands::session;

/// Between two tries to reach a server that is away.
pub const AWAY_FIRST: Duration = Duration::from_millis(500);
pub const AWAY_MOST: Duration = Duration::from_secs(30);

/// The longest a server holds back an empty answer; workers ask for all of it, so nobody polls.
pub const LEASE_WAIT_S: u64 = 20;

pub fn away() -> Backoff {
    Backoff::new(AWAY_FIRST, AWAY_MOST)
}

pub fn client(connection: &Connection) -> Result<Client> {
    Client::new(Options {
        url: connection.server.clone(),
        key: Some(key(connection)?),
        user_agent: concat!("waybill/", env!("CARGO_PKG_VERSION")).to_owned(),
    })
}

fn key(connection: &Connection) -> Result<String> {
    if let Some(path) = &connection.key_file {
        return secrecy::read_key_file(path).map_err(|error| {
            let message = format!("The key file {} cannot be read: {error}.", path.display());
            Error::new(Code::Unauthorized, message)
                .with_cure("Name a file that you can read, with the key in it, by --key-file.")
        });
    }
    session::named_key(connection.key.clone()).ok_or_else(|| {
        let how = "set WAYBILL_KEY or say --key-file; `waybill key create --principal worker:NAME` makes one";
        Error::new(Code::Unauthorized, format!("There is no key for {}: {how}.", connection.server))
    })
}

/// This process, as the record of its leases names it.
pub fn instance_id() -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{machine}-{}", std::process::id())
}

/// How a worker is asked to stop: first in order, then at once.
#[derive(Clone, Default)]
pub struct Stop {
    /// Take nothing new, finish what is in hand.
    pub stopping: CancellationToken,
    /// Let go of what is in hand.
    pub abandon: CancellationToken,
}

impl Stop {
    pub fn on_signals() -> Result<Self> {
        let stop = Stop::default();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::internal)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::internal)?;
        let told = stop.clone();
        tokio::spawn(async move {
            for token in [told.stopping, told.abandon] {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                token.cancel();
            }
        });
        Ok(stop)
    }
}

/// Will the same call never succeed, however often it is sent?
pub fn is_final(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Unauthorized | Code::Forbidden | Code::InvalidRequest | Code::NotFound | Code::MethodNotAllowed
    )
}
