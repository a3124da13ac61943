//! The metrics of queues, each with its unit and meaning.
//!
//! The name of a queue is a label, and any sender may make up names. So each family of metrics names the first 512 queues
//! that it meets and puts all others together, for as long as the process lives.

use std::array;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use metrics::{Counter, Gauge, describe_counter, describe_gauge};

use crate::rules::partitions::COUNT_MAX;

const MESSAGES: &str = "waybill_sqs_messages_total";
const PARTITION_MESSAGES: &str = "waybill_sqs_partition_messages_total";
const DEPTH: &str = "waybill_sqs_queue_messages";

/// Queues with labels of their own, in each family.
pub(crate) const QUEUES_MAX: usize = 512;
/// No queue has this name: account ids are digits.
pub(crate) const OTHER: &str = "_other";

/// What becomes of messages at the hands of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Send,
    Receive,
    Delete,
}

impl Traffic {
    const ALL: [Self; 3] = [Self::Send, Self::Receive, Self::Delete];

    const fn label(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Delete => "delete",
        }
    }
}

/// Messages that a call has done something with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub messages: usize,
    /// Of each message of a partitioned queue. One that was sent again is not stored again, and is not here.
    pub partitions: Vec<u32>,
}

impl Tally {
    pub fn new(messages: usize, partitions: impl IntoIterator<Item = u32>) -> Self {
        Self { messages, partitions: partitions.into_iter().collect() }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.partitions.extend(more.partitions);
    }
}

/// Counts messages that clients have sent, received and deleted, queue by queue, and of those that are partitioned also
/// partition by partition. To be told of what has been committed.
pub struct Meters {
    queues: PerQueue<[Counter; 3]>,
    partitioned: PerQueue<Arc<Partitions>>,
}

impl Default for Meters {
    fn default() -> Self {
        describe_counter!(
            MESSAGES,
            "Messages sent (repeated ones of FIFO queues included), received and deleted by clients of this node, by queue"
        );
        describe_counter!(
            PARTITION_MESSAGES,
            "Messages of partitioned FIFO queues that this node has stored, given out and deleted"
        );
        let counters = |account: &str, queue: &str| {
            Traffic::ALL.map(|traffic| {
                metrics::counter!(MESSAGES, "account" => account.to_owned(), "queue" => queue.to_owned(),
                    "action" => traffic.label())
            })
        };
        Self { queues: PerQueue::new(counters), partitioned: PerQueue::new(Partitions::new) }
    }
}

impl Meters {
    pub fn count(&self, account: &str, queue: &str, traffic: Traffic, tally: &Tally) {
        if tally.messages > 0 {
            self.queues.of(account, queue)[traffic as usize].increment(tally.messages as u64);
        }
        if !tally.partitions.is_empty() {
            let own = self.partitioned.of(account, queue);
            tally.partitions.iter().for_each(|partition| own.count(*partition, traffic));
        }
    }
}

/// The counters of one queue's partitions. Each is made when there is something to count, so that no queue shows more
/// partitions than it has.
struct Partitions {
    account: String,
    queue: String,
    counters: [[OnceLock<Counter>; 3]; COUNT_MAX as usize],
}

impl Partitions {
    fn new(account: &str, queue: &str) -> Arc<Self> {
        let counters = array::from_fn(|_| array::from_fn(|_| OnceLock::new()));
        Arc::new(Self { account: account.to_owned(), queue: queue.to_owned(), counters })
    }

    fn count(&self, partition: u32, traffic: Traffic) {
        let counters = usize::try_from(partition).ok().and_then(|index| self.counters.get(index));
        let Some(counter) = counters.map(|counters| &counters[traffic as usize]) else { return };
        let make = || {
            metrics::counter!(PARTITION_MESSAGES, "account" => self.account.clone(), "queue" => self.queue.clone(),
                "partition" => partition.to_string(), "action" => traffic.label())
        };
        counter.get_or_init(make).increment(1);
    }
}

/// How many messages are visible, in flight and delayed.
#[derive(Clone)]
pub(crate) struct DepthGauges([Gauge; 3]);

impl DepthGauges {
    pub(crate) fn set(&self, figures: [i64; 3]) {
        for (gauge, figure) in self.0.iter().zip(figures) {
            gauge.set(figure as f64);
        }
    }
}

pub(crate) fn depths() -> PerQueue<DepthGauges> {
    describe_gauge!(DEPTH, "Messages in each queue: visible, in flight, delayed; the same on every node");
    PerQueue::new(|account, queue| {
        DepthGauges(["visible", "in_flight", "delayed"].map(|state| {
            metrics::gauge!(DEPTH, "account" => account.to_owned(), "queue" => queue.to_owned(), "state" => state)
        }))
    })
}

/// One of something for each queue, up to the bound, and one for all others.
pub(crate) struct PerQueue<M> {
    make: fn(&str, &str) -> M,
    known: RwLock<Known<M>>,
    other: OnceLock<M>,
}

/// By account and name, so that nothing is built to look one up.
struct Known<M> {
    accounts: HashMap<String, HashMap<String, M>>,
    queues: usize,
}

impl<M: Clone> PerQueue<M> {
    fn new(make: fn(&str, &str) -> M) -> Self {
        Self { make, known: RwLock::new(Known { accounts: HashMap::new(), queues: 0 }), other: OnceLock::new() }
    }

    /// Its own, or that of all others.
    pub(crate) fn of(&self, account: &str, queue: &str) -> M {
        self.own(account, queue).unwrap_or_else(|| self.other())
    }

    pub(crate) fn other(&self) -> M {
        self.other.get_or_init(|| (self.make)(OTHER, OTHER)).clone()
    }

    /// None for a queue that came when there was no room left.
    pub(crate) fn own(&self, account: &str, queue: &str) -> Option<M> {
        let find = |known: &Known<M>| known.accounts.get(account)?.get(queue).cloned();
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = find(&known) {
                return Some(found);
            }
            if known.queues >= QUEUES_MAX {
                return None;
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = find(&known) {
            return Some(found);
        }
        if known.queues >= QUEUES_MAX {
            return None;
        }
        let made = (self.make)(account, queue);
        known.queues += 1;
        known.accounts.entry(account.to_owned()).or_default().insert(queue.to_owned(), made.clone());
        Some(made)
    }

    /// All that have their own.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&str, &str, &M)) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        for (account, queues) in &known.accounts {
            queues.iter().for_each(|(queue, made)| f(account, queue, made));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_those_that_came_first_keep_theirs() {
        let per_queue = PerQueue::new(|account, queue| format!("{account}/{queue}"));
        for number in 0..600 {
            per_queue.of("1", &format!("q{number}"));
        }
        assert_eq!(per_queue.of("1", "q0"), "1/q0");
        assert_eq!(per_queue.of("1", "q511"), "1/q511");
        assert_eq!(per_queue.of("1", "q512"), "_other/_other");
        assert_eq!(per_queue.of("2", "q0"), "_other/_other");
        let mut known = 0;
        per_queue.for_each(|_, _, _| known += 1);
        assert_eq!(known, QUEUES_MAX);
    }

    #[test]
    fn the_same_name_in_two_accounts_is_two_queues() {
        let per_queue = PerQueue::new(|account, queue| format!("{account}/{queue}"));
        assert_eq!((per_queue.of("1", "jobs"), per_queue.of("2", "jobs")), ("1/jobs".to_owned(), "2/jobs".to_owned()));
    }

    /// Which of a queue's counters there are.
    fn made(partitions: &Partitions) -> Vec<(usize, &'static str)> {
        let mut made = Vec::new();
        for (number, counters) in partitions.counters.iter().enumerate() {
            let there = Traffic::ALL.into_iter().filter(|traffic| counters[*traffic as usize].get().is_some());
            made.extend(there.map(|traffic| (number, traffic.label())));
        }
        made
    }

    #[test]
    fn rule_18_partitions_are_counted_where_there_are_any_and_queues_beyond_the_bound_share_counters() {
        let meters = Meters::default();
        meters.count("1", "plain.fifo", Traffic::Send, &Tally::new(3, []));
        for number in 0..QUEUES_MAX + 10 {
            meters.count("1", &format!("q{number}.fifo"), Traffic::Send, &Tally::new(2, [0, 31]));
        }
        meters.count("1", "q0.fifo", Traffic::Delete, &Tally::new(2, [3, 32]));
        let sent = [(0, "send"), (31, "send")];
        assert_eq!(made(&meters.partitioned.of("1", "q0.fifo")), [sent[0], (3, "delete"), sent[1]]);
        assert_eq!(made(&meters.partitioned.of("1", &format!("q{}.fifo", QUEUES_MAX - 1))), sent);
        assert!(meters.partitioned.own("1", &format!("q{QUEUES_MAX}.fifo")).is_none());
        assert_eq!(made(&meters.partitioned.other()), sent);
        let mut plain = false;
        meters.partitioned.for_each(|_, queue, _| plain |= queue == "plain.fifo");
        assert!(!plain, "a queue without partitions takes no place");
    }
}
