//! A message without a daemon: sealed here, signed by the member, and handed to the server at once.
//!
//! It keeps the same promises at the server (one message per id), and none at home: whoever is not answered has to send it again
//! under the same id, which `--id` is for. Nothing remembers the bytes of the first attempt, and other bytes would be another request
//! under that id; so what is random in them is derived from the keys, the id and the message, and comes out the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use waybill_daemon::directory::{Change, Directory, Member as Known, Standing, Topic};
use waybill_daemon::seal::{Draft, Sealer};
use waybill_daemon::{Lock, folder, inbox, link};
use waybill_kernel::{Clock, Code, Entropy, Error, Result, base62};
use waybill_mesh_protocol::{DestinationKind, MemberId, MemberKeys};

use super::home::{At, Member, entropy};
use crate::output;

/// Letters of an id that is minted here.
const ID_LETTERS: usize = 22;
const PAGE: usize = 1_000;
/// Beyond any mesh there may be.
const PAGES_MAX: usize = 1_000;

#[derive(Deserialize)]
struct MembersPage {
    members: Vec<MemberView>,
    next_after: Option<MemberId>,
}

// What a newer server says beyond these is passed over.

#[derive(Deserialize)]
struct MemberView {
    member_id: MemberId,
    name: String,
    is_owner: bool,
    keys: MemberKeys,
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
    epoch: u32,
}

pub async fn send(at: &At, body: Json) -> Result<Json> {
    let to = body["to"].as_str().unwrap_or_default().to_owned();
    let queue = body["queue"].as_str().map(str::to_owned);
    transmit(at, &body, async |directory, broker| {
        if let Some(queue) = queue {
            return Ok((DestinationKind::Queue, queue));
        }
        // The members are read anew each time: nobody has kept the list up to date.
        let doubted = learn_members(directory, broker).await?;
        let member = find_member(directory, &doubted, &to)?;
        Ok((DestinationKind::Dm, member.keys.ed25519.to_string()))
    })
    .await
}

pub async fn post(at: &At, body: Json) -> Result<Json> {
    let topic = body["topic"].as_str().unwrap_or_default().to_owned();
    transmit(at, &body, async |directory, broker| {
        learn_topics(directory, broker).await?;
        directory.posting_key(&topic).map_err(|error| match error.code() {
            Code::TopicUnknown => error.with_cure(
                "Subscribe with `waybill mesh topics subscribe`, and start a daemon: it gets the topic's key and keeps it.",
            ),
            _ => error,
        })?;
        Ok((DestinationKind::Topic, topic.clone()))
    })
    .await
}

async fn transmit(
    at: &At,
    body: &Json,
    find: impl AsyncFnOnce(&Directory, &link::Broker) -> Result<(DestinationKind, String)>,
) -> Result<Json> {
    let member = at.member()?;
    // A daemon that is about to start must not find the file open.
    let _lock = Lock::take(&member.folder)?;
    output::note("No daemon runs: the message goes to the server directly, and is not kept here if that fails.")?;
    let Member { folder, membership } = &member;
    let clock = Arc::new(Clock::system());
    let (store, _) = inbox::open_store(&folder.file(folder::INBOX), &clock, &entropy()).await?;
    let outcome = async {
        let directory = Directory::open(store.clone(), membership.owner.ed25519, membership.plaintext).await?;
        let broker = member.broker()?;
        let (destination_kind, destination_ref) = find(&directory, &broker).await?;
        let draft = draft(body, destination_kind, destination_ref)?;
        let id: String = match body["client_message_id"].as_str() {
            Some(id) => id.to_owned(),
            None => base62::random::<ID_LETTERS>(entropy().as_ref()).into_iter().map(char::from).collect(),
        };
        let keyring = member.keyring()?;
        let text = serde_json::to_string(&draft).map_err(Error::internal)?;
        let derived = Arc::new(Derived::new(&keyring.identity().box_secret().to_hex(), &id, &text));
        let parcel = Sealer::new(membership.mesh, directory, keyring, derived).seal(&id, &draft)?;
        let envelope: Json = serde_json::from_str(&parcel.envelope).map_err(Error::internal)?;
        let request = json!({ "client_message_id": id, "envelope": envelope });
        broker.post::<Json>("mesh/v1/messages", &request).await
    };
    let answer = outcome.await;
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
    answer
}

/// The same for the same message under the same id, and known to nobody without the member's secret.
struct Derived {
    seed: [u8; 32],
    block: AtomicU64,
}

impl Derived {
    fn new(secret: &str, id: &str, message: &str) -> Self {
        // Lengths first, so that no two triples read alike.
        let mut seed = Sha256::new().chain_update("waybill-direct-v1");
        for part in [secret, id, message] {
            seed = seed.chain_update((part.len() as u64).to_be_bytes()).chain_update(part);
        }
        Self { seed: seed.finalize().into(), block: AtomicU64::new(0) }
    }
}

impl Entropy for Derived {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let block = self.block.fetch_add(1, Ordering::Relaxed);
            let digest = Sha256::new().chain_update(self.seed).chain_update(block.to_be_bytes()).finalize();
            chunk.copy_from_slice(&digest[..chunk.len()]);
        }
    }
}

fn draft(body: &Json, destination_kind: DestinationKind, destination_ref: String) -> Result<Draft> {
    let mut fields = json!({
        "destination_kind": destination_kind,
        "destination_ref": destination_ref,
        "priority": body["priority"],
        "body": body["message"],
    });
    for (name, given) in [("meta", "meta"), ("reply_to", "replyToId"), ("mentions", "mentions")] {
        if !body[given].is_null() {
            fields[name] = body[given].clone();
        }
    }
    serde_json::from_value(fields).map_err(|error| Error::invalid(format!("The message cannot be sent: {error}.")))
}

/// Answers with those whose keys are not believed.
async fn learn_members(directory: &Directory, broker: &link::Broker) -> Result<Vec<MemberView>> {
    let mut doubted = Vec::new();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let page: MembersPage = broker.get(&format!("mesh/v1/members?limit={PAGE}{after}")).await?;
        let members = page.members.iter().map(|view| Known {
            id: view.member_id,
            name: view.name.clone(),
            keys: view.keys,
            is_owner: view.is_owner,
            state: Standing::Active,
        });
        // A member whose key has changed is not believed here: a daemon follows what each step is signed with.
        directory.learn_members(members.collect(), |_, _| false).await?;
        let keys = |id: &MemberId| directory.member(id).map(|known| known.keys);
        doubted.extend(page.members.into_iter().filter(|view| keys(&view.member_id) != Some(view.keys)));
        match page.next_after {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    Ok(doubted)
}

/// # Errors
/// `member_unknown` also for one with other keys than those that are believed. The server takes what is sealed for a key that was
/// replaced, and the member may not have that key any more: it would be called sent, and nobody could read it.
fn find_member(directory: &Directory, doubted: &[MemberView], to: &str) -> Result<Known> {
    let (found, key) = (directory.resolve(to), to.to_ascii_lowercase());
    let is_meant = |view: &&MemberView| {
        let is_found = found.as_ref().is_ok_and(|member| member.id == view.member_id);
        is_found || view.name == to || view.keys.ed25519.to_string() == key
    };
    let Some(view) = doubted.iter().find(is_meant) else { return found };
    let message = format!("The server names keys of {:?} that are not proven to be its own.", view.name);
    Err(Error::new(Code::MemberUnknown, message).with_cure(
        "Start the daemon once with `waybill daemon up`, then send again: it follows what a change of keys is signed with.",
    ))
}

async fn learn_topics(directory: &Directory, broker: &link::Broker) -> Result<()> {
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let page: TopicsPage = broker.get(&format!("mesh/v1/topics?limit={PAGE}{after}")).await?;
        let topics = page.topics.into_iter().map(|view| {
            // Epochs only rise.
            let present = directory.topic(&view.topic).and_then(|topic| topic.epoch);
            let epoch = present.max((view.epoch > 0).then_some(view.epoch));
            Change::Topic(Topic { name: view.topic, subscribed: view.subscribed, epoch })
        });
        directory.learn(topics.collect()).await?;
        match page.next_after {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_random_depends_on_keys_id_and_message() {
        let bytes = |secret: &str, id: &str, message: &str| {
            let mut bytes = [0; 48];
            Derived::new(secret, id, message).fill(&mut bytes);
            bytes
        };
        assert_eq!(bytes("s", "id", "m"), bytes("s", "id", "m"));
        for other in [bytes("t", "id", "m"), bytes("s", "ie", "m"), bytes("s", "id", "n"), bytes("s", "i", "dm")] {
            assert_ne!(bytes("s", "id", "m"), other);
        }
    }
}
