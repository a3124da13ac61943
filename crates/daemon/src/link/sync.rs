//! The directory as the broker has it now: members, topics, keys of topics. Read when a connection begins and when something came
//! that the directory cannot explain.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use waybill_kernel::Result;
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{EpochKey, MemberId, MemberKeys};

use super::epochs::Source;
use super::inbound::Arrival;
use super::{Parts, ending, epochs};
use crate::directory::{Change, Former, MEMBERS_MAX, Member, Standing, TOPICS_MAX, Topic};

/// Of one page.
const PAGE: usize = 1_000;
/// Pages of keys in one reading; a topic that has so many epochs is read on with the next.
const KEY_PAGES_MAX: usize = 1_000;
/// Steps from key to key that are read of one member, the newest; a broker names no more.
const STEPS_MAX: usize = 8;

#[derive(Deserialize)]
struct MembersPage {
    members: Vec<MemberView>,
    next_after: Option<MemberId>,
}

// What a newer broker says beyond these is passed over.

#[derive(Deserialize)]
struct MemberView {
    member_id: MemberId,
    name: String,
    is_owner: bool,
    keys: MemberKeys,
    /// Not said of one that has left.
    #[serde(default)]
    online: bool,
    /// From key to key, each step signed by both.
    #[serde(default)]
    rotations: Vec<Rotation>,
}

#[derive(Deserialize)]
struct TopicsPage {
    topics: Vec<TopicView>,
    next_after: Option<String>,
}

#[derive(Deserialize)]
struct TopicView {
    topic: String,
    subscribed: bool,
    /// 0 while there is none.
    epoch: u32,
}

#[derive(Deserialize)]
struct KeysPage {
    keys: Vec<EpochKey>,
    more: bool,
    /// Who has made some of these keys and has left since: the list of members does not name them.
    #[serde(default)]
    departed: Vec<MemberView>,
}

pub async fn sync(parts: &Parts) -> Result<()> {
    members(parts).await?;
    topics(parts).await?;
    if parts.directory.is_plaintext() { Ok(()) } else { keys(parts).await }
}

/// Reads it again whenever it is asked for, and says so when it has.
pub async fn keep(parts: &Parts, arrivals: &mpsc::Sender<Arrival>) -> Result<()> {
    let pause = Duration::from_millis(parts.settings.sync_pause_ms);
    let pause_after_failure = Duration::from_millis(parts.settings.sync_retry_ms);
    loop {
        parts.refresh.notified().await;
        match sync(parts).await {
            Ok(()) => {
                parts.refreshed.notify_waiters();
                parts.resealer.direct_messages().await?;
                arrivals.send(Arrival::Refreshed).await.map_err(|_| ending::lost("the inbox has ended"))?;
                tokio::time::sleep(pause).await;
            }
            Err(error) => {
                tracing::warn!(%error, cause = error.cause(), "members and topics could not be read from the broker");
                tokio::time::sleep(pause_after_failure).await;
                parts.refresh.notify_one();
            }
        }
    }
}

async fn members(parts: &Parts) -> Result<()> {
    // Who joins or ends while the list is on its way is told by frames, and those are newer than the list.
    let before = parts.directory.snapshot();
    let mut named = HashSet::new();
    let mut after: Option<MemberId> = None;
    while named.len() < MEMBERS_MAX {
        let query = after.map_or_else(String::new, |after| format!("&after={after}"));
        let page: MembersPage = parts.broker.get(&format!("mesh/v1/members?limit={PAGE}{query}")).await?;
        for view in &page.members {
            named.insert(view.member_id);
            parts.presence.set(view.member_id, view.online);
        }
        learn(parts, &before, &page.members, |_| Standing::Active).await?;
        after = page.next_after;
        if after.is_none() {
            break;
        }
    }
    let is_left_out = |member: &&Member| member.state == Standing::Active && !named.contains(&member.id);
    let gone = before.values().filter(is_left_out).filter_map(|member| parts.directory.member(&member.id));
    let gone = gone.filter(|member| member.state == Standing::Active);
    let changes = gone.map(|member| Change::Member(Member { state: Standing::Gone, ..member })).collect();
    parts.directory.learn(changes).await
}

/// Members as the broker names them, with the signed steps that lead to their keys.
async fn learn(
    parts: &Parts,
    before: &HashMap<MemberId, Member>,
    views: &[MemberView],
    standing: impl Fn(MemberId) -> Standing,
) -> Result<()> {
    let steps: Vec<Rotation> = views.iter().flat_map(|view| view.rotations.iter().copied()).collect();
    let members = views.iter().map(|view| Member {
        id: view.member_id,
        name: view.name.clone(),
        keys: view.keys,
        is_owner: view.is_owner,
        state: standing(view.member_id),
    });
    let proven = |known: &Member, offered: &Member| leads_to(parts, &steps, known, offered);
    parts.directory.learn_list(before, members.collect(), proven).await?;
    for view in views.iter().filter(|view| !view.rotations.is_empty()) {
        former_keys(parts, view).await?;
    }
    Ok(())
}

/// Whether signed steps lead from the key that is known to the one that is offered.
fn leads_to(parts: &Parts, steps: &[Rotation], known: &Member, offered: &Member) -> bool {
    let mut at = known.keys.ed25519;
    for _ in 0..=steps.len() {
        if at == offered.keys.ed25519 {
            return true;
        }
        let step = steps.iter().find(|step| step.old == at && step.verify(parts.mesh).is_ok());
        let Some(step) = step else { return false };
        at = step.keys.ed25519;
    }
    false
}

/// The keys that a member has had, also those from before it was known here: what it has signed with them is still its own.
async fn former_keys(parts: &Parts, view: &MemberView) -> Result<()> {
    let (directory, member) = (&parts.directory, view.member_id);
    if directory.member(&member).is_none_or(|known| known.keys != view.keys) {
        return Ok(());
    }
    let steps = &view.rotations[view.rotations.len().saturating_sub(STEPS_MAX)..];
    let mut at = view.keys.ed25519;
    for _ in 0..steps.len() {
        let Some(step) = steps.iter().find(|step| step.keys.ed25519 == at) else { return Ok(()) };
        at = step.old;
        match directory.owner_of_key(&at) {
            Some(owner) if owner == member => continue,
            Some(_) => return Ok(()),
            None if step.verify(parts.mesh).is_err() => return Ok(()),
            None => {}
        }
        let keys = steps.iter().map(|step| step.keys).find(|keys| keys.ed25519 == at && keys.verify().is_ok());
        match keys {
            Some(MemberKeys { ed25519, x25519, .. }) => {
                directory.learn(vec![Change::Former(Former { ed25519, member, x25519 })]).await?;
            }
            // The first one: its box key comes with what was sent under it.
            None => directory.add_proven(at, member),
        }
    }
    Ok(())
}

pub async fn topics(parts: &Parts) -> Result<()> {
    let mut after: Option<String> = None;
    let mut count = 0;
    while count < TOPICS_MAX {
        // Names of topics have no character that a query would read as another.
        let query = after.map_or_else(String::new, |after| format!("&after={after}"));
        let page: TopicsPage = parts.broker.get(&format!("mesh/v1/topics?limit={PAGE}{query}")).await?;
        count += page.topics.len();
        let views = page.topics.into_iter().map(|view| {
            // Epochs only rise: a key that was pushed while this answer was on its way is newer than the answer.
            let present = parts.directory.topic(&view.topic).and_then(|topic| topic.epoch);
            let epoch = present.max((view.epoch > 0).then_some(view.epoch));
            Topic { name: view.topic, subscribed: view.subscribed, epoch }
        });
        let changed = views.filter(|topic| parts.directory.topic(&topic.name).as_ref() != Some(topic));
        parts.directory.learn(changed.map(Change::Topic).collect()).await?;
        after = page.next_after;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

async fn keys(parts: &Parts) -> Result<()> {
    // None of them comes back: whoever joins again is another member.
    let standing = |id: MemberId| {
        let known = parts.directory.member(&id).map(|known| known.state);
        known.filter(|state| *state != Standing::Active).unwrap_or(Standing::Gone)
    };
    // And none is renamed any more, so nothing that was told meanwhile is newer than the list.
    let before = HashMap::new();
    let mut query = String::new();
    for _ in 0..KEY_PAGES_MAX {
        let page: KeysPage = parts.broker.get(&format!("mesh/v1/epochs{query}")).await?;
        learn(parts, &before, &page.departed, standing).await?;
        for key in &page.keys {
            if epochs::learn(parts, key, Source::Read).await? {
                parts.resealer.destination("topic", key.topic.as_str()).await?;
            }
        }
        match page.keys.last() {
            Some(last) if page.more => query = format!("?after_topic={}&after_epoch={}", last.topic, last.epoch),
            _ => return Ok(()),
        }
    }
    Ok(())
}
