//! The judge of a mesh: from what was acknowledged and what the inboxes hold to named violations. It talks to nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{History, Key, Lane, Peer, WARM, violation};
use crate::checker::{Invariant, Violation};
use crate::history::Fate;

/// A message as an inbox shows it.
#[derive(Clone, Debug)]
pub struct Got {
    pub id: String,
    pub body: String,
    pub sender: String,
    pub topic: Option<String>,
}

/// What one peer has got, in the order of arrival.
pub type Inboxes = BTreeMap<Peer, Vec<Got>>;

pub fn judge(history: &History, inboxes: &Inboxes) -> Vec<Violation> {
    let mut violations = history.found.clone();
    let mut there: BTreeSet<(Peer, Key)> = BTreeSet::new();
    for (peer, inbox) in inboxes {
        let mut newest: BTreeMap<Lane, u32> = BTreeMap::new();
        for got in inbox.iter().filter(|got| !got.body.starts_with(WARM)) {
            let Some(key) = Key::read(&got.body) else {
                let detail = format!("{} got {}, which nobody has sent", peer.name(), got.id);
                violations.push(Violation::new(Invariant::Phantom, detail));
                continue;
            };
            violations.extend(judge_one(history, *peer, key, got));
            if !there.insert((*peer, key)) {
                let detail = format!("twice in the inbox of {}", peer.name());
                violations.push(violation(Invariant::Doubled, key, detail));
                continue;
            }
            // It may have been on its way for long when another took its place.
            if history.replaced.contains_key(&key) {
                continue;
            }
            let before = newest.entry(key.lane).or_insert(key.seq);
            if *before > key.seq {
                let detail = format!("{} got it after number {before} of its lane", peer.name());
                violations.push(violation(Invariant::Disordered, key, detail));
            }
            *before = (*before).max(key.seq);
        }
    }
    violations.extend(missing(history, &there).map(|(peer, key)| {
        violation(Invariant::Lost, key, format!("acknowledged, and not in the inbox of {}", peer.name()))
    }));
    violations
}

fn judge_one(history: &History, peer: Peer, key: Key, got: &Got) -> Option<Violation> {
    let fate = history.sends.get(&key).map(|sent| sent.fate);
    let (phantom, altered) = (Invariant::Phantom, Invariant::Altered);
    match fate {
        None => return Some(violation(phantom, key, "was never handed over")),
        Some(Fate::Refused) => return Some(violation(phantom, key, "was refused, and delivered")),
        Some(Fate::Promised | Fate::Unknown | Fate::Invoked) => {}
    }
    if !key.lane.recipients().contains(&peer) && key.lane.from != peer {
        return Some(violation(phantom, key, format!("is in the inbox of {}", peer.name())));
    }
    let topic = matches!(key.lane.to, super::record::To::Topic).then(|| super::record::TOPIC.to_owned());
    let same = got.id == key.id() && got.sender == key.lane.from.name() && got.topic == topic;
    (!same || got.body != key.body(history.seed)).then(|| violation(altered, key, format!("came as {got:?}")))
}

/// What was acknowledged and is not there.
fn missing<'a>(history: &'a History, there: &'a BTreeSet<(Peer, Key)>) -> impl Iterator<Item = (Peer, Key)> + 'a {
    let promised = history.sends.iter().filter(|(_, sent)| sent.fate == Fate::Promised).map(|(key, _)| *key);
    let promised = promised.filter(|key| !history.replaced.contains_key(key));
    let wanted = promised.flat_map(|key| key.lane.recipients().into_iter().map(move |peer| (peer, key)));
    wanted.filter(|one| !there.contains(one))
}

/// Whether everything acknowledged is there; until then it may be on its way.
pub fn is_complete(history: &History, inboxes: &Inboxes) -> bool {
    let there = inboxes
        .iter()
        .flat_map(|(peer, inbox)| inbox.iter().filter_map(|got| Some((*peer, Key::read(&got.body)?))))
        .collect();
    missing(history, &there).next().is_none()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Names, TOPIC, To, Verdict};
    use super::*;
    use crate::history::Event;

    const DM: Lane = Lane { from: Peer::Alice, to: To::Peer(Peer::Bob), number: 0 };
    const POST: Lane = Lane { from: Peer::Alice, to: To::Topic, number: 1 };

    fn got(key: Key) -> Got {
        let topic = (key.lane.to == To::Topic).then(|| TOPIC.to_owned());
        Got { id: key.id(), body: key.body(7), sender: key.lane.from.name().to_owned(), topic }
    }

    fn key(lane: Lane, seq: u32) -> Key {
        Key { lane, seq }
    }

    /// Two direct messages and a post, all acknowledged and all there.
    fn healthy() -> (History, Inboxes) {
        let mut history = History { seed: 7, ..History::default() };
        for key in [key(DM, 1), key(DM, 2), key(POST, 1)] {
            history.invoke(key, 1);
            history.settle(key, &Verdict::Queued);
        }
        let (one, two, post) = (got(key(DM, 1)), got(key(DM, 2)), got(key(POST, 1)));
        let inboxes = [(Peer::Bob, vec![one, post.clone(), two]), (Peer::Carol, vec![post])];
        (history, inboxes.into_iter().collect())
    }

    fn found(history: &History, inboxes: &Inboxes) -> Vec<&'static str> {
        judge(history, inboxes).iter().map(|violation| violation.invariant.name()).collect()
    }

    #[test]
    fn what_arrived_once_and_in_order_is_clean() {
        let (history, inboxes) = healthy();
        assert_eq!(found(&history, &inboxes), Vec::<&str>::new());
        assert!(is_complete(&history, &inboxes));
    }

    #[test]
    fn each_kind_of_harm_in_an_inbox_has_its_name() {
        type Spoil = fn(&mut Vec<Got>);
        let spoil: [(Spoil, &[&str]); 6] = [
            (|inbox| drop(inbox.pop()), &["lost"]),
            (|inbox| inbox.push(inbox[0].clone()), &["doubled"]),
            (|inbox| inbox.swap(0, 2), &["disordered"]),
            (|inbox| inbox[0].body.push('x'), &["altered"]),
            (|inbox| inbox[0].sender = "carol".to_owned(), &["altered"]),
            (|inbox| inbox.push(got(Key { lane: DM, seq: 9 })), &["phantom"]),
        ];
        for (number, (spoil, expected)) in spoil.into_iter().enumerate() {
            let (history, mut inboxes) = healthy();
            spoil(inboxes.get_mut(&Peer::Bob).unwrap());
            assert_eq!(found(&history, &inboxes), expected, "{number}");
        }
    }

    #[test]
    fn a_refused_message_must_not_arrive_and_an_unknown_one_may() {
        let (mut history, mut inboxes) = healthy();
        let late = key(DM, 3);
        history.invoke(late, 1);
        history.settle(late, &Verdict::Unknown("reset".to_owned()));
        assert_eq!(found(&history, &inboxes), Vec::<&str>::new());
        inboxes.get_mut(&Peer::Bob).unwrap().push(got(late));
        assert_eq!(found(&history, &inboxes), Vec::<&str>::new());
        let refused = key(DM, 4);
        history.invoke(refused, 1);
        history.settle(refused, &Verdict::Refused("429".to_owned()));
        inboxes.get_mut(&Peer::Bob).unwrap().push(got(refused));
        assert_eq!(found(&history, &inboxes), ["phantom"]);
    }

    #[test]
    fn answers_are_held_to_the_table_of_accept() {
        let names = |message: &str| Names { message: message.to_owned(), history: "h".to_owned() };
        let conflict = |why: &str| Verdict::Conflict(format!("outbox_{why}"));
        let repeats: [(&[Verdict], &[&str]); 7] = [
            (&[Verdict::Done(names("a")), Verdict::Done(names("a"))], &[]),
            (&[Verdict::Done(names("a")), Verdict::Done(names("b"))], &["doubled"]),
            (&[Verdict::Done(names("a")), Verdict::Queued], &["doubled"]),
            (&[conflict("dead_fingerprint_match")], &["lost"]),
            (&[conflict("pending_fingerprint_mismatch")], &["altered"]),
            (&[Verdict::Unknown("503".to_owned()), Verdict::Queued], &[]),
            (&[Verdict::Refused("429".to_owned()), Verdict::Queued], &[]),
        ];
        for (verdicts, expected) in repeats {
            let (mut history, inboxes) = healthy();
            for verdict in verdicts {
                history.invoke(key(DM, 1), 1);
                history.settle(key(DM, 1), verdict);
            }
            assert_eq!(found(&history, &inboxes), expected, "{verdicts:?}");
        }
        for (verdict, expected) in [
            (conflict("done_fingerprint_mismatch"), &[][..]),
            (conflict("pending_fingerprint_mismatch"), &["altered"]),
            (conflict("done_fingerprint_match"), &["altered"]),
            (Verdict::Queued, &["altered"]),
        ] {
            let (mut history, inboxes) = healthy();
            history.settle(key(DM, 1), &Verdict::Done(names("a")));
            history.contradicted(key(DM, 1), &verdict);
            assert_eq!(found(&history, &inboxes), expected, "{verdict:?}");
        }
    }

    const ABORTED: &str = "aborted_fingerprint_match";

    /// The second direct message is asked to be replaced, with this answer, and then handed over again.
    fn replaced(event: Event, again: &Verdict) -> (History, Inboxes) {
        let (mut history, inboxes) = healthy();
        history.replace(key(DM, 2), Event::Info, 1);
        history.replace(key(DM, 2), event, 1);
        assert_eq!(history.open().contains(&key(DM, 2)), event == Event::Info);
        history.invoke(key(DM, 2), 1);
        assert_eq!(history.settle(key(DM, 2), again), Event::Ok, "{event:?} {again:?}");
        (history, inboxes)
    }

    #[test]
    fn what_was_replaced_keeps_its_id_and_may_arrive() {
        let aborted = Verdict::Conflict(format!("outbox_{ABORTED}"));
        for event in [Event::Ok, Event::Info] {
            let (history, mut inboxes) = replaced(event, &aborted);
            assert!(history.open().is_empty());
            assert_eq!(found(&history, &inboxes), ["lost"], "the other message is promised");
            inboxes.get_mut(&Peer::Bob).unwrap().insert(2, got(key(DM, 3)));
            assert_eq!(found(&history, &inboxes), Vec::<&str>::new(), "before the one it replaces");
            inboxes.get_mut(&Peer::Bob).unwrap().pop();
            assert_eq!(found(&history, &inboxes), Vec::<&str>::new(), "and need not");
        }
        // Its id was given away.
        let (history, mut inboxes) = replaced(Event::Ok, &Verdict::Queued);
        inboxes.get_mut(&Peer::Bob).unwrap().push(got(key(DM, 3)));
        assert_eq!(found(&history, &inboxes), ["doubled"]);
        // It was not replaced, and nothing has changed.
        for event in [Event::Fail, Event::Info] {
            let (history, mut inboxes) = replaced(event, &Verdict::Queued);
            assert_eq!(found(&history, &inboxes), Vec::<&str>::new());
            inboxes.get_mut(&Peer::Bob).unwrap().pop();
            assert_eq!(found(&history, &inboxes), ["lost"]);
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for key in [key(DM, 1), key(POST, 4_000_000)] {
            assert_eq!(Key::read(&key.body(1)), Some(key));
        }
        for body in ["warm 1", "alice-bob-1 x", "alice-bob-1-2-3 x", "dave-bob-1-2 x", ""] {
            assert_eq!(Key::read(body), None, "{body}");
        }
    }
}
