//! Each rule has its planted violation here, and honest histories that must stay clean.

use super::super::history::{OldHandle, Purge};
use super::*;

const SEED: u64 = 7;
const ALL: [QueueKind; 6] = [
    QueueKind::Standard,
    QueueKind::Fifo,
    QueueKind::Poison,
    QueueKind::Dead,
    QueueKind::Throttled,
    QueueKind::Purged(1),
];

/// A history that is told line by line; times are milliseconds.
struct Told {
    start: Instant,
    history: History,
}

impl Told {
    fn new() -> Self {
        Told { start: Instant::now(), history: History { seed: SEED, ..History::default() } }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn named(key: Key) -> Name {
        let sequence = (key.kind == QueueKind::Fifo).then(|| format!("{:020}", 100 + key.seq));
        Name { id: format!("{key:?}"), sequence }
    }

    fn sent(&mut self, key: Key, began: u64, event: Event) -> &mut Self {
        let (began, ended) = (self.at(began), self.at(began + 5));
        self.history.invoke(key, began);
        let name = (event == Event::Ok).then(|| Self::named(key));
        self.history.settle(key, event, name, ended);
        self
    }

    /// One receive that brings these, each with its count, visible again after a second.
    fn received(&mut self, kind: QueueKind, began: u64, brought: &[(Key, u32)]) -> &mut Self {
        let call = self.history.receives.len();
        self.blind(kind, began, Event::Ok);
        for (index, (key, count)) in brought.iter().enumerate() {
            let name = Name { sequence: Self::named(*key).sequence, ..Self::named(*key) };
            self.history.deliveries.push(Delivery {
                call,
                index,
                kind,
                key: Some(*key),
                body: key.body(SEED),
                name,
                group: Some(key.group.to_string()),
                handle: String::new(),
                count: *count,
                deletes: Vec::new(),
                changes: Vec::new(),
            });
        }
        self
    }

    fn blind(&mut self, kind: QueueKind, began: u64, event: Event) -> &mut Self {
        let (began, ended) = (self.at(began), self.at(began + 5));
        let (receiver, visibility_s, wait_s, calm) = (1, 1, 0, false);
        self.history.receives.push(Receive { kind, receiver, began, ended, visibility_s, wait_s, calm, event });
        self
    }

    fn attempt(&self, began: u64, event: Event) -> Try {
        Try { began: self.at(began), ended: self.at(began + 5), event }
    }

    /// By the handle of the delivery with this count.
    fn deleted(&mut self, key: Key, count: u32, began: u64, event: Event) -> &mut Self {
        let attempt = self.attempt(began, event);
        let one = self.history.deliveries.iter_mut().find(|one| one.key == Some(key) && one.count == count).unwrap();
        one.deletes.push(attempt);
        self
    }

    fn changed(&mut self, key: Key, count: u32, seconds: u64, began: u64, event: Event) -> &mut Self {
        let attempt = self.attempt(began, event);
        let one = self.history.deliveries.iter_mut().find(|one| one.key == Some(key) && one.count == count).unwrap();
        one.changes.push((seconds, attempt));
        self
    }

    fn purged(&mut self, kind: QueueKind, began: u64, acked: bool) -> &mut Self {
        let (at, after) = (self.at(began), self.at(began + 5));
        self.history.purges.push(Purge { kind, began: at, acked: acked.then_some(after) });
        self
    }

    fn old_handle(&mut self, kind: QueueKind, began: u64, taken: bool) -> &mut Self {
        let began = self.at(began);
        self.history.old_handles.push(OldHandle { kind, what: "DeleteMessage", began, taken });
        self
    }

    fn names(&self) -> Vec<&'static str> {
        judge(&self.history).iter().map(|violation| violation.invariant.name()).collect()
    }

    fn names_at_end(&self) -> Vec<&'static str> {
        judge_end(&self.history, &ALL).iter().map(|violation| violation.invariant.name()).collect()
    }

    fn bounds(&self, kind: QueueKind) -> (u64, u64) {
        Book::open(&self.history).bounds(&[kind])
    }
}

fn key(kind: QueueKind, seq: u32) -> Key {
    Key { kind, group: 2, seq }
}

fn fifo(seq: u32) -> Key {
    key(QueueKind::Fifo, seq)
}

fn standard(seq: u32) -> Key {
    key(QueueKind::Standard, seq)
}

/// Three messages of one group, acknowledged one after the other.
fn line() -> Told {
    let mut told = Told::new();
    told.sent(fifo(0), 0, Event::Ok).sent(fifo(1), 10, Event::Ok).sent(fifo(2), 20, Event::Ok);
    told
}

#[test]
fn an_honest_line_is_clean() {
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(0), 1), (fifo(1), 1)]).deleted(fifo(0), 1, 110, Event::Ok);
    // The second came back when its time was over, together with the third.
    told.received(QueueKind::Fifo, 1_200, &[(fifo(1), 2), (fifo(2), 1)]);
    told.deleted(fifo(1), 2, 1_210, Event::Ok).deleted(fifo(2), 1, 1_210, Event::Info);
    assert!(told.names().is_empty(), "{:?}", judge(&told.history));
    assert!(told.names_at_end().is_empty());
    assert_eq!(told.bounds(QueueKind::Fifo), (0, 1));
}

#[test]
fn a_later_message_never_comes_while_an_earlier_one_is_there() {
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(1), 1)]);
    assert_eq!(told.names(), ["disordered"]);
    // An unknown delete may have ended the first.
    for (event, clean) in [(Event::Ok, true), (Event::Info, true), (Event::Fail, false)] {
        let mut told = line();
        told.received(QueueKind::Fifo, 100, &[(fifo(0), 1)]).deleted(fifo(0), 1, 110, event);
        told.received(QueueKind::Fifo, 1_200, &[(fifo(1), 1)]);
        assert_eq!(told.names().is_empty(), clean, "{event:?}");
    }
    // It has not: the first came again afterwards.
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(0), 1)]).deleted(fifo(0), 1, 110, Event::Info);
    told.received(QueueKind::Fifo, 1_200, &[(fifo(1), 1)]).received(QueueKind::Fifo, 2_400, &[(fifo(0), 2)]);
    assert_eq!(told.names(), ["disordered"]);
    // Other groups do not matter.
    let mut told = line();
    let other = Key { group: 3, ..fifo(9) };
    told.sent(other, 30, Event::Ok).received(QueueKind::Fifo, 100, &[(other, 1)]);
    assert!(told.names().is_empty());
}

#[test]
fn one_receive_brings_a_group_in_its_order() {
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(1), 1), (fifo(0), 1)]);
    assert_eq!(told.names(), ["disordered"]);
}

#[test]
fn numbers_rise_with_the_sends() {
    let numbered = |second_began: u64| {
        let mut told = Told::new();
        told.sent(fifo(0), 0, Event::Ok);
        let name = Name { id: "x".into(), sequence: Some(format!("{:020}", 7)) };
        let (began, ended) = (told.at(second_began), told.at(second_began + 5));
        told.history.invoke(fifo(1), began);
        told.history.settle(fifo(1), Event::Ok, Some(name), ended);
        told.names()
    };
    assert_eq!(numbered(10), ["disordered"]);
    assert_eq!(numbered(0), ["disordered"], "of one batch");
    assert!(numbered(3).is_empty(), "sent before the first was answered");
}

#[test]
fn what_is_held_is_nobody_elses() {
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Ok).received(QueueKind::Standard, 100, &[(standard(0), 1)]);
    told.received(QueueKind::Standard, 800, &[(standard(0), 2)]);
    assert_eq!(told.names(), ["shared"]);
    told.changed(standard(0), 1, 0, 500, Event::Info);
    assert!(told.names().is_empty(), "it may have been given back");
    // An extension that was acknowledged holds.
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Ok).received(QueueKind::Standard, 100, &[(standard(0), 1)]);
    told.changed(standard(0), 1, 2, 500, Event::Ok).received(QueueKind::Standard, 1_500, &[(standard(0), 2)]);
    assert_eq!(told.names(), ["shared"]);
    // The group of a message that is held is held.
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(0), 1), (fifo(1), 1)]).deleted(fifo(0), 1, 120, Event::Ok);
    told.deleted(fifo(1), 1, 900, Event::Ok).received(QueueKind::Fifo, 500, &[(fifo(2), 1)]);
    assert!(told.names().contains(&"shared"), "{:?}", told.names());
}

#[test]
fn what_was_deleted_does_not_come_again() {
    let deleted = |event| {
        let mut told = Told::new();
        told.sent(standard(0), 0, Event::Ok).received(QueueKind::Standard, 100, &[(standard(0), 1)]);
        told.deleted(standard(0), 1, 110, event);
        told
    };
    for (event, names) in [(Event::Ok, &["reverted"][..]), (Event::Info, &[]), (Event::Fail, &[])] {
        let mut told = deleted(event);
        told.received(QueueKind::Standard, 1_200, &[(standard(0), 2)]);
        assert_eq!(told.names(), names, "{event:?}");
    }
    // A receive that nobody saw took it before the delete, whose handle was then an old one.
    let mut told = deleted(Event::Ok);
    told.blind(QueueKind::Standard, 105, Event::Info).received(QueueKind::Standard, 1_200, &[(standard(0), 3)]);
    assert!(told.names().is_empty());
    // Long ago, and let go of.
    let mut told = deleted(Event::Ok);
    told.history.forget(told.at(9_000));
    assert!(told.history.sends.is_empty() && told.history.ended.contains(&standard(0)));
    assert_eq!(told.history.next_seq(QueueKind::Standard, 2), 1);
    told.received(QueueKind::Standard, 10_000, &[(standard(0), 2)]);
    assert_eq!(told.names(), ["reverted"]);
}

#[test]
fn a_late_delete_by_an_old_handle_ends_nothing() {
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Ok).received(QueueKind::Standard, 100, &[(standard(0), 1)]);
    told.received(QueueKind::Standard, 1_200, &[(standard(0), 2)]).deleted(standard(0), 1, 1_210, Event::Ok);
    assert_eq!(told.bounds(QueueKind::Standard), (1, 1));
    told.received(QueueKind::Standard, 2_300, &[(standard(0), 3)]);
    assert!(told.names().is_empty(), "{:?}", judge(&told.history));
    assert_eq!(told.names_at_end(), ["lost"]);
}

#[test]
fn one_deduplication_id_is_stored_once() {
    let mut told = line();
    told.sent(fifo(0), 300, Event::Ok);
    assert!(told.names().is_empty());
    let name = Name { id: "another".into(), ..Told::named(fifo(0)) };
    let ended = told.at(400);
    told.history.settle(fifo(0), Event::Ok, Some(name), ended);
    assert_eq!(told.names(), ["doubled"]);
}

#[test]
fn counts_rise_by_one() {
    let counted = |counts: &[u32], blind: bool| {
        let mut told = Told::new();
        told.sent(standard(0), 0, Event::Ok);
        if blind {
            told.blind(QueueKind::Standard, 50, Event::Info);
        }
        for (number, count) in (0..).zip(counts) {
            told.received(QueueKind::Standard, 1_200 + 1_200 * number, &[(standard(0), *count)]);
        }
        told.names()
    };
    assert!(counted(&[1, 2, 3], false).is_empty());
    assert_eq!(counted(&[1, 1], false), ["miscounted"]);
    assert_eq!(counted(&[2], false), ["miscounted"]);
    assert!(counted(&[2, 3], true).is_empty());
    assert!(counted(&[2, 1], true).contains(&"miscounted"));
}

#[test]
fn a_dead_letter_was_received_as_often_as_the_policy_says() {
    let poison = key(QueueKind::Poison, 0);
    let buried = |receives: u32| {
        let mut told = Told::new();
        told.sent(poison, 0, Event::Ok);
        for number in 0..receives {
            told.received(QueueKind::Poison, 1_200 * u64::from(number + 1), &[(poison, number + 1)]);
        }
        told
    };
    let mut told = buried(RECEIVES_MAX);
    told.received(QueueKind::Dead, 9_000, &[(poison, 1)]);
    assert!(told.names().is_empty(), "{:?}", judge(&told.history));
    told.received(QueueKind::Poison, 9_900, &[(poison, RECEIVES_MAX + 1)]);
    assert!(told.names().contains(&"miscounted") && told.names().contains(&"doubled"), "{:?}", told.names());
    let mut early = buried(RECEIVES_MAX - 1);
    early.received(QueueKind::Dead, 9_000, &[(poison, 1)]);
    assert_eq!(early.names(), ["miscounted"]);
    early.blind(QueueKind::Poison, 8_000, Event::Info);
    assert!(early.names().is_empty(), "a receive that nobody saw was the third");
}

#[test]
fn a_purge_leaves_nothing_of_before() {
    let (kind, old, new) = (QueueKind::Purged(1), key(QueueKind::Purged(1), 0), key(QueueKind::Purged(1), 1));
    let purged = |acked| {
        let mut told = Told::new();
        told.sent(old, 0, Event::Ok).purged(kind, 100, acked).sent(new, 200, Event::Ok);
        told
    };
    assert_eq!(purged(true).names_at_end(), ["lost"], "only the new one");
    assert!(purged(false).names_at_end().is_empty());
    let mut told = purged(true);
    told.received(kind, 300, &[(new, 1)]).deleted(new, 1, 310, Event::Ok);
    assert!(told.names().is_empty() && told.names_at_end().is_empty());
    told.received(kind, 400, &[(old, 1)]);
    assert_eq!(told.names(), ["phantom"]);
    for (taken, acked, names) in [(true, true, &["stale"][..]), (false, true, &[]), (true, false, &[])] {
        let mut told = purged(acked);
        told.old_handle(kind, 300, taken);
        assert_eq!(told.names(), names);
    }
}

#[test]
fn what_was_not_sent_or_is_not_as_it_was_sent_is_found() {
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Fail).received(QueueKind::Standard, 100, &[(standard(0), 1)]);
    assert_eq!(told.names(), ["phantom"]);
    let mut told = Told::new();
    told.received(QueueKind::Standard, 100, &[(standard(4), 1)]);
    assert_eq!(told.names(), ["phantom"]);
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(0), 1)]);
    told.history.deliveries[0].body.push('!');
    assert_eq!(told.names(), ["altered"]);
    let mut told = line();
    told.received(QueueKind::Fifo, 100, &[(fifo(0), 1)]);
    told.history.deliveries[0].group = Some("3".into());
    assert_eq!(told.names(), ["altered"]);
}

#[test]
fn everything_acknowledged_is_received_by_the_end() {
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Ok).sent(standard(1), 10, Event::Info).sent(standard(2), 20, Event::Ok);
    assert_eq!(told.bounds(QueueKind::Standard), (2, 3));
    told.received(QueueKind::Standard, 100, &[(standard(0), 1)]).deleted(standard(0), 1, 110, Event::Info);
    assert_eq!(told.bounds(QueueKind::Standard), (1, 3));
    assert_eq!(told.names_at_end(), ["lost"]);
    told.received(QueueKind::Standard, 200, &[(standard(2), 1)]);
    assert_eq!(told.names_at_end(), ["lost"], "received, and not deleted");
    told.deleted(standard(2), 1, 210, Event::Ok);
    assert!(told.names_at_end().is_empty());
    told.history.unexpected.insert("SendMessage answered 500".into(), 2);
    assert_eq!(told.names(), ["unserved"]);
}

#[test]
fn what_is_void_binds_nobody() {
    let mut told = Told::new();
    told.sent(standard(0), 0, Event::Ok).sent(standard(1), 500, Event::Ok);
    told.received(QueueKind::Standard, 100, &[(standard(0), 1)]).deleted(standard(0), 1, 600, Event::Ok);
    told.received(QueueKind::Standard, 700, &[(standard(1), 1)]);
    told.deleted(standard(1), 1, 710, Event::Ok);
    told.history.void(told.at(400), told.at(800));
    assert_eq!(told.bounds(QueueKind::Standard), (0, 2));
    // Sent again, it was known, and may be gone all the same.
    told.sent(standard(1), 900, Event::Ok);
    assert_eq!(told.bounds(QueueKind::Standard), (0, 2));
    assert!(told.names_at_end().is_empty());
    told.received(QueueKind::Standard, 1_200, &[(standard(0), 2), (standard(1), 1)]);
    assert!(told.names().is_empty(), "{:?}", judge(&told.history));
}

#[test]
fn a_body_names_its_message() {
    assert_eq!(Key::read(QueueKind::Fifo, &fifo(12).body(SEED)), Some(fifo(12)));
    assert_eq!(Key::read(QueueKind::Dead, &key(QueueKind::Poison, 3).body(SEED)), Some(key(QueueKind::Poison, 3)));
    assert_eq!(Key::read(QueueKind::Fifo, "nobody's"), None);
}

#[test]
fn whoever_waits_in_peace_is_told_when_its_time_is_over() {
    for (took_ms, calm, event, names) in [
        (1_050, true, Event::Ok, &[][..]),
        (5_900, true, Event::Ok, &[]),
        (6_100, true, Event::Ok, &["unserved"]),
        (6_100, true, Event::Info, &["unserved"]),
        (6_100, false, Event::Ok, &[]),
    ] {
        let mut told = Told::new();
        told.blind(QueueKind::Standard, 0, event);
        let ended = told.at(took_ms);
        let receive = told.history.receives.last_mut().unwrap();
        (receive.wait_s, receive.ended, receive.calm) = (1, ended, calm);
        assert_eq!(told.names(), names, "{took_ms} {calm} {event:?}");
        let late = Duration::from_millis(took_ms - 1_000);
        assert_eq!(waits(&told.history), if event == Event::Ok { (1, late) } else { (0, Duration::ZERO) });
    }
}
