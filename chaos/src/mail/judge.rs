//! What was promised about messages, against what came: pure functions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::checker::{Invariant, Violation};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged, with its number.
    Promised(i64),
    Refused,
    Unknown,
}

/// A message as it was asked for.
#[derive(Clone, Debug)]
pub struct Sent {
    pub request: Value,
    pub recipients: BTreeSet<String>,
    pub fate: Fate,
    /// Who was to acknowledge it, and whether that was answered.
    pub ack: Option<(String, bool)>,
}

impl Sent {
    pub fn promised(&self) -> Option<i64> {
        match self.fate {
            Fate::Promised(id) => Some(id),
            _ => None,
        }
    }

    pub fn is_open(&self) -> bool {
        self.fate == Fate::Unknown || matches!(self.ack, Some((_, false)))
    }
}

/// Each agent has got what was promised to it, once, and nothing else.
pub fn deliveries(all: &BTreeMap<String, Sent>, feeds: &BTreeMap<&str, &[(i64, String)]>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut numbers: HashMap<i64, &str> = HashMap::new();
    for (key, id) in all.iter().filter_map(|(key, sent)| Some((key, sent.promised()?))) {
        if let Some(other) = numbers.insert(id, key) {
            let detail = format!("mail {key} and {other} are both message {id}");
            violations.push(Violation::new(Invariant::Doubled, detail));
        }
    }
    for (agent, came) in feeds {
        let mut seen: HashMap<i64, usize> = HashMap::new();
        for (id, subject) in *came {
            *seen.entry(*id).or_default() += 1;
            let known = numbers.get(id).copied();
            match known {
                Some(key) if key != subject => {
                    let detail = format!("message {id} is {subject:?} to {agent}, and was sent as {key}");
                    violations.push(Violation::new(Invariant::Altered, detail));
                }
                Some(key) if !all[key].recipients.contains(*agent) => {
                    let detail = format!("mail {key} came to {agent}, for whom it was not");
                    violations.push(Violation::new(Invariant::Phantom, detail));
                }
                None => {
                    let detail = format!("message {id} ({subject:?}) came to {agent}, and nobody sent it");
                    violations.push(Violation::new(Invariant::Phantom, detail));
                }
                Some(_) => {}
            }
        }
        for (id, times) in seen.iter().filter(|(_, times)| **times > 1) {
            let detail = format!("message {id} came to {agent} {times} times");
            violations.push(Violation::new(Invariant::Doubled, detail));
        }
        for (key, sent) in all {
            let Some(id) = sent.promised().filter(|_| sent.recipients.contains(*agent)) else { continue };
            if !seen.contains_key(&id) {
                let detail = format!("mail {key} (message {id}) never came to {agent}");
                violations.push(Violation::new(Invariant::Lost, detail));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(fate: Fate, recipients: &[&str]) -> Sent {
        let recipients = recipients.iter().map(|name| (*name).to_owned()).collect();
        Sent { request: Value::Null, recipients, fate, ack: None }
    }

    #[test]
    fn each_harm_has_its_name() {
        let all: BTreeMap<String, Sent> = [
            ("a".to_owned(), sent(Fate::Promised(1), &["A", "B"])),
            ("b".to_owned(), sent(Fate::Promised(2), &["A"])),
            ("c".to_owned(), sent(Fate::Refused, &["A"])),
        ]
        .into();
        let names = |a: &[(i64, &str)], b: &[(i64, &str)]| -> Vec<&str> {
            let own = |list: &[(i64, &str)]| -> Vec<(i64, String)> {
                list.iter().map(|(id, subject)| (*id, (*subject).to_owned())).collect()
            };
            let (a, b) = (own(a), own(b));
            let feeds = BTreeMap::from([("A", a.as_slice()), ("B", b.as_slice())]);
            deliveries(&all, &feeds).iter().map(|found| found.invariant.name()).collect()
        };
        assert!(names(&[(1, "a"), (2, "b")], &[(1, "a")]).is_empty());
        assert_eq!(names(&[(1, "a"), (2, "b")], &[]), ["lost"]);
        assert_eq!(names(&[(1, "a"), (2, "b"), (1, "a")], &[(1, "a")]), ["doubled"]);
        assert_eq!(names(&[(1, "a"), (2, "x")], &[(1, "a")]), ["altered"]);
        assert_eq!(names(&[(1, "a"), (2, "b"), (3, "c")], &[(1, "a")]), ["phantom"]);
        assert_eq!(names(&[(1, "a"), (2, "b")], &[(1, "a"), (2, "b")]), ["phantom"]);
    }
}
