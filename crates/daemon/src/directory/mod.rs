//! Who is in the mesh and which keys open what, as far as this member knows.
//!
//! The broker tells it and the rules ([`rules`]) decide what is believed. Rows in `inbox.db` come first, memory after their
//! commit, so what is sealed for a member could be sealed for it again after a crash. Reads are from memory: a send that is
//! accepted without a network asks nobody.

mod rows;
pub mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{BoxPublicKey, MemberId, MemberKeys, PublicKey, TopicKey};
use waybill_store::Store;

pub use rules::Doubt;

use crate::metrics;

/// Members there may be; a broker that names more is not believed. As many that have ended are remembered beside them.
pub const MEMBERS_MAX: usize = 100_000;
/// Members that have ended and are forgotten in one transaction.
const FORGOTTEN_MAX: usize = 4_096;
/// Topics this daemon remembers.
pub const TOPICS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Active,
    Revoked,
    /// Has left, or the broker does not name it any more.
    Gone,
}

impl Standing {
    const ALL: [Self; 3] = [Self::Active, Self::Revoked, Self::Gone];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Revoked => "revoked",
            Self::Gone => "gone",
        }
    }

    fn from_stored(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| Error::internal(format!("the directory holds a state {text:?}")))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: MemberId,
    pub name: String,
    pub keys: MemberKeys,
    pub is_owner: bool,
    pub state: Standing,
}

/// A key that a member had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    pub ed25519: PublicKey,
    pub member: MemberId,
    pub x25519: BoxPublicKey,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    pub subscribed: bool,
    /// The one to post under. None while its key is not known.
    pub epoch: Option<u32>,
}

/// Something that the directory learns.
#[derive(Clone, Debug)]
pub enum Change {
    Member(Member),
    /// A member that ended long ago is known no more.
    Forget(MemberId),
    Former(Former),
    Topic(Topic),
    EpochKey {
        topic: String,
        epoch: u32,
        key: TopicKey,
    },
}

#[derive(Clone, Debug, Default)]
struct State {
    members: HashMap<MemberId, Member>,
    by_key: HashMap<PublicKey, MemberId>,
    former: HashMap<PublicKey, Former>,
    /// Keys from before a member was known here, which signed steps lead on from; their box keys are not known. In memory alone:
    /// the broker names the steps with every reading of its members.
    proven: HashMap<PublicKey, MemberId>,
    /// The keys of both, by member: each message asks for those of one.
    had: HashMap<MemberId, Vec<PublicKey>>,
    topics: HashMap<String, Topic>,
    /// By topic and epoch.
    keys: HashMap<String, BTreeMap<u32, TopicKey>>,
}

impl State {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Member(member) => {
                if let Some(known) = self.members.get(&member.id) {
                    self.by_key.remove(&known.keys.ed25519);
                }
                self.by_key.insert(member.keys.ed25519, member.id);
                self.members.insert(member.id, member);
            }
            Change::Forget(id) => {
                if let Some(known) = self.members.remove(&id) {
                    self.by_key.remove(&known.keys.ed25519);
                }
            }
            Change::Former(former) => {
                self.note(former.member, former.ed25519);
                self.former.insert(former.ed25519, former);
            }
            Change::Topic(topic) => {
                self.topics.insert(topic.name.clone(), topic);
            }
            // The first one stays: no key replaces another of the same epoch.
            Change::EpochKey { topic, epoch, key } => {
                self.keys.entry(topic).or_default().entry(epoch).or_insert(key);
            }
        }
    }

    fn note(&mut self, member: MemberId, key: PublicKey) {
        let had = self.had.entry(member).or_default();
        if !had.contains(&key) {
            had.push(key);
        }
    }

    /// Keys that the member had, as far as they are known.
    fn had(&self, member: &MemberId) -> &[PublicKey] {
        self.had.get(member).map_or(&[], Vec::as_slice)
    }

    fn by_key(&self, key: &PublicKey) -> Option<&Member> {
        self.by_key.get(key).and_then(|id| self.members.get(id))
    }

    /// Who has this key or had it. Never two: a key that belongs to one is not believed of another.
    fn owner_of(&self, key: &PublicKey) -> Option<MemberId> {
        let former = || self.former.get(key).map(|former| former.member);
        self.by_key.get(key).copied().or_else(former).or_else(|| self.proven.get(key).copied())
    }

    fn holder(&self, key: &PublicKey) -> Option<&Member> {
        self.owner_of(key).and_then(|id| self.members.get(&id))
    }

    fn active(&self) -> usize {
        self.members.values().filter(|member| member.state == Standing::Active).count()
    }

    /// Whom to forget once more than this are known, with those of `fresh`: of those that have ended the oldest. Ids of members rise
    /// with time. Who has other keys stays, because signed steps lead on from them.
    fn excess(&self, fresh: &Self, max: usize) -> Vec<MemberId> {
        let new = fresh.members.keys().filter(|id| !self.members.contains_key(id)).count();
        if self.members.len() + new <= max {
            return Vec::new();
        }
        let with_others = self.former.values().map(|former| former.member).chain(self.proven.values().copied());
        let kept: HashSet<MemberId> = with_others.chain(fresh.members.keys().copied()).collect();
        let ended = self.members.values().filter(|member| member.state != Standing::Active && !member.is_owner);
        let mut spare: Vec<MemberId> = ended.map(|member| member.id).filter(|id| !kept.contains(id)).collect();
        spare.sort_unstable();
        spare.truncate(FORGOTTEN_MAX);
        spare
    }
}

#[derive(Clone)]
pub struct Directory(Arc<Inner>);

struct Inner {
    store: Store,
    /// As the invite has pinned it.
    owner: PublicKey,
    plaintext: bool,
    members_max: usize,
    state: RwLock<State>,
    /// Changes are written one after another: a rule that reads memory must see what the change before it has left there.
    writing: tokio::sync::Mutex<()>,
    /// Counts changes, for those who wait for one.
    version: watch::Sender<u64>,
}

impl Directory {
    pub async fn open(store: Store, owner: PublicKey, plaintext: bool) -> Result<Self> {
        Self::bounded(store, owner, plaintext, MEMBERS_MAX).await
    }

    async fn bounded(store: Store, owner: PublicKey, plaintext: bool, members_max: usize) -> Result<Self> {
        let state = RwLock::new(store.system().run(rows::Load).await?);
        let (writing, version) = (tokio::sync::Mutex::default(), watch::Sender::new(0));
        Ok(Self(Arc::new(Inner { store, owner, plaintext, members_max, state, writing, version })))
    }

    pub fn is_plaintext(&self) -> bool {
        self.0.plaintext
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A live member by its name or its key.
    pub fn resolve(&self, to: &str) -> Result<Member> {
        let key = to.to_ascii_lowercase().parse::<PublicKey>().ok();
        self.read(|state| {
            let mut found: Vec<&Member> = match key {
                // A key that was rotated out still says who is meant.
                Some(key) => state.holder(&key).into_iter().collect(),
                None => state.members.values().filter(|member| member.name == to).collect(),
            };
            found.retain(|member| member.state == Standing::Active);
            match found.as_slice() {
                [member] => Ok((*member).clone()),
                [] => Err(Error::new(Code::MemberUnknown, format!("There is no member {to:?} in the mesh."))),
                _ => Err(Error::invalid(format!("Several members are called {to:?}: name one by its key."))),
            }
        })
    }

    /// Who has this key or had it, with a box key that is known. Where that makes no difference, [`Self::owner_of_key`].
    pub fn holder(&self, key: &PublicKey) -> Option<Member> {
        self.read(|state| {
            let former = || state.former.get(key).and_then(|former| state.members.get(&former.member));
            state.by_key(key).or_else(former).cloned()
        })
    }

    /// The member that has this key or had it, also one that only signed steps tell of.
    pub fn owner_of_key(&self, key: &PublicKey) -> Option<MemberId> {
        self.read(|state| state.owner_of(key))
    }

    /// Every key of the member that has this one or had it, the present one first; empty for nobody's.
    pub fn keys_beside(&self, key: &PublicKey) -> Vec<PublicKey> {
        self.read(|state| {
            let Some(id) = state.owner_of(key) else { return Vec::new() };
            let present = state.members.get(&id).map(|member| member.keys.ed25519);
            let had = state.had(&id).iter().copied().filter(|key| Some(*key) != present);
            present.into_iter().chain(had).collect()
        })
    }

    /// Signed steps lead from this key to the one that the member has now. Nothing changes for a key that belongs to somebody.
    pub fn add_proven(&self, key: PublicKey, member: MemberId) {
        if self.owner_of_key(&key).is_none() {
            let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
            state.note(member, key);
            state.proven.insert(key, member);
            drop(state);
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    /// The box keys that a message of this sender may have been sealed with: that of the named key first.
    pub fn box_keys_of(&self, sender: &PublicKey) -> Vec<BoxPublicKey> {
        self.read(|state| {
            let own = state.by_key(sender).map(|member| member.keys.x25519);
            let former = state.former.get(sender).map(|former| former.x25519);
            let Some(id) = state.by_key.get(sender).copied().or_else(|| Some(state.former.get(sender)?.member)) else {
                return Vec::new();
            };
            let others = state.had(&id).iter().filter_map(|key| state.former.get(key)).map(|former| former.x25519);
            let present = state.members.get(&id).map(|member| member.keys.x25519);
            let mut keys: Vec<BoxPublicKey> = Vec::new();
            for key in own.into_iter().chain(former).chain(others).chain(present) {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            keys
        })
    }

    pub fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = self.read(|state| state.members.values().cloned().collect());
        members.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        members
    }

    /// Who is known now, to compare a list with that is about to be read.
    pub fn snapshot(&self) -> HashMap<MemberId, Member> {
        self.read(|state| state.members.clone())
    }

    pub fn topics(&self) -> Vec<Topic> {
        let mut topics: Vec<Topic> = self.read(|state| state.topics.values().cloned().collect());
        topics.sort_by(|one, other| one.name.cmp(&other.name));
        topics
    }

    pub fn topic(&self, name: &str) -> Option<Topic> {
        self.read(|state| state.topics.get(name).cloned())
    }

    /// What to seal a post with; None within on a plaintext mesh. The newest key that is here, up to the topic's epoch: that an
    /// epoch has begun may be known before its key has come, and the broker says which epochs it does not take any more.
    ///
    /// # Errors
    /// `topic_unknown` when the topic is not known here, or no key of it.
    pub fn posting_key(&self, topic: &str) -> Result<Option<(u32, TopicKey)>> {
        let unknown = || Error::new(Code::TopicUnknown, format!("This member holds no key of a topic {topic:?}."));
        self.read(|state| {
            let known = state.topics.get(topic).filter(|topic| topic.subscribed).ok_or_else(unknown)?;
            if self.0.plaintext {
                return Ok(None);
            }
            let epoch = known.epoch.ok_or_else(unknown)?;
            let newest = state.keys.get(topic).and_then(|keys| keys.range(..=epoch).next_back());
            let (epoch, key) = newest.ok_or_else(unknown)?;
            Ok(Some((*epoch, key.clone())))
        })
    }

    pub fn epoch_key(&self, topic: &str, epoch: u32) -> Option<TopicKey> {
        self.read(|state| state.keys.get(topic).and_then(|keys| keys.get(&epoch)).cloned())
    }

    /// All topic keys, for a backup.
    pub fn epoch_keys(&self) -> Vec<(String, u32, TopicKey)> {
        let mut keys: Vec<_> = self.read(|state| {
            let of_topics = state.keys.iter();
            of_topics
                .flat_map(|(topic, keys)| keys.iter().map(|(epoch, key)| (topic.clone(), *epoch, key.clone())))
                .collect()
        });
        keys.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        keys
    }

    /// Changes whenever something was learnt.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    /// Learns of members, each if it is believed. `proven` says whose new key was signed by the key known before.
    pub async fn learn_members(&self, offered: Vec<Member>, proven: impl Fn(&Member, &Member) -> bool) -> Result<()> {
        self.learn_list(&HashMap::new(), offered, proven).await
    }

    /// As [`Self::learn_members`], from a list that was asked for when `before` was known: a name or an end that was told while
    /// the list was on its way is newer than the list.
    pub async fn learn_list(
        &self,
        before: &HashMap<MemberId, Member>,
        offered: Vec<Member>,
        proven: impl Fn(&Member, &Member) -> bool,
    ) -> Result<()> {
        let _one = self.0.writing.lock().await;
        let mut changes = Vec::new();
        // What this list has brought so far comes before memory: two of its entries may claim one key.
        let mut fresh = State::default();
        let mut active = self.read(State::active);
        for mut member in offered {
            let known = fresh.members.get(&member.id).cloned().or_else(|| self.member(&member.id));
            if let (Some(known), Some(before)) = (&known, before.get(&member.id)) {
                keep_newer(&mut member, known, before);
            }
            if known.as_ref() == Some(&member) {
                continue;
            }
            let is_proven = match &known {
                Some(known) => proven(known, &member),
                // An owner who has rotated before it was known here, as after a restore: only the pinned key speaks for it.
                None if member.is_owner && !self.knows_an_owner(&fresh) => {
                    let keys = MemberKeys { ed25519: self.0.owner, ..member.keys };
                    proven(&Member { keys, ..member.clone() }, &member)
                }
                None => false,
            };
            let owner = self.owner_of(&fresh);
            let key = &member.keys.ed25519;
            let holder = fresh.holder(key).cloned().or_else(|| self.read(|state| state.holder(key).cloned()));
            let judged = rules::Known { member: known.as_ref(), holder: holder.as_ref(), owner: &owner };
            let verdict = rules::believe(&judged, &member, is_proven);
            if let Err(doubt) = verdict {
                metrics::invalid_inbound(doubt.name());
                tracing::error!(member.id = %member.id, doubt = doubt.name(), "what the broker says of a member is not believed");
                continue;
            }
            let was_active = known.as_ref().is_some_and(|known| known.state == Standing::Active);
            let is_one_more = member.state == Standing::Active && !was_active;
            if is_one_more && active >= self.0.members_max {
                tracing::error!("the broker names more than {} members", self.0.members_max);
                break;
            }
            active += usize::from(is_one_more);
            let former = known.filter(|known| known.keys.ed25519 != member.keys.ed25519).map(|known| Former {
                ed25519: known.keys.ed25519,
                member: known.id,
                x25519: known.keys.x25519,
            });
            for change in former.map(Change::Former).into_iter().chain([Change::Member(member)]) {
                fresh.apply(change.clone());
                changes.push(change);
            }
        }
        let forgotten = self.read(|state| state.excess(&fresh, self.0.members_max.saturating_mul(2)));
        changes.extend(forgotten.into_iter().map(Change::Forget));
        self.commit(changes).await
    }

    /// A mesh has one owner. Whoever has stolen a key that the owner had before could sign another one into that place.
    fn knows_an_owner(&self, fresh: &State) -> bool {
        let has_owner = |state: &State| state.members.values().any(|member| member.is_owner);
        has_owner(fresh) || self.read(has_owner)
    }

    /// The pinned key, or the one that the member who had it has by now.
    fn owner_of(&self, fresh: &State) -> PublicKey {
        let pinned = self.0.owner;
        let holder = match fresh.former.get(&pinned) {
            Some(former) => fresh.members.get(&former.member).cloned(),
            None => self
                .owner_of_key(&pinned)
                .and_then(|owner| fresh.members.get(&owner).cloned().or_else(|| self.member(&owner))),
        };
        holder.map_or(pinned, |member| member.keys.ed25519)
    }

    pub fn member(&self, id: &MemberId) -> Option<Member> {
        self.read(|state| state.members.get(id).cloned())
    }

    pub async fn learn(&self, changes: Vec<Change>) -> Result<()> {
        let _one = self.0.writing.lock().await;
        self.commit(changes).await
    }

    /// A member by this key has another standing or name. Nothing happens for one that is not known.
    pub async fn update(&self, key: &PublicKey, change: impl FnOnce(&mut Member)) -> Result<Option<Member>> {
        let _one = self.0.writing.lock().await;
        let Some(mut member) = self.holder(key) else { return Ok(None) };
        change(&mut member);
        self.commit(vec![Change::Member(member.clone())]).await?;
        Ok(Some(member))
    }

    /// Rows first, then memory, then those who wait.
    async fn commit(&self, changes: Vec<Change>) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        self.0.store.system().run(rows::Save(changes.clone())).await?;
        {
            let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
            changes.into_iter().for_each(|change| state.apply(change));
        }
        self.0.version.send_modify(|version| *version += 1);
        Ok(())
    }
}

/// What `known` has become since `before`, the list cannot have.
fn keep_newer(listed: &mut Member, known: &Member, before: &Member) {
    if known.name != before.name {
        listed.name.clone_from(&known.name);
    }
    if known.state != Standing::Active && before.state == Standing::Active {
        listed.state = known.state;
    }
}
