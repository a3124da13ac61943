//! Each rule has its planted violation here, and honest tasks that must stay clean.

use super::*;
use crate::history::Event;
use crate::leases::{Deed, Word};

const SKEW_US: i64 = 0;

fn receipt(kind: &str, lease_id: Option<&str>, parents: &[&str], created_us: i64) -> Receipt {
    Receipt {
        id: format!("{kind}@{created_us}"),
        kind: kind.into(),
        to: "agent:a".into(),
        task_id: Some("t".into()),
        lease_id: lease_id.map(str::to_owned),
        parents: parents.iter().map(|parent| (*parent).to_owned()).collect(),
        created_us,
        attempt: None,
    }
}

const FIRST: &str = "task.assigned@1";

fn assigned() -> Receipt {
    receipt(ASSIGNED, None, &[], 1)
}

fn about(kind: &str, lease_id: &str, created_us: i64) -> Receipt {
    receipt(kind, Some(lease_id), &[FIRST], created_us)
}

fn retry(lease_id: &str, attempt: i64, created_us: i64) -> Receipt {
    Receipt { attempt: Some(attempt), ..about(RETRY, lease_id, created_us) }
}

fn task(status: &str, attempt: i64, located: bool) -> Shown {
    Shown { task_id: "t".into(), status: status.into(), attempt, located }
}

/// A lease that was promised until `expires_us`, and what became of what its worker said.
fn journal(lines: &[(&str, Deed, Event, Option<i64>)]) -> Leases {
    let mut leases = Leases::default();
    for (lease_id, deed, event, number) in lines {
        leases.apply(&Word {
            round: 1,
            event: *event,
            deed: *deed,
            worker: "w".into(),
            task_id: Some("t".into()),
            lease_id: Some((*lease_id).to_owned()),
            expires_us: *number,
            requeued: (*deed == Deed::Fail && *event == Event::Ok).then_some(number.is_some()),
            note: None,
        });
    }
    leases
}

fn names(task: &Shown, receipts: &[Receipt], leases: &Leases) -> Vec<&'static str> {
    let receipts: Vec<&Receipt> = receipts.iter().collect();
    let held = by_task(leases).remove("t").unwrap_or_default();
    judge_task(task, &receipts, &held, SKEW_US).iter().map(|violation| violation.invariant.name()).collect()
}

/// Leased, ran out, leased again, failed, and done at the third go by a worker that repairs what it left out.
fn long_story() -> (Vec<Receipt>, Leases) {
    let receipts = vec![
        assigned(),
        about(ACCEPTED, "a", 10),
        about(EXPIRED, "a", 110),
        about(ACCEPTED, "b", 120),
        retry("b", 1, 130),
        about(ACCEPTED, "c", 140),
        receipt(COMPLETED, Some("c"), &[], 150),
        about(COMPLETED, "c", 300),
    ];
    let leases = journal(&[
        ("a", Deed::Claim, Event::Ok, Some(110)),
        ("a", Deed::Complete, Event::Invoke, None),
        ("a", Deed::Complete, Event::Fail, None),
        ("b", Deed::Claim, Event::Ok, Some(220)),
        ("b", Deed::Fail, Event::Invoke, None),
        ("b", Deed::Fail, Event::Ok, Some(1)),
        ("c", Deed::Claim, Event::Ok, Some(240)),
        ("c", Deed::Complete, Event::Invoke, None),
        ("c", Deed::Complete, Event::Ok, None),
        ("c", Deed::Locate, Event::Invoke, None),
        ("c", Deed::Locate, Event::Ok, None),
    ]);
    (receipts, leases)
}

#[test]
fn honest_tasks_are_clean() {
    let (receipts, leases) = long_story();
    assert!(names(&task("succeeded", 1, true), &receipts, &leases).is_empty());
    assert!(names(&task("succeeded", 1, true), &receipts, &Leases::default()).is_empty(), "nobody kept a journal");
    assert!(names(&task("succeeded", 1, false), &receipts[..7], &journal(&[])).is_empty(), "never repaired");
    assert!(names(&task("queued", 1, false), &receipts[..5], &journal(&[])).is_empty());
    assert!(names(&task("leased", 1, false), &receipts[..6], &journal(&[])).is_empty());
    let canceled = [assigned(), about(ACCEPTED, "a", 10), receipt(CANCELED, None, &[FIRST], 20)];
    assert!(names(&task("canceled", 0, false), &canceled, &journal(&[])).is_empty());
    let failed = [assigned(), about(ACCEPTED, "a", 10), about(FAILED, "a", 20)];
    assert!(names(&task("failed", 0, false), &failed, &journal(&[])).is_empty());
}

#[test]
fn shared() {
    let two_live = [assigned(), about(ACCEPTED, "a", 10), about(ACCEPTED, "b", 20)];
    assert_eq!(names(&task("leased", 0, false), &two_live, &journal(&[])), ["shared"]);
    let beside = [assigned(), about(ACCEPTED, "a", 10), about(ACCEPTED, "b", 20), about(COMPLETED, "a", 30)];
    assert_eq!(names(&task("succeeded", 0, true), &beside, &journal(&[])), ["shared", "shared"], "and it overlaps");
    let overlapping = [two_live.to_vec(), vec![about(EXPIRED, "a", 21), about(COMPLETED, "b", 30)]].concat();
    assert_eq!(names(&task("succeeded", 0, true), &overlapping, &journal(&[])), ["shared"]);
    let receipts: Vec<&Receipt> = overlapping.iter().collect();
    assert!(judge_task(&task("succeeded", 0, true), &receipts, &[], 1).is_empty(), "within what times may be apart");

    let early = [assigned(), about(ACCEPTED, "a", 10), about(EXPIRED, "a", 109)];
    let promised = journal(&[("a", Deed::Claim, Event::Ok, Some(110))]);
    assert_eq!(names(&task("queued", 0, false), &early, &promised), ["shared"], "taken back early");
}

#[test]
fn stale() {
    let late = [assigned(), about(ACCEPTED, "a", 10), about(COMPLETED, "a", 110)];
    let said = |event| {
        journal(&[
            ("a", Deed::Claim, Event::Ok, Some(110)),
            ("a", Deed::Complete, Event::Invoke, None),
            ("a", Deed::Complete, event, None),
        ])
    };
    assert_eq!(names(&task("succeeded", 0, true), &late, &said(Event::Ok)), ["stale"]);
    let in_time = [assigned(), about(ACCEPTED, "a", 10), about(COMPLETED, "a", 109)];
    assert!(names(&task("succeeded", 0, true), &in_time, &said(Event::Ok)).is_empty());
    assert_eq!(names(&task("succeeded", 0, true), &in_time, &said(Event::Fail)), ["stale"], "refused");

    let mut renewing = said(Event::Ok);
    let renew = Word { deed: Deed::Renew, ..word_of("a", Event::Invoke) };
    renewing.apply(&renew);
    assert!(names(&task("succeeded", 0, true), &late, &renewing).is_empty(), "nobody knows until when");

    let twice = [assigned(), about(ACCEPTED, "a", 10), about(EXPIRED, "a", 110), about(COMPLETED, "a", 111)];
    let found = names(&task("succeeded", 0, true), &twice, &said(Event::Ok));
    assert_eq!(found, ["stale", "stale"], "after its end, and ended twice");
    let refused = journal(&[
        ("a", Deed::Claim, Event::Ok, Some(110)),
        ("a", Deed::Fail, Event::Invoke, None),
        ("a", Deed::Fail, Event::Fail, None),
    ]);
    let failed = [assigned(), about(ACCEPTED, "a", 10), about(FAILED, "a", 20)];
    assert_eq!(names(&task("failed", 0, false), &failed, &refused), ["stale"]);
}

fn word_of(lease_id: &str, event: Event) -> Word {
    Word {
        round: 1,
        event,
        deed: Deed::Claim,
        worker: "w".into(),
        task_id: Some("t".into()),
        lease_id: Some(lease_id.into()),
        expires_us: None,
        requeued: None,
        note: None,
    }
}

#[test]
fn lost() {
    let (receipts, leases) = long_story();
    let without = |kind: &str| receipts.iter().filter(|it| it.kind != kind).cloned().collect::<Vec<_>>();
    assert_eq!(names(&task("succeeded", 0, true), &without(RETRY), &leases), ["shared", "lost"], "a failure");
    assert!(names(&task("queued", 1, false), &without(COMPLETED), &leases).contains(&"lost"), "an outcome");
    assert_eq!(names(&task("succeeded", 1, false), &receipts[..7], &leases), ["lost"], "its place");
    let given = journal(&[("z", Deed::Claim, Event::Ok, Some(9))]);
    assert_eq!(names(&task("queued", 0, false), &[assigned()], &given), ["lost"], "a lease");
}

#[test]
fn miscounted() {
    let (receipts, leases) = long_story();
    assert_eq!(names(&task("succeeded", 2, true), &receipts, &leases), ["miscounted"], "by the expiry");
    assert_eq!(names(&task("succeeded", 0, true), &receipts, &leases), ["miscounted"]);
    let mut numbered = receipts.clone();
    numbered[4].attempt = Some(2);
    assert_eq!(names(&task("succeeded", 1, true), &numbered, &leases), ["miscounted"], "as the second");
    let silent = journal(&[("b", Deed::Claim, Event::Ok, Some(220))]);
    assert_eq!(names(&task("queued", 1, false), &receipts[..5], &silent), ["miscounted"], "reported by nobody");
}

#[test]
fn orphaned() {
    let (receipts, _) = long_story();
    let none = journal(&[]);
    let untied = [receipts[..6].to_vec(), vec![receipt(COMPLETED, Some("c"), &[], 150)]].concat();
    assert_eq!(names(&task("succeeded", 1, true), &untied, &none), ["orphaned"], "its parents were dropped");
    let astray = [receipts[..6].to_vec(), vec![receipt(COMPLETED, Some("c"), &["other"], 150)]].concat();
    assert_eq!(names(&task("succeeded", 1, true), &astray, &none), ["orphaned"], "tied to something else");
    let twice = [receipts.clone(), vec![about(COMPLETED, "c", 301)]].concat();
    assert_eq!(names(&task("succeeded", 1, true), &twice, &none), ["orphaned"]);
    let twice_untied = [receipts.clone(), vec![receipt(COMPLETED, Some("c"), &[], 151)]].concat();
    assert_eq!(names(&task("succeeded", 1, true), &twice_untied, &none), ["orphaned"]);
    assert_eq!(names(&task("succeeded", 1, true), &receipts[..5], &none), ["orphaned"], "no receipt at all");
    let (queued, failed) = (task("queued", 1, false), task("failed", 1, false));
    assert!(names(&queued, &receipts, &none).contains(&"orphaned"), "not ended, says the task");
    assert!(names(&failed, &receipts, &none).contains(&"orphaned"), "ended otherwise, says the task");
    assert_eq!(names(&task("queued", 0, false), &[], &none), ["orphaned"], "nobody was told of it");
}

#[test]
fn misowed() {
    let of = |id: &str, to: &str| Receipt { id: id.into(), to: to.into(), ..assigned() };
    let receipts = [of("one", "agent:a"), of("two", "agent:a"), of("three", "agent:b"), {
        Receipt { parents: vec!["two".into()], ..about(COMPLETED, "c", 5) }
    }];
    let served = |a: &[&str], b: &[&str]| {
        let list = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        BTreeMap::from([("agent:a".to_owned(), list(a)), ("agent:b".to_owned(), list(b))])
    };
    let found = |a: &[&str], b: &[&str]| judge_obligations(receipts.iter(), &served(a, b)).len();
    assert_eq!(found(&["one"], &["three"]), 0);
    assert_eq!(found(&[], &["three"]), 1, "missing");
    assert_eq!(found(&["one", "two"], &["three"]), 1, "had ended");
    assert_eq!(found(&["one", "one"], &["three"]), 1, "twice");
    assert_eq!(found(&["one", "three"], &[]), 2, "another's");
    let untied = [of("one", "agent:a"), receipt(COMPLETED, Some("c"), &[], 5)];
    assert!(judge_obligations(untied.iter(), &served(&["one"], &[])).is_empty(), "what names no parents ends nothing");
    let acknowledged = [of("one", "agent:a"), receipt("receipt.acknowledged", None, &["one"], 5)];
    assert!(judge_obligations(acknowledged.iter(), &served(&["one"], &[])).is_empty());
}

#[test]
fn two_servers_whose_clocks_differ_a_little_may_turn_two_leases_round() {
    // b came after a was given up, by a server whose clock is 47 behind.
    let receipts = [
        assigned(),
        about(ACCEPTED, "a", 202),
        retry("a", 1, 210),
        about(ACCEPTED, "b", 155),
        about(EXPIRED, "b", 1_195),
    ];
    let receipts: Vec<&Receipt> = receipts.iter().collect();
    let found = |skew_us| judge_task(&task("queued", 1, false), &receipts, &[], skew_us);
    assert!(found(500).is_empty(), "{:?}", found(500));
    assert!(found(40).iter().any(|violation| violation.invariant == Invariant::Shared), "beyond what they may differ");
}
