//! The link to the broker: one WebSocket, kept up for as long as the daemon runs.
//!
//! | file | what |
//! |---|---|
//! | `machine` | what a frame means at which moment; pure |
//! | `ending` | what the end of a connection means; pure |
//! | `tries` | how often it was tried, and when the link was last up; pure |
//! | `session` | one connection from its first byte to its last |
//! | `inbound` | from a delivery to what is stored |
//! | `batch` | messages into the inbox, their acknowledgements and events |
//! | `epochs` | keys of topics, learnt and minted |
//! | `sync` | members, topics and keys, read anew from the broker |
//! | `broker` | requests over HTTP, signed by the member |

mod batch;
pub mod broker;
mod ending;
mod epochs;
mod handle;
mod inbound;
mod machine;
mod parts;
mod session;
mod socket;
mod sync;
mod tries;
pub mod writer;

#[cfg(test)]
mod machine_tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Code, Error, Result};

pub use broker::Broker;
pub use handle::{LinkHandle, PeerView, Status, TopicView};
pub use parts::{Parts, Presence};

use crate::events::EventKind;
use crate::metrics;
use crate::outbox::rules::{Backoff, draw};
use ending::{Ending, Next};
use session::End;
use tries::Tries;

pub struct Link {
    parts: Arc<Parts>,
    status: watch::Sender<Status>,
    /// Told to connect anew: the keys have changed.
    renew: Arc<Notify>,
}

impl Link {
    /// Nothing is connected before [`Link::run`].
    pub fn new(parts: Arc<Parts>) -> (Self, LinkHandle) {
        let (status, seen) = watch::channel(Status::default());
        let renew = Arc::new(Notify::new());
        let handle = LinkHandle::new(Arc::clone(&parts), seen, Arc::clone(&renew));
        (Self { parts, status, renew }, handle)
    }

    /// Until `token` is cancelled. An error is final: the daemon exits with its code.
    pub async fn run(self, token: CancellationToken) -> Result<()> {
        let url = socket::address(&self.parts.server)?;
        // The one provider of the whole program; one that is installed already stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if !socket::is_private(&url) {
            tracing::warn!(broker = %url, "the link is not encrypted: whoever is between sees who writes to whom");
        }
        let settings = &self.parts.settings;
        let backoff = Backoff {
            least: Duration::from_millis(settings.backoff_min_ms),
            most: Duration::from_millis(settings.backoff_max_ms),
        };
        let steady = Duration::from_millis(settings.steady_ms);
        let own_for = Duration::from_millis(settings.own_connection_ms);
        let mut tries = Tries::default();
        let mut unsettled = false;
        while !token.is_cancelled() {
            let session = session::Session::new(&self.parts, &self.status, &self.renew);
            let end = match self.prepare(&mut unsettled).await {
                Ok(()) => Box::pin(session.run(&url, &token)).await,
                Err(error) => End::Over(Ending::Lost(error.to_string())),
            };
            let up_since = self.went_down();
            let now = Instant::now();
            if let Some(since) = up_since {
                tries.was_up(since, now, steady);
                unsettled = true;
            }
            match end {
                End::Stopped => break,
                End::Renew => continue,
                End::Finally(error) => return Err(self.ended(error)),
                End::Over(ending) => {
                    if let Next::Exit(code) = ending::next(&ending, tries.was_up_within(own_for, now)) {
                        return Err(self.ended(ending::error(code)));
                    }
                    log_ending(&ending, up_since.is_some(), tries.count());
                }
            }
            let pause = backoff.pause(tries.another(), draw(self.parts.entropy.as_ref()));
            tokio::select! {
                () = token.cancelled() => {}
                () = self.renew.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        Ok(())
    }

    /// What must be in order before a connection. A store or a broker that fails is tried again with the next.
    async fn prepare(&self, unsettled: &mut bool) -> Result<()> {
        if *unsettled {
            // Answers to what was sent over the connection before will not come.
            self.parts.outbox.reset().await?;
            *unsettled = false;
        }
        // With keys that a lost answer has left in doubt the broker might take this member for one that is gone.
        self.parts.rotator.resume().await
    }

    /// What follows the end of a connection that was up, and since when it was. None where it never was.
    fn went_down(&self) -> Option<Instant> {
        let since = self.status.borrow().up_since?;
        self.status.send_modify(|status| {
            status.connected = false;
            status.up_since = None;
        });
        metrics::connected(false);
        self.parts.presence.clear();
        self.parts.events.publish(
            EventKind::DaemonDisconnect,
            self.parts.clock.now(),
            json!({ "mesh": self.parts.slug }),
        );
        Some(since)
    }

    fn ended(&self, error: Error) -> Error {
        let code = error.code();
        self.status.send_modify(|status| status.ended = Some(code));
        if matches!(code, Code::FeatureMissing | Code::FeatureParametersInvalid | Code::FeatureParameterBelowFloor) {
            let data = json!({ "error": code.entry().code, "message": error.message() });
            self.parts.events.publish(EventKind::FeatureNegotiationFailed, self.parts.clock.now(), data);
        }
        tracing::error!(error.code = code.entry().code, %error, "the link has ended for good");
        error
    }
}

fn log_ending(ending: &Ending, was_up: bool, attempts: u32) {
    // One line when it goes down; those who try again and again say so quietly.
    if was_up || attempts == 0 {
        tracing::warn!(?ending, "the link to the broker is down");
    } else {
        tracing::debug!(?ending, attempts, "the broker is not there yet");
    }
}
