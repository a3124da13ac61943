//! Which keys of topics this socket's member was asked to make.
//!
//! A member that is asked makes a fresh key for everybody it is told of, and leaves out whom it does not believe. Such an answer is
//! not taken, and asked again at once the member would answer the same: the same question is asked once in a while only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use waybill_mesh_protocol::TopicName;
use waybill_mesh_protocol::frames::{EpochWanted, Subscriber};

/// Topics that are remembered. Those beyond wait until others have their key.
const TOPICS_MAX: usize = 64;
/// After this long the same question is asked again.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Minting(BTreeMap<TopicName, Asked>);

#[derive(Debug)]
struct Asked {
    epoch: u32,
    subscribers: Vec<Subscriber>,
    at: Instant,
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
        if before.is_none() && self.0.len() >= TOPICS_MAX {
            return false;
        }
        let asked = Asked { epoch: *epoch, subscribers: subscribers.clone(), at: now };
        self.0.insert(topic.clone(), asked);
        true
    }

    /// The topic has its key.
    pub(crate) fn done(&mut self, topic: &TopicName, epoch: u32) {
        if self.0.get(topic).is_some_and(|asked| asked.epoch <= epoch) {
            self.0.remove(topic);
        }
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
        minting.done(&topic, 4);
        assert!(!minting.asks(&wanted(5, &[1, 2, 3]), at(33)), "an older one is not the one that is waited for");
        minting.done(&topic, 5);
        assert!(minting.0.is_empty());
    }
}
