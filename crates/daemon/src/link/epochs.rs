//! Keys of topics: learnt from boxes that others made, and made for others when this member is the keyholder.

use waybill_kernel::Result;
use waybill_mesh_protocol::epoch::EpochOf;
use waybill_mesh_protocol::frames::{EpochBoxes, EpochWanted};
use waybill_mesh_protocol::{EpochBox, EpochKey, TopicKey};

use super::Parts;
use crate::directory::{Change, Topic};
use crate::metrics;

/// How a topic's key has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// By itself: whoever has made it may be found when the directory is read anew.
    Pushed,
    /// With the directory: to read that again would bring no more.
    Read,
}

/// Opens a topic's key and remembers it. False when there is nothing new in it, or it is not believed.
pub async fn learn(parts: &Parts, key: &EpochKey, source: Source) -> Result<bool> {
    let name = key.topic.as_str();
    let known = parts.directory.epoch_key(name, key.epoch);
    let of = EpochOf { mesh: parts.mesh, topic: &key.topic, epoch: key.epoch };
    let secrets = parts.keyring.secrets(parts.clock.now());
    let Some(opened) = secrets.iter().find_map(|(secret, _)| key.boxed.open(of, &key.minter, secret).ok()) else {
        if known.is_some() {
            // It was opened when the box key for it was still here.
            return Ok(false);
        }
        metrics::invalid_inbound("epoch_box_unreadable");
        tracing::warn!(topic = %key.topic, epoch = key.epoch, "the box of a topic's key cannot be opened");
        return Ok(false);
    };
    if known.as_ref().is_some_and(|known| *known != opened) {
        metrics::invalid_inbound("epoch_key_replaced");
        tracing::error!(topic = name, epoch = key.epoch, "the broker gives another key for an epoch that has one");
        return Ok(false);
    }
    // Whose a key is that was believed before may be known no longer: the member has left.
    if known.is_none() && !parts.is_own(&key.minter) && parts.directory.owner_of_key(&key.minter).is_none() {
        metrics::invalid_inbound("minter_unknown");
        if source == Source::Pushed {
            parts.refresh.notify_one();
        }
        return Ok(false);
    }
    let topic = parts.directory.topic(name);
    let present = topic.as_ref().and_then(|topic| topic.epoch);
    if known.is_some() && present >= Some(key.epoch) {
        return Ok(false);
    }
    // Keys of topics that were left come too: what was posted before stays readable.
    let subscribed = topic.is_none_or(|topic| topic.subscribed);
    let topic = Topic { name: name.to_owned(), subscribed, epoch: present.max(Some(key.epoch)) };
    let learnt = Change::EpochKey { topic: name.to_owned(), epoch: key.epoch, key: opened };
    parts.directory.learn(vec![learnt, Change::Topic(topic)]).await?;
    Ok(true)
}

/// A fresh key in a box for every subscriber. It is not remembered here: the broker sends this member its own box once all are
/// in, and until then another keyholder may have made the epoch's key.
pub fn mint(parts: &Parts, wanted: &EpochWanted) -> Result<EpochBoxes> {
    let (identity, entropy) = (parts.keyring.identity(), parts.entropy.as_ref());
    let of = EpochOf { mesh: parts.mesh, topic: &wanted.topic, epoch: wanted.epoch };
    let key = TopicKey::generate(entropy);
    let mut boxes = Vec::with_capacity(wanted.subscribers.len());
    for subscriber in &wanted.subscribers {
        // Somebody whose keys are not its own would read everything that is posted.
        let owner = parts.directory.owner_of_key(&subscriber.keys.ed25519);
        let is_anothers = owner.is_some_and(|owner| owner != subscriber.member_id);
        let known = parts.directory.member(&subscriber.member_id);
        let is_replaced = known.is_some_and(|known| known.keys.ed25519 != subscriber.keys.ed25519);
        if is_anothers || is_replaced || subscriber.keys.verify().is_err() {
            metrics::invalid_inbound("subscriber_keys");
            tracing::error!(member.id = %subscriber.member_id, topic = %wanted.topic, "a subscriber's keys are not believed; it gets no key");
            parts.refresh.notify_one();
            continue;
        }
        boxes.push(EpochBox::seal(&identity, of, &subscriber.keys, &key, entropy)?);
    }
    Ok(EpochBoxes { topic: wanted.topic.clone(), epoch: wanted.epoch, boxes })
}
