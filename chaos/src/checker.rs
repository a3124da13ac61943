//! The judge: pure functions from what was promised and what the server shows to named violations.
//!
//! Nothing here talks to a server, so each invariant is tested by planting its violation.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use crate::client::Answer;
use crate::history::{Fate, History, Op, Task};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// A promised task is not there.
    Lost,
    /// One key has two tasks, or one task is listed twice.
    Doubled,
    /// A task is there that nobody asked for, or whose request was refused.
    Phantom,
    /// A task is there with other contents or another state than it was given.
    Altered,
    /// A promised cancellation no longer holds.
    Reverted,
    /// The server did not come back, or does not answer valid requests.
    Unserved,
    /// A task bears an earlier time than one whose request had ended before.
    RanBack,
    /// The times of tasks advance faster than time itself.
    Raced,
    /// Another tenant's key can tell that a task exists, or do something to it.
    Foreign,
    /// A task has ended without its result, or has a result without having ended.
    Unproven,
    /// A task that had ended was ended again.
    EndedAgain,
    /// A write was acknowledged, or readiness claimed, while the disk keeps nothing.
    Hollow,
    /// A commit failed and writing went on without the file having been verified.
    Unverified,
    /// A damaged or rolled-back file was served as if nothing were missing.
    Silent,
    /// On a full disk work cannot be ended, or there is room again and creating is still refused.
    Stuck,
    /// A lease ran out, and its task neither came back to the queue nor ended.
    Stranded,
    /// Two leases of one task were live at the same time, or one was taken back before its end.
    Shared,
    /// A worker's word was taken although its lease had ended or was another's, or a word that was refused took effect.
    Stale,
    /// A task's attempts are not the failures that were reported.
    Miscounted,
    /// An ended task has no receipt that ends it, several, or one that is tied to nothing.
    Orphaned,
    /// The open obligations of a principal are not those that the links of the receipts leave open.
    Misowed,
    /// A message was received while an earlier one of its group was there, or is numbered before it.
    Disordered,
    /// A queue with a throttle has accepted more than its budget.
    Overspent,
    /// The archive says that it has everything, and lacks a message or holds half of one.
    Unfiled,
    /// The archive shows an older state than the database has.
    Outdated,
    /// Others than its owner may read a file of the archive.
    Exposed,
}

impl Invariant {
    pub const ALL: [Invariant; 26] = [
        Invariant::Lost,
        Invariant::Doubled,
        Invariant::Phantom,
        Invariant::Altered,
        Invariant::Reverted,
        Invariant::Unserved,
        Invariant::RanBack,
        Invariant::Raced,
        Invariant::Foreign,
        Invariant::Unproven,
        Invariant::EndedAgain,
        Invariant::Hollow,
        Invariant::Unverified,
        Invariant::Silent,
        Invariant::Stuck,
        Invariant::Stranded,
        Invariant::Shared,
        Invariant::Stale,
        Invariant::Miscounted,
        Invariant::Orphaned,
        Invariant::Misowed,
        Invariant::Disordered,
        Invariant::Overspent,
        Invariant::Unfiled,
        Invariant::Outdated,
        Invariant::Exposed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Invariant::Lost => "lost",
            Invariant::Doubled => "doubled",
            Invariant::Phantom => "phantom",
            Invariant::Altered => "altered",
            Invariant::Reverted => "reverted",
            Invariant::Unserved => "unserved",
            Invariant::RanBack => "ran-back",
            Invariant::Raced => "raced",
            Invariant::Foreign => "foreign",
            Invariant::Unproven => "unproven",
            Invariant::EndedAgain => "ended-again",
            Invariant::Hollow => "hollow",
            Invariant::Unverified => "unverified",
            Invariant::Silent => "silent",
            Invariant::Stuck => "stuck",
            Invariant::Stranded => "stranded",
            Invariant::Shared => "shared",
            Invariant::Stale => "stale",
            Invariant::Miscounted => "miscounted",
            Invariant::Orphaned => "orphaned",
            Invariant::Misowed => "misowed",
            Invariant::Disordered => "disordered",
            Invariant::Overspent => "overspent",
            Invariant::Unfiled => "unfiled",
            Invariant::Outdated => "outdated",
            Invariant::Exposed => "exposed",
        }
    }
}

const ENDED_BY_WORK: [&str; 2] = ["succeeded", "failed"];

#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub detail: String,
}

impl Violation {
    pub fn new(invariant: Invariant, detail: impl Into<String>) -> Self {
        Violation { invariant, detail: detail.into() }
    }

    pub fn of(invariant: Invariant, op: Op, detail: impl fmt::Display) -> Self {
        Violation { invariant, detail: format!("conn {} seq {}: {detail}", op.conn, op.seq) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant.name(), self.detail)
    }
}

/// A task as the list shows it; lists may leave out payload and status.
#[derive(Clone, Debug)]
pub struct Listed {
    pub task_id: String,
    pub payload: Option<Value>,
    pub status: Option<String>,
}

/// The answer to fetching a promised task. `None`: no answer after several attempts.
pub fn judge_fetch(history: &History, op: Op, answer: Option<&Answer>) -> Option<Violation> {
    let task = history.get(op)?;
    let Some(answer) = answer else {
        return Some(Violation::of(Invariant::Unserved, op, "fetching the task was never answered"));
    };
    if !answer.success() && !answer.refused() {
        return Some(Violation::of(Invariant::Unserved, op, format!("fetching the task: {}", answer.brief())));
    }
    if !answer.success() {
        return Some(Violation::of(Invariant::Lost, op, format!("promised, now {}", answer.brief())));
    }
    if answer.text("task_id") != task.task_id.as_deref() {
        return Some(Violation::of(Invariant::Altered, op, format!("another task id: {}", answer.brief())));
    }
    let payload = answer.body.get("payload").unwrap_or(&Value::Null);
    let worked = !history.leases.is_empty();
    judge_contents(history, op, task, payload, answer.text("status")).or_else(|| judge_result(op, answer, worked))
}

/// A task that ended shows how; one that has not shows no result. Where nobody works, only a cancel ends one.
fn judge_result(op: Op, answer: &Answer, worked: bool) -> Option<Violation> {
    let outcome = answer.body.get("result").map(|result| result["outcome"].as_str().unwrap_or("no outcome"));
    let status = answer.text("status").unwrap_or("without status");
    let ended = status == "canceled" || (worked && ENDED_BY_WORK.contains(&status));
    let expected = ended.then_some(status);
    let detail = format!("{status}, and its result says {}", outcome.unwrap_or("nothing"));
    (outcome != expected).then(|| Violation::of(Invariant::Unproven, op, detail))
}

/// An answer to a cancel: a worker has ended the task before.
pub fn ended_otherwise(answer: &Answer) -> bool {
    answer.success() && answer.text("status").is_some_and(|status| ENDED_BY_WORK.contains(&status))
}

/// The answer to canceling a task that was canceled before.
pub fn judge_repeated_cancel(op: Op, answer: Option<&Answer>) -> Option<Violation> {
    let Some(answer) = answer.filter(|answer| answer.success()) else {
        let answer = answer.map_or_else(|| "never answered".to_owned(), Answer::brief);
        return Some(Violation::of(Invariant::Unserved, op, format!("a repeated cancel: {answer}")));
    };
    match (answer.body["ok"].as_bool(), answer.text("status")) {
        (Some(false), Some("canceled")) => None,
        (Some(true), _) => Some(Violation::of(Invariant::EndedAgain, op, "canceled, and canceled again with success")),
        _ => Some(Violation::of(Invariant::Reverted, op, format!("canceled, now {}", answer.brief()))),
    }
}

/// Two cancels of one task at the same time: at most one of them may have done it.
pub fn judge_rivals(op: Op, answers: [Option<&Answer>; 2]) -> Option<Violation> {
    let both = answers.iter().flatten().filter(|answer| answer.success() && answer.body["ok"] == true).count() == 2;
    both.then(|| Violation::of(Invariant::EndedAgain, op, "two cancels at once were both told that they did it"))
}

fn judge_contents(history: &History, op: Op, task: &Task, payload: &Value, status: Option<&str>) -> Option<Violation> {
    if *payload != history.payload(op) {
        return Some(Violation::of(Invariant::Altered, op, format!("another payload: {payload}")));
    }
    let canceled = status == Some("canceled");
    match task.cancel {
        Some(Fate::Promised) if !canceled => Some(Violation::of(
            Invariant::Reverted,
            op,
            format!("canceled, now {}", status.unwrap_or("without status")),
        )),
        None | Some(Fate::Refused) if canceled => {
            Some(Violation::of(Invariant::Altered, op, "canceled, although nobody canceled it"))
        }
        _ => None,
    }
}

/// The answer to sending a promised create again with its key.
pub fn judge_retry(history: &History, op: Op, answer: Option<&Answer>) -> Option<Violation> {
    let task = history.get(op)?;
    let Some(answer) = answer.filter(|answer| answer.success()) else {
        let answer = answer.map_or_else(|| "never answered".to_owned(), Answer::brief);
        return Some(Violation::of(Invariant::Unserved, op, format!("a retry with its key: {answer}")));
    };
    let promised = task.task_id.as_deref().unwrap_or_default();
    match answer.text("task_id") {
        Some(task_id) if task_id == promised && answer.replay => None,
        Some(task_id) if task_id == promised => {
            Some(Violation::of(Invariant::Doubled, op, "the retry was answered as a new creation"))
        }
        _ => Some(Violation::of(Invariant::Doubled, op, format!("promised {promised}, retry: {}", answer.brief()))),
    }
}

/// A listing against the history. `must`: promised tasks which the listed part has to contain.
pub fn judge_list(history: &History, listed: &[Listed], must: &[Op]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let owners: HashMap<&str, Op> =
        history.iter().filter_map(|(op, task)| Some((task.task_id.as_deref()?, op))).collect();
    let mut seen = HashSet::new();
    let mut strangers = HashSet::new();
    for item in listed {
        if !seen.insert(item.task_id.as_str()) {
            violations.push(Violation::new(Invariant::Doubled, format!("task {} is listed twice", item.task_id)));
            continue;
        }
        match owners.get(item.task_id.as_str()) {
            Some(op) => violations.extend(judge_known(history, *op, item)),
            None => violations.extend(judge_stranger(history, item, &mut strangers)),
        }
    }
    for op in must {
        let task_id = history.get(*op).and_then(|task| task.task_id.as_deref());
        if task_id.is_some_and(|task_id| !seen.contains(task_id)) {
            violations.push(Violation::of(Invariant::Lost, *op, "promised, yet not in the list"));
        }
    }
    violations
}

fn judge_known(history: &History, op: Op, item: &Listed) -> Option<Violation> {
    let task = history.get(op)?;
    let expected = history.payload(op);
    let payload = item.payload.as_ref().unwrap_or(&expected);
    // A list without status cannot tell whether a cancellation holds; fetching the task does.
    let assumed = (task.cancel == Some(Fate::Promised)).then_some("canceled");
    judge_contents(history, op, task, payload, item.status.as_deref().or(assumed))
}

/// A listed task whose id was promised to nobody.
fn judge_stranger(history: &History, item: &Listed, strangers: &mut HashSet<Op>) -> Option<Violation> {
    let phantom = |why: &str| Some(Violation::new(Invariant::Phantom, format!("task {}: {why}", item.task_id)));
    let Some(op) = item.payload.as_ref().and_then(|payload| history.named_by(payload)) else {
        return phantom("names no operation of this run");
    };
    let Some(task) = history.get(op) else {
        return phantom(&format!("conn {} seq {} was never invoked", op.conn, op.seq));
    };
    if !strangers.insert(op) || task.create == Fate::Promised {
        let promised = task.task_id.as_deref().unwrap_or("another task");
        return Some(Violation::of(Invariant::Doubled, op, format!("{promised} and {} both exist", item.task_id)));
    }
    match task.create {
        Fate::Refused => phantom(&format!("conn {} seq {} was refused", op.conn, op.seq)),
        // Unknown may exist, once.
        _ => None,
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
