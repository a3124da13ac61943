//! What happens to a mesh, told to all of its members who are connected here. Read once for all of them.
//!
//! One task for each mesh with a socket here: it ends with the last of them. Whoever falls so far behind that events are lost
//! for it is closed, comes again, and reads the directory anew.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::TryRecvError;
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

type ByMesh = HashMap<(Tenant, MeshId), Weak<Hub>>;

/// All of them. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Hubs(Arc<Mutex<ByMesh>>);

/// Those of one mesh.
pub(crate) struct Hub {
    told: broadcast::Sender<Arc<Told>>,
    recent: Mutex<Recent>,
}

/// The last events, for those who have connected before one of them and listen only after it.
struct Recent {
    /// The number before the first of them.
    after: i64,
    events: VecDeque<(i64, Arc<Told>)>,
}

/// A socket's ear, which keeps the hub alive.
pub(crate) struct Listening {
    _hub: Arc<Hub>,
    heard: broadcast::Receiver<Arc<Told>>,
    /// To be told before what is heard.
    backlog: VecDeque<Arc<Told>>,
    /// What the hub does not have any more, or never had: after the one and up to the other.
    gap: Option<(i64, i64)>,
    /// Something was lost.
    is_too_far_behind: bool,
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
        match self.backlog.pop_front() {
            Some(told) => Some(told),
            None if self.is_too_far_behind => None,
            None => self.heard.recv().await.ok(),
        }
    }

    /// What is there already.
    pub(crate) fn more(&mut self) -> Option<Arc<Told>> {
        if let Some(told) = self.backlog.pop_front() {
            return Some(told);
        }
        if self.is_too_far_behind {
            return None;
        }
        let heard = self.heard.try_recv();
        // The one after it would be told as if nothing had been between.
        self.is_too_far_behind |= matches!(heard, Err(TryRecvError::Lagged(_)));
        heard.ok()
    }

    /// Reads what the hub cannot tell.
    pub(crate) async fn catch_up(&mut self, door: &Door, caller: &Caller, mesh: MeshId) -> Result<()> {
        let Some((mut after, up_to)) = self.gap.take() else { return Ok(()) };
        let mut missed = Vec::new();
        while after < up_to && missed.len() <= BEHIND_MAX {
            let (page, _) = door.run(caller, ReadMeshEvents { mesh, after, limit: None }).await?;
            let Some(last) = page.events.last().map(|event| event.seq) else {
                // Nothing is left between.
                after = up_to;
                break;
            };
            for event in page.events.into_iter().filter(|event| event.seq <= up_to) {
                missed.extend(told(event)?.map(Arc::new));
            }
            after = last;
        }
        self.fill_gap(missed, after >= up_to);
        Ok(())
    }

    /// What was missed comes before everything else. Where not all of it was read, nothing comes after it: that would be told as if
    /// nothing had been between.
    fn fill_gap(&mut self, missed: Vec<Arc<Told>>, is_whole: bool) {
        if !is_whole {
            self.is_too_far_behind = true;
            self.backlog.clear();
        }
        missed.into_iter().rev().for_each(|told| self.backlog.push_front(told));
    }
}

impl Hub {
    fn tell(&self, seq: i64, told: Option<Told>) {
        let mut recent = self.lock();
        let Some(told) = told.map(Arc::new) else { return };
        if recent.events.len() >= BEHIND_MAX
            && let Some((oldest, _)) = recent.events.pop_front()
        {
            recent.after = oldest;
        }
        recent.events.push_back((seq, Arc::clone(&told)));
        // Nobody hears it when the last socket has just gone.
        let _ = self.told.send(told);
    }

    /// Everything after `last`: what was told before, and from now on what is heard.
    fn listen(self: Arc<Self>, last: i64) -> Listening {
        let recent = self.lock();
        let heard = self.told.subscribe();
        let newer = recent.events.iter().filter(|(seq, _)| *seq > last);
        let backlog = newer.map(|(_, told)| Arc::clone(told)).collect();
        let gap = (last < recent.after).then_some((last, recent.after));
        drop(recent);
        Listening { _hub: self, heard, backlog, gap, is_too_far_behind: false }
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hubs {
    /// What happens after the event with this number.
    pub(crate) fn listen(&self, door: &Arc<Door>, caller: &Caller, mesh: MeshId, last: i64) -> Listening {
        let mut hubs = self.lock();
        let key = (caller.tenant, mesh);
        let hub = match hubs.get(&key).and_then(Weak::upgrade) {
            Some(hub) => hub,
            None => {
                let recent = Mutex::new(Recent { after: last, events: VecDeque::new() });
                let hub = Arc::new(Hub { told: broadcast::Sender::new(BEHIND_MAX), recent });
                hubs.retain(|_, hub| hub.strong_count() > 0);
                hubs.insert(key, Arc::downgrade(&hub));
                let reading = Reading { door: Arc::clone(door), caller: caller.clone(), mesh, after: last };
                tokio::spawn(reading.run(Arc::downgrade(&hub)));
                hub
            }
        };
        drop(hubs);
        hub.listen(last)
    }

    fn lock(&self) -> MutexGuard<'_, ByMesh> {
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
        let mut asked = BTreeSet::new();
        for event in page.events {
            let seq = event.seq;
            let told = told(event)?.filter(|told| is_news(told, &mut asked));
            if let Some(hub) = hub.upgrade() {
                hub.tell(seq, told);
            }
            self.after = seq;
        }
        Ok(page.more)
    }
}

/// Whoever is asked for a key looks for all that are wanted: once for what has happened together. A member that leaves hundreds of
/// topics would have its keyholder look hundreds of times, and fall behind.
fn is_news(told: &Told, asked: &mut BTreeSet<MemberId>) -> bool {
    match told.what {
        What::KeyWanted { minter } => asked.insert(minter),
        What::Frame(_) | What::KeyThere { .. } => true,
    }
}

/// None for what no socket is told.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Told {
        Told { about: None, new_key: None, what: What::Frame(text.to_owned()) }
    }

    /// The hub after so many events, of which it has the last ones.
    fn hub(events: i64) -> Arc<Hub> {
        let recent = Mutex::new(Recent { after: 0, events: VecDeque::new() });
        let hub = Arc::new(Hub { told: broadcast::Sender::new(BEHIND_MAX), recent });
        (1..=events).for_each(|seq| hub.tell(seq, Some(told(&seq.to_string()))));
        hub
    }

    /// All that is told, and whether the socket ends after it.
    async fn all(listening: &mut Listening) -> (Vec<String>, bool) {
        let mut texts = Vec::new();
        while let Some(next) = listening.more() {
            let What::Frame(text) = &next.what else { panic!("{next:?}") };
            texts.push(text.clone());
        }
        (texts, listening.is_too_far_behind && listening.next().await.is_none())
    }

    #[tokio::test]
    async fn a_gap_that_is_read_to_its_end_is_told_before_what_the_hub_has() {
        let hub = hub(BEHIND_MAX as i64 + 2);
        let mut listening = Arc::clone(&hub).listen(0);
        assert_eq!(listening.gap.take(), Some((0, 2)));
        listening.fill_gap(vec![Arc::new(told("1")), Arc::new(told("2"))], true);
        hub.tell(BEHIND_MAX as i64 + 3, Some(told("heard")));
        let mut expected: Vec<String> = (1..=BEHIND_MAX + 2).map(|seq| seq.to_string()).collect();
        expected.push("heard".to_owned());
        assert_eq!(all(&mut listening).await, (expected, false));
    }

    #[tokio::test]
    async fn a_gap_that_is_too_long_ends_the_socket_and_nothing_after_it_is_told() {
        let hub = hub(BEHIND_MAX as i64 + 3);
        let mut listening = Arc::clone(&hub).listen(0);
        listening.fill_gap(vec![Arc::new(told("1")), Arc::new(told("2"))], false);
        hub.tell(BEHIND_MAX as i64 + 4, Some(told("heard")));
        assert_eq!(all(&mut listening).await, (vec!["1".to_owned(), "2".to_owned()], true));
    }
}
