//! The judge of leases and receipts: pure functions from the server's own ledger, the tasks it shows and the workers' journal
//! to named violations. To be asked when nothing moves: no lease is live and nobody calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::checker::{Invariant, Violation};
use crate::history::Fate;
use crate::leases::{Held, Leases};

pub const ASSIGNED: &str = "task.assigned";
const ACCEPTED: &str = "task.accepted";
const RETRY: &str = "task.retry_scheduled";
const COMPLETED: &str = "task.completed";
const FAILED: &str = "task.failed";
const CANCELED: &str = "task.canceled";
const EXPIRED: &str = "lease.expired";
/// What ends a task, and with it the obligation that its parents name.
const ENDING: [&str; 3] = [COMPLETED, FAILED, CANCELED];

#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    pub id: String,
    pub kind: String,
    pub to: String,
    pub task_id: Option<String>,
    pub lease_id: Option<String>,
    pub parents: Vec<String>,
    pub created_us: i64,
    /// What the body says about attempts.
    pub attempt: Option<i64>,
}

/// A task as the list shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub task_id: String,
    pub status: String,
    pub attempt: i64,
    /// The result says where the work is, or that it was delivered.
    pub located: bool,
}

impl Shown {
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "failed" | "canceled")
    }
}

/// One lease by the ledger: from the receipt that accepted the task to the first that says it was over.
struct Span<'a> {
    lease_id: &'a str,
    began_us: i64,
    ended_us: Option<i64>,
}

/// Everything about one task. `leases` are the journaled ones of it; others are known from the ledger alone. `skew_us`: by
/// how much the times of two transactions may be apart from their order, where several write at once.
pub fn judge_task(task: &Shown, receipts: &[&Receipt], leases: &[(&str, &Held)], skew_us: i64) -> Vec<Violation> {
    let mut found = Vec::new();
    judge_leases(task, receipts, skew_us, &mut found);
    for (lease_id, held) in leases {
        judge_held(task, receipts, lease_id, held, &mut found);
    }
    judge_attempts(task, receipts, &mut found);
    judge_end(task, receipts, &mut found);
    let told = |(invariant, detail): (Invariant, String)| {
        Violation::new(invariant, format!("task {} ({}): {detail}", task.task_id, task.status))
    };
    found.into_iter().map(told).collect()
}

type Found = Vec<(Invariant, String)>;

fn of_lease<'a>(receipts: &[&'a Receipt], lease_id: &str, kind: &str) -> Vec<&'a Receipt> {
    let wanted = |receipt: &&&Receipt| receipt.kind == kind && receipt.lease_id.as_deref() == Some(lease_id);
    receipts.iter().filter(wanted).copied().collect()
}

fn spans<'a>(receipts: &[&'a Receipt]) -> Vec<Span<'a>> {
    let ends = |lease_id: &str| {
        let of = |kind| of_lease(receipts, lease_id, kind);
        [COMPLETED, FAILED, RETRY, EXPIRED].into_iter().flat_map(of).map(|end| end.created_us).min()
    };
    let accepted = receipts.iter().filter(|receipt| receipt.kind == ACCEPTED);
    let mut spans: Vec<Span<'a>> = accepted
        .filter_map(|receipt| {
            let lease_id = receipt.lease_id.as_deref()?;
            Some(Span { lease_id, began_us: receipt.created_us, ended_us: ends(lease_id) })
        })
        .collect();
    spans.sort_by_key(|span| span.began_us);
    // A cancel names no lease: it ends the one that was live.
    let canceled = receipts.iter().find(|receipt| receipt.kind == CANCELED);
    let live = spans.iter_mut().rev().find(|span| span.ended_us.is_none());
    if let (Some(canceled), Some(live)) = (canceled, live) {
        live.ended_us = Some(canceled.created_us);
    }
    spans
}

/// At most one lease at a time.
fn judge_leases(task: &Shown, receipts: &[&Receipt], skew_us: i64, found: &mut Found) {
    let spans = spans(receipts);
    let live: Vec<&str> = spans.iter().filter(|span| span.ended_us.is_none()).map(|span| span.lease_id).collect();
    if task.has_ended() && !live.is_empty() {
        found.push((Invariant::Shared, format!("it has ended beside the live lease {}", live.join(", "))));
    } else if live.len() > 1 {
        found.push((Invariant::Shared, format!("the leases {} are live at the same time", live.join(", "))));
    }
    for pair in spans.windows(2) {
        let ended_us = pair[0].ended_us.unwrap_or(i64::MAX);
        // By clocks that differ, the later of two short ones may bear the earlier time.
        let turned = pair[1].began_us - pair[0].began_us <= skew_us
            && pair[1].ended_us.is_some_and(|ended_us| ended_us - skew_us <= pair[0].began_us);
        if ended_us.saturating_sub(skew_us) > pair[1].began_us && pair[0].ended_us.is_some() && !turned {
            let (one, other) = (pair[0].lease_id, pair[1].lease_id);
            let detail = format!("lease {other} began {} µs before {one} ended", ended_us - pair[1].began_us);
            found.push((Invariant::Shared, detail));
        }
    }
}

/// What a worker was told about its lease, against what the ledger says of it.
fn judge_held(task: &Shown, receipts: &[&Receipt], lease_id: &str, held: &Held, found: &mut Found) {
    let of = |kind| of_lease(receipts, lease_id, kind);
    if of(ACCEPTED).len() != 1 {
        found
            .push((Invariant::Lost, format!("lease {lease_id} was given, and {} receipts say so", of(ACCEPTED).len())));
    }
    let (expired, completed, failed, retried) = (of(EXPIRED), of(COMPLETED), of(FAILED), of(RETRY));
    for receipt in &expired {
        let early_us = held.promised_us() - receipt.created_us;
        if early_us > 0 {
            let detail = format!("lease {lease_id} was taken back {early_us} µs before the end it was promised");
            found.push((Invariant::Shared, detail));
        }
    }
    // The later of two completions only adds where the work is.
    let ended = completed.iter().min_by_key(|receipt| receipt.created_us);
    for receipt in ended.into_iter().chain(&failed).chain(&retried) {
        let late_us = held.latest_us().map_or(-1, |latest_us| receipt.created_us - latest_us);
        if late_us >= 0 {
            let detail = format!("lease {lease_id} had ended {late_us} µs before its {}", receipt.kind);
            found.push((Invariant::Stale, detail));
        }
    }
    let endings = usize::from(!completed.is_empty()) + expired.len() + failed.len() + retried.len();
    if endings > 1 {
        found.push((Invariant::Stale, format!("lease {lease_id} was ended {endings} times")));
    }
    judge_promises(task, lease_id, held, [&completed, &failed, &retried], found);
}

fn judge_promises(task: &Shown, lease_id: &str, held: &Held, written: [&[&Receipt]; 3], found: &mut Found) {
    let [completed, failed, retried] = written;
    let said = |what: &str| format!("lease {lease_id}: {what}");
    if held.complete == Some(Fate::Promised) && (completed.is_empty() || task.status != "succeeded") {
        found.push((Invariant::Lost, said("its complete was acknowledged, and the task has not succeeded by it")));
    }
    if held.locate == Some(Fate::Promised) && !task.located {
        found.push((Invariant::Lost, said("the place of its work was acknowledged, and is not there")));
    }
    if held.fail == Some(Fate::Promised) {
        let again = held.requeued == Some(true);
        let kept = if again { !retried.is_empty() } else { !failed.is_empty() && task.status == "failed" };
        if !kept {
            found.push((Invariant::Lost, said("its failure was acknowledged, and is not there")));
        }
    }
    if held.complete == Some(Fate::Refused) && !completed.is_empty() {
        found.push((Invariant::Stale, said("its complete was refused, and has taken effect")));
    }
    let failures = failed.len() + retried.len();
    if held.fail == Some(Fate::Refused) && failures > 0 {
        found.push((Invariant::Stale, said("its failure was refused, and has taken effect")));
    }
    if held.fail.is_none() && failures > 0 {
        found.push((Invariant::Miscounted, said("a failure is on record that its worker has not reported")));
    }
}

/// Each failure that sent the task back is an attempt; nothing else is.
fn judge_attempts(task: &Shown, receipts: &[&Receipt], found: &mut Found) {
    let mut retries: Vec<i64> =
        receipts.iter().filter(|receipt| receipt.kind == RETRY).map(|receipt| receipt.attempt.unwrap_or(-1)).collect();
    retries.sort_unstable();
    let reported = retries.len() as i64;
    if task.attempt != reported {
        let expired = receipts.iter().filter(|receipt| receipt.kind == EXPIRED).count();
        let detail = format!("attempt {} after {reported} reported failures and {expired} expiries", task.attempt);
        found.push((Invariant::Miscounted, detail));
    }
    if !retries.iter().copied().eq(1..=reported) {
        found.push((Invariant::Miscounted, format!("the failures on record are numbered {retries:?}")));
    }
}

/// A task that has ended has one receipt tied to its assignment that says so; one that has not has none. Only a success
/// that does not say where its work is may stand untied, alone or before the one that repairs it.
fn judge_end(task: &Shown, receipts: &[&Receipt], found: &mut Found) {
    let assigned: Vec<&&Receipt> = receipts.iter().filter(|receipt| receipt.kind == ASSIGNED).collect();
    let [assigned] = assigned[..] else {
        found.push((Invariant::Orphaned, format!("{} receipts assign it", assigned.len())));
        return;
    };
    let ending = |tied: bool| {
        let wanted =
            move |receipt: &&&Receipt| ENDING.contains(&receipt.kind.as_str()) && receipt.parents.is_empty() != tied;
        receipts.iter().filter(wanted).copied().collect::<Vec<&Receipt>>()
    };
    let (tied, untied) = (ending(true), ending(false));
    let (kind, ties, unties) = match task.status.as_str() {
        "succeeded" if task.located => (COMPLETED, 1, 0..=1),
        "succeeded" => (COMPLETED, 0, 1..=1),
        "failed" => (FAILED, 1, 0..=0),
        "canceled" => (CANCELED, 1, 0..=0),
        _ => ("", 0, 0..=0),
    };
    if tied.len() != ties || !unties.contains(&untied.len()) {
        let detail = format!("{} receipts with parents and {} without end it", tied.len(), untied.len());
        found.push((Invariant::Orphaned, detail));
    }
    for receipt in tied.iter().chain(&untied).filter(|receipt| receipt.kind != kind) {
        found.push((Invariant::Orphaned, format!("receipt {} says {}", receipt.id, receipt.kind)));
    }
    for receipt in tied.iter().filter(|receipt| !receipt.parents.contains(&assigned.id)) {
        found.push((Invariant::Orphaned, format!("receipt {} is not tied to its assignment", receipt.id)));
    }
}

/// By principal, what the links leave open against what is served as open.
pub fn judge_obligations<'a>(
    receipts: impl Iterator<Item = &'a Receipt>,
    served: &BTreeMap<String, Vec<String>>,
) -> Vec<Violation> {
    let mut owed: HashMap<&str, &str> = HashMap::new();
    let mut ended = BTreeSet::new();
    for receipt in receipts {
        if receipt.kind == ASSIGNED {
            owed.insert(&receipt.id, &receipt.to);
        } else if ENDING.contains(&receipt.kind.as_str()) {
            ended.extend(receipt.parents.iter().map(String::as_str));
        }
    }
    owed.retain(|id, _| !ended.contains(id));
    let mut violations = Vec::new();
    for (principal, open) in served {
        let shown: BTreeSet<&str> = open.iter().map(String::as_str).collect();
        let due: BTreeSet<&str> = owed.iter().filter(|(_, to)| *to == principal).map(|(id, _)| *id).collect();
        let mut tell = |what: &str, ids: Vec<&str>| {
            if let Some(first) = ids.first() {
                let detail = format!("{principal}: {} obligations {what}, {first} among them", ids.len());
                violations.push(Violation::new(Invariant::Misowed, detail));
            }
        };
        tell("are open by their links and not in the list", due.difference(&shown).copied().collect());
        tell("are in the list and not open by their links", shown.difference(&due).copied().collect());
        if shown.len() != open.len() {
            let detail = format!("{principal}: {} obligations are listed twice", open.len() - shown.len());
            violations.push(Violation::new(Invariant::Misowed, detail));
        }
    }
    violations
}

/// The journaled leases of each task.
pub fn by_task(leases: &Leases) -> HashMap<&str, Vec<(&str, &Held)>> {
    let mut tasks: HashMap<&str, Vec<(&str, &Held)>> = HashMap::new();
    for (lease_id, held) in leases.iter() {
        tasks.entry(held.task_id.as_str()).or_default().push((lease_id, held));
    }
    tasks
}

#[cfg(test)]
#[path = "books_tests.rs"]
mod tests;
