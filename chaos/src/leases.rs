//! What the workers have asked for and what they were told: the journal's lines about leases, folded. As with creates,
//! only `ok` is a promise, `fail` a definite refusal, and everything else may or may not have happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::{Event, Fate};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deed {
    Claim,
    Renew,
    Progress,
    Complete,
    /// The complete again, with the place of the work that the first one has left out.
    Locate,
    Fail,
}

/// One line of the journal about a worker's call. A claim has one line for each lease it was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Word {
    pub round: u32,
    pub event: Event,
    pub deed: Deed,
    pub worker: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    /// Until when the server has promised the task, in microseconds of its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<i64>,
    /// Of a failure that was reported: whether the task is to be tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeued: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A lease that was promised to a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub task_id: String,
    pub worker: String,
    expires_us: i64,
    /// Renewals without an answer: each may have moved the end.
    renewals_open: u32,
    pub complete: Option<Fate>,
    pub locate: Option<Fate>,
    pub fail: Option<Fate>,
    pub requeued: Option<bool>,
}

impl Held {
    /// The end of the lease as it was last promised.
    pub fn promised_us(&self) -> i64 {
        self.expires_us
    }

    /// The latest end that it can have; none while nobody knows.
    pub fn latest_us(&self) -> Option<i64> {
        (self.renewals_open == 0).then_some(self.expires_us)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leases {
    held: BTreeMap<String, Held>,
}

impl Leases {
    pub fn apply(&mut self, word: &Word) {
        let Some(lease_id) = &word.lease_id else { return };
        if word.deed == Deed::Claim {
            let (Event::Ok, Some(task_id), Some(expires_us)) = (word.event, &word.task_id, word.expires_us) else {
                return;
            };
            let fresh = Held {
                task_id: task_id.clone(),
                worker: word.worker.clone(),
                expires_us,
                renewals_open: 0,
                complete: None,
                locate: None,
                fail: None,
                requeued: None,
            };
            self.held.entry(lease_id.clone()).or_insert(fresh);
            return;
        }
        let Some(held) = self.held.get_mut(lease_id) else { return };
        match word.deed {
            Deed::Claim | Deed::Progress => {}
            Deed::Renew => held.renewed(word),
            Deed::Complete => held.complete = Some(Fate::after(held.complete, word.event)),
            Deed::Locate => held.locate = Some(Fate::after(held.locate, word.event)),
            Deed::Fail => {
                held.fail = Some(Fate::after(held.fail, word.event));
                held.requeued = held.requeued.or(word.requeued);
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Held)> {
        self.held.iter().map(|(lease_id, held)| (lease_id.as_str(), held))
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl Held {
    fn renewed(&mut self, word: &Word) {
        match word.event {
            Event::Invoke => self.renewals_open += 1,
            Event::Ok | Event::Fail => self.renewals_open = self.renewals_open.saturating_sub(1),
            Event::Info | Event::Void | Event::Late => {}
        }
        if let (Event::Ok, Some(expires_us)) = (word.event, word.expires_us) {
            self.expires_us = self.expires_us.max(expires_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(deed: Deed, event: Event, expires_us: Option<i64>) -> Word {
        Word {
            round: 1,
            event,
            deed,
            worker: "w".into(),
            task_id: Some("t".into()),
            lease_id: Some("l".into()),
            expires_us,
            requeued: None,
            note: None,
        }
    }

    #[test]
    fn a_lease_ends_when_it_was_last_promised_and_nobody_knows_while_a_renewal_is_open() {
        let mut leases = Leases::default();
        leases.apply(&word(Deed::Claim, Event::Invoke, None));
        assert!(leases.is_empty());
        leases.apply(&word(Deed::Claim, Event::Ok, Some(10)));
        assert_eq!(leases.held["l"].latest_us(), Some(10));
        for (event, expires_us, promised_us, latest_us) in [
            (Event::Invoke, None, 10, None),
            (Event::Ok, Some(20), 20, Some(20)),
            (Event::Invoke, None, 20, None),
            (Event::Fail, None, 20, Some(20)),
            (Event::Invoke, None, 20, None),
            (Event::Info, None, 20, None),
        ] {
            leases.apply(&word(Deed::Renew, event, expires_us));
            let held = &leases.held["l"];
            assert_eq!((held.promised_us(), held.latest_us()), (promised_us, latest_us), "{event:?}");
        }
        leases.apply(&word(Deed::Complete, Event::Invoke, None));
        leases.apply(&word(Deed::Complete, Event::Ok, None));
        assert_eq!(leases.held["l"].complete, Some(Fate::Promised));
    }
}
