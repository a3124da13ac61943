//! A task in hand: its lease kept alive, and its outcome delivered.
//!
//! The holder's own clock decides when the lease is gone: it counts from before the request was sent, so it always ends here
//! before it ends at the server, and no two workers believe they hold the same task.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value as Json, json};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use waybill_client::{Backoff, Claim, Client, Completion, Failure, Lease, LeaseRef, Task};
use waybill_kernel::{Code, Error, Result, Time};

/// The part of a lease after which it is renewed.
const RENEW_AT: u32 = 3;

const CANCELED: &str = "canceled";
/// Work that is done sooner is not watched: it costs a call.
const WATCH_AFTER: Duration = Duration::from_millis(200);
/// How long the server is asked to hold its answer back.
const WATCH_WAIT: Duration = Duration::from_secs(20);
/// An answer that comes sooner was not waited for.
const WATCHED_MIN: Duration = Duration::from_secs(1);
const WATCH_PAUSE_FIRST: Duration = Duration::from_secs(1);
const WATCH_PAUSE_MAX: Duration = Duration::from_secs(30);
/// For a single question about a task that was lost.
const ASK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Of a message when the whole was refused as too large.
const BRIEF_CHARS_MAX: usize = 1_000;

/// How the work ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done(Json),
    Failed(Refusal),
}

/// Why there is no result: for the owner to read, and to act on by its code.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub code: &'static str,
    pub message: String,
    pub details: Map<String, Json>,
    /// Another try may succeed: true only where something between here and there failed.
    pub retryable: bool,
}

impl Refusal {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new(), retryable: false }
    }

    pub fn transport(message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new("transport_error", message) }
    }

    pub fn payload(message: impl Into<String>) -> Self {
        Self::new("invalid_payload", message)
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    fn is_brief(&self) -> bool {
        self.details.is_empty() && self.message.chars().count() <= BRIEF_CHARS_MAX
    }

    /// What every server takes.
    fn brief(&self) -> Self {
        let message = self.message.chars().take(BRIEF_CHARS_MAX).collect();
        Self { message, details: Map::new(), ..self.clone() }
    }

    fn to_failure(&self) -> Failure {
        let mut error = self.details.clone();
        error.insert("code".to_owned(), self.code.into());
        error.insert("message".to_owned(), self.message.clone().into());
        Failure { error: Json::Object(error), retryable: self.retryable }
    }
}

/// Why the task is no longer ours.
#[derive(Debug)]
pub enum Lost {
    /// Its owner does not want it any more.
    Canceled,
    /// The server says so.
    Taken(Error),
    /// No renewal came through in time, or the server grants no more of them.
    RanOut,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Canceled => f.write_str("the task was canceled"),
            Lost::Taken(error) => write!(f, "the lease is lost ({})", error.message()),
            Lost::RanOut => f.write_str("the lease is lost (it ran out before it was renewed)"),
        }
    }
}

/// What the server has on record now.
#[derive(Debug, PartialEq, Eq)]
pub enum Recorded {
    Succeeded,
    Failed,
    Requeued,
}

pub struct Held {
    client: Client,
    lease: LeaseRef,
    /// What every renewal asks for.
    extend_by: Duration,
    term: Term,
}

/// The time a lease has left, by our own clock.
struct Term {
    /// What was granted: as much as was asked for, or less.
    ttl: Duration,
    until: Mutex<Instant>,
}

impl Held {
    /// `asked_at` is from before the claim was sent; `now` is compared with the server's word only to notice a lease that
    /// it made shorter than was asked.
    pub fn new(client: &Client, lease: &Lease, claim: &Claim, asked_at: Instant, now: Time) -> Self {
        let extend_by = Duration::from_secs(claim.lease_ttl_seconds);
        let granted = lease.expires_at.since(now);
        let ttl = if granted.is_zero() || granted > extend_by { extend_by } else { granted };
        let worker_id = claim.worker_id.clone();
        let lease = LeaseRef { worker_id, task_id: lease.task_id, lease_id: lease.lease_id };
        Self { client: client.clone(), lease, extend_by, term: Term { ttl, until: Mutex::new(asked_at + ttl) } }
    }

    pub fn lease(&self) -> &LeaseRef {
        &self.lease
    }

    /// Renews at every third of the lease, and watches whether the task is canceled; ends when the lease has.
    pub async fn keep(&self) -> Lost {
        let lost = tokio::select! {
            lost = self.term.keep(|| self.client.renew_lease(&self.lease, self.extend_by)) => lost,
            lost = watch(|| self.client.watch_task(self.lease.task_id, WATCH_WAIT)) => lost,
        };
        match lost {
            // A renewal may come before the word of whoever watches.
            Lost::Taken(_) if self.is_canceled().await => Lost::Canceled,
            lost => lost,
        }
    }

    /// Has its owner canceled it? No, where nobody can say.
    pub async fn is_canceled(&self) -> bool {
        let asked = timeout(ASK_WAIT_MAX, self.client.watch_task(self.lease.task_id, Duration::ZERO)).await;
        matches!(asked, Ok(Ok(task)) if task.status == CANCELED)
    }

    /// Reports the outcome, and does not give up before the lease has run out.
    ///
    /// The lease is not renewed meanwhile: a completion whose answer was lost has ended it, and a renewal would then say
    /// that the task was taken away.
    pub async fn deliver(&self, outcome: Outcome) -> Result<Recorded> {
        let mut outcome = outcome;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let error = match self.report(&outcome).await {
                Ok(recorded) => return Ok(recorded),
                Err(error) => error,
            };
            match (&outcome, error.code().entry().http) {
                (Outcome::Done(result), 400 | 413) => outcome = Outcome::Failed(refused_result(result, &error)),
                // Better a failure that says less than a task that is done over and over.
                (Outcome::Failed(refusal), 400 | 413) if !refusal.is_brief() => {
                    outcome = Outcome::Failed(refusal.brief())
                }
                (_, 429 | 500..) if Instant::now() < self.term.until() => sleep(backoff.pause()).await,
                _ => return Err(error),
            }
        }
    }

    async fn report(&self, outcome: &Outcome) -> Result<Recorded> {
        match outcome {
            Outcome::Done(result) => {
                let completion = Completion::stored(result.clone(), self.lease.task_id);
                self.client.complete(&self.lease, &completion).await.map(|()| Recorded::Succeeded)
            }
            Outcome::Failed(refusal) => {
                let failed = self.client.fail(&self.lease, &refusal.to_failure()).await?;
                Ok(if failed.requeued { Recorded::Requeued } else { Recorded::Failed })
            }
        }
    }
}

/// Asks for the task's end, over and over, until it was canceled. The renewals go on beside it, so whoever is refused (a
/// server gives each key so many places to wait) or gets no answer has time to ask again.
async fn watch<F: Future<Output = Result<Task>>>(ask: impl Fn() -> F) -> Lost {
    sleep(WATCH_AFTER).await;
    let mut backoff = Backoff::new(WATCH_PAUSE_FIRST, WATCH_PAUSE_MAX);
    loop {
        let asked_at = Instant::now();
        match ask().await {
            Ok(task) if task.status == CANCELED => return Lost::Canceled,
            Ok(_) if asked_at.elapsed() >= WATCHED_MIN => {
                backoff.reset();
                continue;
            }
            // It ended otherwise, and the next renewal tells; or the server does not wait for us.
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a task is not watched; its renewals tell whether it is ours"),
        }
        sleep(backoff.pause()).await;
    }
}

impl Term {
    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep<T, F: Future<Output = Result<T>>>(&self, renew: impl Fn() -> F) -> Lost {
        let third = self.ttl / RENEW_AT;
        let mut backoff = Backoff::new(third / 4, third);
        let mut next = self.until() - self.ttl + third;
        loop {
            let until = self.until();
            sleep_until(next.min(until)).await;
            let sent = Instant::now();
            if sent >= until {
                return Lost::RanOut;
            }
            match timeout_at(until, renew()).await {
                Ok(Ok(_)) => {
                    *self.until.lock().unwrap_or_else(PoisonError::into_inner) = sent + self.ttl;
                    backoff.reset();
                    next = sent + third;
                }
                // Renewed as often as the server allows: ours to its end.
                Ok(Err(error)) if error.detail("renewals_max").is_some() => {
                    tracing::warn!(%error, "a lease is not renewed any more; the work has until its end");
                    next = until;
                }
                Ok(Err(error)) if matches!(error.code(), Code::LeaseInvalidOrExpired | Code::NotFound) => {
                    return Lost::Taken(error);
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a lease was not renewed; trying again");
                    next = Instant::now() + backoff.pause();
                }
                Err(_) => return Lost::RanOut,
            }
        }
    }
}

/// The work was done, but its result cannot be stored: better a failure that says so than a task done over and over.
fn refused_result(result: &Json, error: &Error) -> Refusal {
    let code = if error.code().entry().http == 413 { "result_too_large" } else { "result_refused" };
    let message = format!("The work was done, but the server does not take its result: {}", error.message());
    Refusal::new(code, message).with("result_bytes", result.to_string().len()).with("server", json!(error.to_json()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use waybill_kernel::id::Uuid;

    use super::*;

    #[test]
    fn a_failure_that_is_too_large_is_told_in_brief_and_once() {
        let long = Refusal::new("command_failed", "ä".repeat(5_000)).with("stdout", "x".repeat(40_000));
        let brief = long.brief();
        assert!(!long.is_brief() && brief.is_brief());
        assert_eq!((brief.code, brief.retryable), ("command_failed", false));
        assert!(brief.to_failure().error.to_string().len() < 8_000);
    }

    fn copied(error: &Error) -> Error {
        let copy = Error::new(error.code(), "");
        match error.detail("renewals_max") {
            Some(max) => copy.with("renewals_max", max.clone()),
            None => copy,
        }
    }

    /// The seconds at which a lease of five minutes is renewed, by a server that gives these answers and then none.
    async fn renewals(answers: &[Result<()>]) -> (Vec<u64>, Lost, u64) {
        let began = Instant::now();
        let term = Term { ttl: Duration::from_secs(300), until: Mutex::new(began + Duration::from_secs(300)) };
        let asked = RefCell::new(Vec::new());
        let lost = term
            .keep(|| {
                let answer = answers.get(asked.borrow().len());
                asked.borrow_mut().push(began.elapsed().as_secs());
                async move {
                    match answer {
                        Some(Ok(())) => Ok(()),
                        Some(Err(error)) => Err(copied(error)),
                        None => std::future::pending().await,
                    }
                }
            })
            .await;
        (asked.into_inner(), lost, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_at_every_third_of_it() {
        let (asked, lost, ended) = renewals(&[Ok(()), Ok(()), Ok(())]).await;
        assert_eq!(asked, [100, 200, 300, 400]);
        assert!(matches!(lost, Lost::RanOut), "{lost}");
        assert_eq!(ended, 600, "the last renewal that was granted was sent at 300");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_fails_is_tried_again_within_the_lease_and_a_refusal_ends_it() {
        let failed = || Err(Error::new(Code::Unavailable, ""));
        let (asked, ..) = renewals(&[failed(), failed(), Ok(())]).await;
        assert!(asked.len() >= 3 && asked[2] < 300, "{asked:?}");
        let (asked, lost, ended) = renewals(&[Ok(()), Err(Error::new(Code::LeaseInvalidOrExpired, ""))]).await;
        assert!(matches!(lost, Lost::Taken(_)), "{lost}");
        assert_eq!((asked.as_slice(), ended), ([100, 200].as_slice(), 200));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_has_had_all_its_renewals_is_kept_to_its_end() {
        let enough = Error::new(Code::InvalidStateTransition, "").with("renewals_max", 1);
        let (asked, lost, ended) = renewals(&[Ok(()), Err(enough)]).await;
        assert!(matches!(lost, Lost::RanOut), "{lost}");
        assert_eq!((asked.as_slice(), ended), ([100, 200].as_slice(), 400), "the one that was granted was sent at 100");
    }

    fn task(status: &str) -> Task {
        serde_json::from_value(json!({ "task_id": Uuid::nil(), "status": status, "attempt": 0 })).unwrap()
    }

    /// The seconds at which a task is asked about, by a server that holds back each answer for as long as it says.
    async fn questions(answers: &[(u64, Result<&str>)]) -> Vec<u64> {
        let began = Instant::now();
        let asked = RefCell::new(Vec::new());
        let watched = watch(|| {
            let answer = answers.get(asked.borrow().len());
            asked.borrow_mut().push(began.elapsed().as_secs());
            async move {
                let Some((seconds, answer)) = answer else { return std::future::pending().await };
                sleep(Duration::from_secs(*seconds)).await;
                answer.as_ref().map(|status| task(status)).map_err(copied)
            }
        });
        let lost = timeout(Duration::from_secs(3600), watched).await;
        assert!(matches!(lost, Err(_) | Ok(Lost::Canceled)), "{lost:?}");
        assert_eq!(lost.is_ok(), matches!(answers.last(), Some((_, Ok("canceled")))), "{lost:?}");
        asked.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_watched_without_a_pause_until_it_is_canceled() {
        assert_eq!(questions(&[(20, Ok("leased")), (20, Ok("running")), (3, Ok("canceled"))]).await, [0, 20, 40]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_refused_or_not_waited_for_asks_ever_more_seldom() {
        let busy = || Err(Error::new(Code::Overloaded, ""));
        let refused: Vec<_> = (0..10).map(|_| (0, busy())).chain([(0, Ok("canceled"))]).collect();
        let asked = questions(&refused).await;
        assert_eq!(asked.len(), 11);
        assert!(asked.last().unwrap() > &60, "{asked:?}");
        let ended: Vec<_> = (0..10).map(|_| (0, Ok("succeeded"))).collect();
        assert!(questions(&ended).await.last().unwrap() > &60, "another end is none of its business");
    }
}
