//! Each invariant has its planted violation here, and one clean history that must stay clean.

use serde_json::json;

use super::*;
use crate::history::{Entry, Event, Verb};
use crate::leases::{Deed, Word};

const KEPT: Op = Op { conn: 0, seq: 1 };
const CANCELED: Op = Op { conn: 0, seq: 2 };
const UNKNOWN: Op = Op { conn: 1, seq: 1 };
const REFUSED: Op = Op { conn: 1, seq: 2 };

fn history() -> History {
    let mut history = History::new("kill-1".into(), 1);
    for (op, verb, event, task_id) in [
        (KEPT, Verb::Create, Event::Invoke, None),
        (KEPT, Verb::Create, Event::Ok, Some("kept")),
        (CANCELED, Verb::Create, Event::Invoke, None),
        (CANCELED, Verb::Create, Event::Ok, Some("canceled")),
        (CANCELED, Verb::Cancel, Event::Invoke, None),
        (CANCELED, Verb::Cancel, Event::Ok, None),
        (UNKNOWN, Verb::Create, Event::Invoke, None),
        (UNKNOWN, Verb::Create, Event::Info, None),
        (REFUSED, Verb::Create, Event::Invoke, None),
        (REFUSED, Verb::Create, Event::Fail, None),
    ] {
        history.apply(&Entry { round: 1, event, verb, op, task_id: task_id.map(str::to_owned), note: None });
    }
    history
}

fn listed(task_id: &str, payload: Value, status: &str) -> Listed {
    Listed { task_id: task_id.into(), payload: Some(payload), status: Some(status.into()) }
}

/// What an honest server lists, the unknown operation included.
fn honest(history: &History) -> Vec<Listed> {
    vec![
        listed("kept", history.payload(KEPT), "queued"),
        listed("canceled", history.payload(CANCELED), "canceled"),
        listed("maybe", history.payload(UNKNOWN), "queued"),
    ]
}

fn names(violations: impl IntoIterator<Item = Violation>) -> Vec<&'static str> {
    violations.into_iter().map(|violation| violation.invariant.name()).collect()
}

fn list_names(history: &History, items: &[Listed]) -> Vec<&'static str> {
    names(judge_list(history, items, &[KEPT, CANCELED]))
}

fn answer(status: u16, replay: bool, body: Value) -> Answer {
    Answer { status, replay, body }
}

fn fetched(history: &History, op: Op, task_id: &str, status: &str) -> Answer {
    let mut body = json!({"task_id": task_id, "payload": history.payload(op), "status": status});
    if status == "canceled" {
        body["result"] = json!({"outcome": status});
    }
    answer(200, false, body)
}

#[test]
fn an_honest_server_is_clean() {
    let history = history();
    assert!(list_names(&history, &honest(&history)).is_empty());
    assert!(list_names(&history, &honest(&history)[..2]).is_empty(), "an unknown operation need not exist");
    assert!(judge_fetch(&history, KEPT, Some(&fetched(&history, KEPT, "kept", "queued"))).is_none());
    assert!(judge_fetch(&history, CANCELED, Some(&fetched(&history, CANCELED, "canceled", "canceled"))).is_none());
    assert!(judge_retry(&history, KEPT, Some(&answer(200, true, json!({"task_id": "kept"})))).is_none());
}

#[test]
fn a_list_may_leave_out_payload_and_status() {
    let history = history();
    let bare = |task_id: &str| Listed { task_id: task_id.into(), payload: None, status: None };
    assert!(list_names(&history, &[bare("kept"), bare("canceled")]).is_empty());
}

#[test]
fn lost() {
    let history = history();
    assert_eq!(list_names(&history, &honest(&history)[1..]), ["lost"]);
    let gone = answer(404, false, json!({"error": "not_found"}));
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&gone))), ["lost"]);
}

#[test]
fn doubled() {
    let history = history();
    let mut twice = honest(&history);
    twice.push(twice[0].clone());
    assert_eq!(list_names(&history, &twice), ["doubled"], "one task listed twice");

    let mut second = honest(&history);
    second.push(listed("second", history.payload(KEPT), "queued"));
    assert_eq!(list_names(&history, &second), ["doubled"], "two tasks of one promised key");

    let mut unknown = honest(&history);
    unknown.push(listed("maybe-too", history.payload(UNKNOWN), "queued"));
    assert_eq!(list_names(&history, &unknown), ["doubled"], "two tasks of one unknown key");

    for retry in [
        answer(201, false, json!({"task_id": "minted"})),
        answer(200, true, json!({"task_id": "minted"})),
        answer(201, false, json!({"task_id": "kept"})),
        answer(200, true, json!({})),
    ] {
        assert_eq!(names(judge_retry(&history, KEPT, Some(&retry))), ["doubled"], "{retry:?}");
    }
}

#[test]
fn phantom() {
    let history = history();
    let never = Op { conn: 9, seq: 9 };
    for payload in [history.payload(never), history.payload(REFUSED), json!({"hello": 1}), Value::Null] {
        let mut items = honest(&history);
        items.push(listed("stranger", payload.clone(), "queued"));
        assert_eq!(list_names(&history, &items), ["phantom"], "{payload}");
    }
}

#[test]
fn altered() {
    let history = history();
    let mut other = fetched(&history, KEPT, "kept", "queued");
    other.body["payload"]["seq"] = json!(77);
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&other))), ["altered"], "payload");
    let canceled = fetched(&history, KEPT, "kept", "canceled");
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&canceled))), ["altered"], "canceled by nobody");
    let renamed = fetched(&history, KEPT, "other", "queued");
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&renamed))), ["altered"], "task id");

    let mut items = honest(&history);
    items[0].payload = Some(history.payload(CANCELED));
    assert_eq!(list_names(&history, &items), ["altered"], "in the list");
}

#[test]
fn reverted() {
    let history = history();
    let queued = fetched(&history, CANCELED, "canceled", "queued");
    assert_eq!(names(judge_fetch(&history, CANCELED, Some(&queued))), ["reverted"]);
    let mut items = honest(&history);
    items[1].status = Some("queued".into());
    assert_eq!(list_names(&history, &items), ["reverted"]);
}

#[test]
fn unproven() {
    let history = history();
    let mut bare = fetched(&history, CANCELED, "canceled", "canceled");
    bare.body["result"] = json!({});
    assert_eq!(names(judge_fetch(&history, CANCELED, Some(&bare))), ["unproven"]);
    bare.body.as_object_mut().unwrap().remove("result");
    assert_eq!(names(judge_fetch(&history, CANCELED, Some(&bare))), ["unproven"]);
    let mut early = fetched(&history, KEPT, "kept", "queued");
    early.body["result"] = json!({"outcome": "canceled"});
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&early))), ["unproven"]);
}

/// Where somebody works, a task may end by it, and must then say how.
#[test]
fn unproven_by_a_worker() {
    let mut history = history();
    let done = |outcome: Option<&str>| {
        let mut answer = fetched(&history, KEPT, "kept", "succeeded");
        if let Some(outcome) = outcome {
            answer.body["result"] = json!({"outcome": outcome});
        }
        answer
    };
    let (right, wrong, bare) = (done(Some("succeeded")), done(Some("failed")), done(None));
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&right))), ["unproven"], "nobody works");
    history.leases.apply(&Word {
        round: 1,
        event: Event::Ok,
        deed: Deed::Claim,
        worker: "w".into(),
        task_id: Some("kept".into()),
        lease_id: Some("lease".into()),
        expires_us: Some(1),
        requeued: None,
        note: None,
    });
    assert!(judge_fetch(&history, KEPT, Some(&right)).is_none());
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&wrong))), ["unproven"]);
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&bare))), ["unproven"]);
}

#[test]
fn a_cancel_can_come_too_late() {
    let told = |status: &str| answer(200, false, json!({"ok": false, "status": status}));
    assert!(ended_otherwise(&told("succeeded")) && ended_otherwise(&told("failed")));
    assert!(!ended_otherwise(&told("canceled")) && !ended_otherwise(&told("queued")));
    assert!(!ended_otherwise(&answer(404, false, json!({"status": "failed"}))));
}

#[test]
fn ended_again() {
    let canceled = |ok: bool| answer(200, false, json!({"ok": ok, "status": "canceled"}));
    let (first, second) = (canceled(true), canceled(false));
    assert!(judge_repeated_cancel(CANCELED, Some(&second)).is_none());
    assert_eq!(names(judge_repeated_cancel(CANCELED, Some(&first))), ["ended-again"]);
    let queued = answer(200, false, json!({"ok": false, "status": "queued"}));
    assert_eq!(names(judge_repeated_cancel(CANCELED, Some(&queued))), ["reverted"]);
    assert_eq!(names(judge_repeated_cancel(CANCELED, None)), ["unserved"]);
    assert!(judge_rivals(CANCELED, [Some(&first), Some(&second)]).is_none());
    assert!(judge_rivals(CANCELED, [Some(&first), None]).is_none());
    assert_eq!(names(judge_rivals(CANCELED, [Some(&first), Some(&first)])), ["ended-again"]);
}

#[test]
fn unserved() {
    let history = history();
    assert_eq!(names(judge_fetch(&history, KEPT, None)), ["unserved"]);
    assert_eq!(names(judge_retry(&history, KEPT, None)), ["unserved"]);
    let broken = answer(503, false, json!({"error": "unavailable"}));
    assert_eq!(names(judge_fetch(&history, KEPT, Some(&broken))), ["unserved"]);
    let refused = answer(401, false, json!({"error": "unauthorized"}));
    assert_eq!(names(judge_retry(&history, KEPT, Some(&refused))), ["unserved"]);
}
