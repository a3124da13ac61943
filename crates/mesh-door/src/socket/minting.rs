//! Which keys of topics this socket's member was asked to make.
//!
//! A member that is asked makes a fresh key for everybody it is told of, and leaves out whom it does not believe. Such an answer is
//! not taken, and asked again at once the member would answer the same: the same question is asked once in a while only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use waybill_mesh_protocol::TopicName;
use waybill_mesh_protocol::frames::{EpochWanted, Subscriber};

/// Topics that are remembered. Those beyond wait until others have their key.
const TOPICS_MAX: usize = 64;
/// After this long the same question is asked again.
const PATIENCE: Duration = Duration::from_secs(30);
/// While so many answers are awaited no more is asked for.
const AWAITED_MAX: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Minting(BTreeMap<TopicName, Asked>);

#[derive(Debug)]
struct Asked {
    epoch: u32,
    subscribers: Vec<Subscriber>,
    at: Instant,
    is_answered: bool,
}

impl Minting {
    /// Whether to ask this now.
    pub(crate) fn asks(&mut self, wanted: &EpochWanted, now: Instant) -> bool {
        let EpochWanted { topic, epoch, subscribers } = wanted;
        let before = self.0.get(topic);
        let is_same = |asked: &Asked| asked.epoch == *epoch && asked.subscribers == *subscribers;
        let is_recent = |asked: &Asked| now.saturating_duration_since(asked.at) < PATIENCE;
        if before.is_some_and(|asked| is_same(asked) && is_recent(asked)) {
            return false;
        }
        if before.is_none() && self.is_full() {
            return false;
        }
        let asked = Asked { epoch: *epoch, subscribers: subscribers.clone(), at: now, is_answered: false };
        self.0.insert(topic.clone(), asked);
        true
    }

    /// The topic has its key. True for one that was asked for.
    pub(crate) fn done(&mut self, topic: &TopicName, epoch: u32) -> bool {
        self.0.get(topic).is_some_and(|asked| asked.epoch <= epoch) && self.0.remove(topic).is_some()
    }

    /// The member has answered, and the topic has no key by it.
    pub(crate) fn refused(&mut self, topic: &TopicName, epoch: u32) {
        if let Some(asked) = self.0.get_mut(topic).filter(|asked| asked.epoch == epoch) {
            asked.is_answered = true;
        }
    }

    /// Only these are still wanted of the member.
    pub(crate) fn keep(&mut self, wanted: &BTreeSet<TopicName>) {
        self.0.retain(|topic, _| wanted.contains(topic));
    }

    /// The member has little to do: there may be more for it.
    pub(crate) fn wants_more(&self) -> bool {
        self.0.values().filter(|asked| !asked.is_answered).count() <= AWAITED_MAX
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= TOPICS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_kernel::id::Uuid;
    use waybill_mesh_protocol::{Identity, MemberId};

    use super::*;

    fn subscriber(number: u64) -> Subscriber {
        let keys = Identity::generate(&SeededEntropy::new(number)).public();
        Subscriber { member_id: MemberId(Uuid::from_u128(number.into())), keys }
    }

    #[test]
    fn the_same_question_is_asked_once_in_a_while_and_another_at_once() {
        let (start, topic) = (Instant::now(), "builds".parse::<TopicName>().unwrap());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let wanted = |epoch: u32, subscribers: &[u64]| EpochWanted {
            topic: topic.clone(),
            epoch,
            subscribers: subscribers.iter().map(|number| subscriber(*number)).collect(),
        };
        let mut minting = Minting::default();
        assert!(minting.asks(&wanted(4, &[1, 2]), at(0)));
        assert!(!minting.asks(&wanted(4, &[1, 2]), at(29)));
        assert!(minting.asks(&wanted(4, &[1, 2]), at(30)));
        assert!(minting.asks(&wanted(4, &[1, 2, 3]), at(31)), "somebody has come");
        assert!(minting.asks(&wanted(5, &[1, 2, 3]), at(32)), "the epoch is another one");
        assert!(!minting.done(&topic, 4));
        assert!(!minting.asks(&wanted(5, &[1, 2, 3]), at(33)), "an older one is not the one that is waited for");
        assert!(minting.done(&topic, 5) && !minting.done(&topic, 5));
        assert!(minting.is_empty());
    }

    #[test]
    fn more_is_asked_for_when_few_answers_are_awaited() {
        let topics: Vec<TopicName> = (0..8).map(|number| format!("t{number}").parse().unwrap()).collect();
        let mut minting = Minting::default();
        for topic in &topics {
            let wanted = EpochWanted { topic: topic.clone(), epoch: 1, subscribers: Vec::new() };
            assert!(minting.asks(&wanted, Instant::now()));
        }
        assert!(!minting.wants_more());
        for topic in &topics[..3] {
            assert!(minting.done(topic, 1));
        }
        assert!(!minting.wants_more());
        // One that cannot be made holds nobody up.
        minting.refused(&topics[3], 1);
        assert!(minting.wants_more());
        minting.keep(&BTreeSet::from([topics[3].clone(), topics[7].clone()]));
        assert_eq!(minting.0.keys().collect::<Vec<_>>(), [&topics[3], &topics[7]]);
    }
}
