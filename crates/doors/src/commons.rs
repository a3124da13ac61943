//! What all listeners of a server share, so that its bounds hold for all of them together.

use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Code, Entropy, Error, Result};
use waybill_store::shares::{Limits, Shares};

use crate::Settings;
use crate::body::Bodies;
use crate::connections::Connections;
use crate::log::Lines;
use crate::unproven::Unproven;

/// The unit in which room for answers is counted.
pub(crate) const UNIT_BYTES: u64 = 1 << 10;

/// Cheap to clone.
#[derive(Clone)]
pub struct Commons {
    pub(crate) connections: Connections,
    pub(crate) places: Shares,
    pub(crate) answers: Shares,
    pub(crate) lines: Lines,
    pub(crate) bodies: Bodies,
    pub(crate) unproven: Unproven,
}

impl Commons {
    pub fn new(settings: &Settings, entropy: &dyn Entropy) -> Self {
        let limits = |what, whole, kept_for_admins| Limits {
            what,
            whole,
            kept_for_admins,
            key_percent: settings.key_share_percent,
            tenant_percent: settings.tenant_share_percent,
        };
        let answers_kib = settings.answers_bytes_max / UNIT_BYTES as usize;
        Self {
            connections: Connections::new(settings),
            places: Shares::new(limits("places for requests", settings.requests_max, settings.admin_places)),
            // An admin must be able to read the metrics that show who has filled the rest.
            answers: Shares::new(limits("room for answers, in KiB", answers_kib, answers_kib / 8)),
            lines: Lines::new(settings.trusted_proxy, entropy),
            bodies: Bodies::new(settings),
            unproven: Unproven::default(),
        }
    }

    /// Refuses a call before it does anything if its answer could be larger than the room that is left now.
    pub fn look_for_room(&self, caller: &Caller, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let units = bytes.div_ceil(UNIT_BYTES as usize);
        self.answers.try_take(caller, units).map(drop).map_err(|_| {
            let message = "Too many answers are waiting to be read, so that there is no room for another.";
            Error::new(Code::Overloaded, message)
        })
    }

    /// For a protocol that reads bodies itself.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// For a protocol that must read a body before it knows who sent it.
    pub fn unproven(&self) -> &Unproven {
        &self.unproven
    }

    /// Looks after all connections until the server has stopped.
    pub(crate) async fn watch(self, stopped: CancellationToken) {
        self.connections.watch(stopped).await;
    }
}
