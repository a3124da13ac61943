//! What a connection works with. All of it outlives the connection.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use waybill_kernel::{Clock, Entropy};
use waybill_mesh_protocol::frames::Peer;
use waybill_mesh_protocol::{Edition, MemberId, MeshId, PublicKey};

use super::Broker;
use crate::config;
use crate::directory::{Directory, Member, Standing};
use crate::events::Events;
use crate::files::Files;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::reseal::Resealer;
use crate::rotation::Rotator;
use crate::seal::{Keyring, Sealer};

pub struct Parts {
    pub settings: config::Link,
    pub edition: Edition,
    /// As `http://host:port` or `https://…`.
    pub server: String,
    pub mesh: MeshId,
    pub slug: String,
    pub member: MemberId,
    /// As the invite has pinned it.
    pub owner: PublicKey,
    pub keyring: Keyring,
    pub sealer: Sealer,
    pub resealer: Resealer,
    pub directory: Directory,
    pub inbox: Inbox,
    pub outbox: Outbox,
    pub events: Events,
    pub files: Files,
    pub broker: Broker,
    pub rotator: Rotator,
    pub clock: Arc<Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub presence: Presence,
    /// Told when the directory should be read anew.
    pub refresh: Notify,
    /// Tells those who wait when it has been.
    pub refreshed: Notify,
}

impl Parts {
    /// Whether this key is or was this member's.
    pub fn is_own(&self, key: &PublicKey) -> bool {
        self.keyring.is_own(key) || self.directory.owner_of_key(key) == Some(self.member)
    }

    pub fn member_of(&self, peer: &Peer) -> Member {
        let known = self.directory.member(&peer.member_id);
        Member {
            id: peer.member_id,
            name: peer.name.to_string(),
            keys: peer.keys,
            is_owner: known.map_or(peer.keys.ed25519 == self.owner, |known| known.is_owner),
            state: Standing::Active,
        }
    }
}

/// Who is connected now, as far as the broker has said.
#[derive(Debug, Default)]
pub struct Presence(Mutex<HashSet<MemberId>>);

impl Presence {
    pub fn set(&self, member: MemberId, online: bool) {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if online {
            members.insert(member);
        } else {
            members.remove(&member);
        }
    }

    pub fn is_online(&self, member: &MemberId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(member)
    }

    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
