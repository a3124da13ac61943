//! What happens to a mesh, told to all of its members who are connected here. Read once for all of them.
//!
//! One task for each mesh with a socket here: it ends with the last of them. Whoever falls so far behind that events are lost
//! for it is closed, comes again, and reads the directory anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokio::sync::broadcast;
use waybill_kernel::{Caller, Result, Tenant};
use waybill_mesh::EventKind;
use waybill_mesh::ops::members::{MeshEvent, ReadMeshEvents};
use waybill_mesh::wakes::events_topic;
use waybill_mesh_protocol::frames::{KeypairRotated, MemberGone, MemberRenamed, Peer};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{MemberId, MeshId, PublicKey, ServerFrame, TopicName};

use crate::door::Door;
use crate::socket::wire::text;

/// Events that a socket may be behind.
const BEHIND_MAX: usize = 256;
/// After a read that has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// All of them. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Hubs(Arc<Mutex<HashMap<(Tenant, MeshId), Weak<Hub>>>>);

/// Those of one mesh.
pub(crate) struct Hub {
    told: broadcast::Sender<Arc<Told>>,
}

/// A socket's ear, which keeps the hub alive.
pub(crate) struct Listening {
    _hub: Arc<Hub>,
    heard: broadcast::Receiver<Arc<Told>>,
}

/// Something that happened.
#[derive(Debug)]
pub(crate) struct Told {
    /// Whom it is about; it need not be told.
    pub(crate) about: Option<MemberId>,
    /// Its key from now on, where that is what happened.
    pub(crate) new_key: Option<PublicKey>,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// A frame for everybody else.
    Frame(String),
    /// The topic needs a key, which this member is to make.
    KeyWanted { minter: MemberId },
    /// The topic has a key, which each subscriber may have.
    KeyThere { topic: TopicName, epoch: u32 },
}

impl Listening {
    /// None when it was too far behind.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> Option<Arc<Told>> {
        self.heard.recv().await.ok()
    }

    /// What is there already.
    pub(crate) fn more(&mut self) -> Option<Arc<Told>> {
        self.heard.try_recv().ok()
    }
}

impl Hubs {
    /// From now on: what `last` returns is the number of the last event so far.
    pub(crate) fn listen(&self, door: &Arc<Door>, caller: &Caller, mesh: MeshId, last: i64) -> Listening {
        let mut hubs = self.lock();
        let key = (caller.tenant, mesh);
        let hub = match hubs.get(&key).and_then(Weak::upgrade) {
            Some(hub) => hub,
            None => {
                let hub = Arc::new(Hub { told: broadcast::Sender::new(BEHIND_MAX) });
                hubs.retain(|_, hub| hub.strong_count() > 0);
                hubs.insert(key, Arc::downgrade(&hub));
                let reading = Reading { door: Arc::clone(door), caller: caller.clone(), mesh, after: last };
                tokio::spawn(reading.run(Arc::downgrade(&hub)));
                hub
            }
        };
        let heard = hub.told.subscribe();
        Listening { _hub: hub, heard }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Tenant, MeshId), Weak<Hub>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one mesh.
struct Reading {
    door: Arc<Door>,
    caller: Caller,
    mesh: MeshId,
    after: i64,
}

impl Reading {
    async fn run(mut self, hub: Weak<Hub>) {
        // Looked at again now and then where a wake of another node may be lost, and so that it ends with its last socket.
        let look_again = Duration::from_millis(self.door.settings.redeliver_ms);
        loop {
            // Before the read, so that what is written after it is not missed.
            let flag = self.door.store.flag(events_topic(self.caller.tenant, self.mesh));
            match self.read(&hub).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, "what happened to a mesh could not be read; it is tried again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
            if hub.strong_count() == 0 {
                return;
            }
            let _ = tokio::time::timeout(look_again, flag.wait()).await;
        }
    }

    /// True when there may be more.
    async fn read(&mut self, hub: &Weak<Hub>) -> Result<bool> {
        let read = ReadMeshEvents { mesh: self.mesh, after: self.after, limit: None };
        let (page, _) = self.door.run(&self.caller, read).await?;
        for event in page.events {
            let seq = event.seq;
            let told = Self::told(event)?;
            if let (Some(told), Some(hub)) = (told, hub.upgrade()) {
                // Nobody hears it when the last socket has just gone.
                let _ = hub.told.send(Arc::new(told));
            }
            self.after = seq;
        }
        Ok(page.more)
    }

    fn told(event: MeshEvent) -> Result<Option<Told>> {
        let MeshEvent { kind, member, data, .. } = event;
        let what = match (kind, member) {
            (EventKind::EpochRequested, Some(minter)) => Some(What::KeyWanted { minter }),
            (EventKind::EpochSwitched, _) => {
                field(&data, "topic").zip(field(&data, "epoch")).map(|(topic, epoch)| What::KeyThere { topic, epoch })
            }
            (kind, Some(member)) => frame(kind, member, &data).map(text).transpose()?.map(What::Frame),
            _ => None,
        };
        let rotation: Option<Rotation> = field(&data, "rotation");
        let new_key = rotation.map(|rotation| rotation.keys.ed25519);
        Ok(what.map(|what| Told { about: member, new_key, what }))
    }
}

/// None for what only the audit is about.
fn frame(kind: EventKind, member_id: MemberId, data: &Json) -> Option<ServerFrame> {
    let gone = || Some(MemberGone { member_id, key: field(data, "key")? });
    let is_visible = field::<bool>(data, "visible").unwrap_or(true);
    match kind {
        EventKind::PeerJoin if is_visible => {
            let (name, keys) = (field(data, "name")?, field(data, "keys")?);
            Some(ServerFrame::PeerJoin(Peer { member_id, name, keys, online: true }))
        }
        EventKind::PeerLeave if is_visible => gone().map(ServerFrame::PeerLeave),
        EventKind::MemberLeft => gone().map(ServerFrame::PeerLeave),
        EventKind::MemberRevoked => gone().map(ServerFrame::MemberRevoked),
        EventKind::MemberRenamed => {
            let (key, name) = (field(data, "key")?, field(data, "to")?);
            Some(ServerFrame::MemberRenamed(MemberRenamed { member_id, key, name }))
        }
        EventKind::MemberKeypairRotated => {
            Some(ServerFrame::MemberKeypairRotated(KeypairRotated { member_id, rotation: field(data, "rotation")? }))
        }
        _ => None,
    }
}

fn field<T: DeserializeOwned>(data: &Json, name: &str) -> Option<T> {
    serde_json::from_value(data.get(name)?.clone()).ok()
}
