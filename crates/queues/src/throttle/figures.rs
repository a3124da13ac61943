//! What operators see of throttling: a counter of refusals, and what buckets have left.
//!
//! Queue names are the callers' to choose, so each family names [`QUEUES_MAX`] queues and says `_other` of the rest. The
//! counter's series are never taken back. The gauge is read from the buckets when somebody looks: a bucket that was
//! removed has no series, and no late decision can bring one back, because it would need a bucket.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::buckets::Reading;
use super::known::Known;
use crate::metrics::{OTHER, QUEUES_MAX};
use crate::rules::throttle::Action;

pub(crate) const THROTTLED: &str = "waybill_sqs_throttled_requests_total";
pub(crate) const TOKENS: &str = "waybill_sqs_throttle_tokens_remaining";

type Name = (Arc<str>, Arc<str>);

/// Which queues of accounts a family names.
#[derive(Default)]
struct Names(HashSet<Name>);

impl Names {
    fn admit(&mut self, name: &Name) -> bool {
        if self.0.len() < QUEUES_MAX {
            self.0.insert(name.clone());
        }
        self.0.contains(name)
    }

    /// Whether it is named, where that is known without a change.
    fn is_named(&self, name: &Name) -> Option<bool> {
        let named = self.0.contains(name);
        (named || self.0.len() >= QUEUES_MAX).then_some(named)
    }
}

#[derive(Default)]
pub(super) struct Figures {
    /// Read by every refusal, and written by the first one of a queue.
    counted: RwLock<Names>,
    shown: Mutex<Names>,
}

impl Figures {
    pub(super) fn describe() {
        metrics::describe_counter!(
            THROTTLED,
            "Calls that the throttle of their queue has refused, by account, queue and bucket"
        );
    }

    pub(super) fn refused(&self, known: &Known, action: Action) {
        let name = (Arc::clone(&known.account), Arc::clone(&known.queue));
        let known = self.counted.read().unwrap_or_else(PoisonError::into_inner).is_named(&name);
        let is_named =
            known.unwrap_or_else(|| self.counted.write().unwrap_or_else(PoisonError::into_inner).admit(&name));
        let (account, queue) = if is_named { name } else { (Arc::from(OTHER), Arc::from(OTHER)) };
        metrics::counter!(THROTTLED, "account" => account, "queue" => queue, "action" => action.label()).increment(1);
    }

    /// In the text that Prometheus reads. Of several buckets with one name the emptiest is shown.
    pub(super) fn write(&self, readings: Vec<Reading>, text: &mut String) {
        if readings.is_empty() {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let live: HashSet<Name> =
            readings.iter().map(|reading| (Arc::clone(&reading.account), Arc::clone(&reading.queue))).collect();
        shown.0.retain(|name| live.contains(name));
        let mut series: BTreeMap<(Arc<str>, Arc<str>, Action), f64> = BTreeMap::new();
        for Reading { account, queue, action, left } in readings {
            let name = (account, queue);
            let (account, queue) = if shown.admit(&name) { name } else { (Arc::from(OTHER), Arc::from(OTHER)) };
            series.entry((account, queue, action)).and_modify(|least| *least = least.min(left)).or_insert(left);
        }
        let _ =
            writeln!(text, "# HELP {TOKENS} Tokens that the last decision has left in a bucket of a throttled queue");
        let _ = writeln!(text, "# TYPE {TOKENS} gauge");
        for ((account, queue, action), left) in series {
            let action = action.label();
            // Names of queues and accounts hold nothing that would have to be escaped.
            let _ = writeln!(text, "{TOKENS}{{account=\"{account}\",queue=\"{queue}\",action=\"{action}\"}} {left}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_18_each_family_has_its_own_512_names() {
        let mut names = Names::default();
        let name = |number: usize| (Arc::from("000000000000"), Arc::from(format!("q{number}")));
        for number in 0..QUEUES_MAX {
            assert_eq!((names.is_named(&name(number)), names.admit(&name(number))), (None, true), "{number}");
        }
        assert_eq!((names.is_named(&name(QUEUES_MAX)), names.admit(&name(QUEUES_MAX))), (Some(false), false));
        assert_eq!((names.is_named(&name(0)), names.admit(&name(0))), (Some(true), true), "a name stays named");
        let same_of_another = (Arc::from("111111111111"), Arc::from("q0"));
        assert!(!names.admit(&same_of_another), "an account's queue is another");
    }
}
