//! How far the archive is behind, seen from outside: what was sent and what was archived, read from `/metrics` every 50 ms, give
//! for each message when it was answered and when it was in the archive.
//!
//! The server's own gauge of the lag is renewed once a second and after a window, and an age that is read while the load lasts can
//! be no longer than the load. So every message counts, those included that are archived after the load has ended.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::watch::Receiver;

use crate::histogram::Histogram;
use crate::http;
use crate::process::Server;

const LOOK: Duration = Duration::from_millis(50);
/// For the archive to write what the load has left.
const REST_MAX: Duration = Duration::from_secs(60);
/// Nothing was written to it for so long, and nothing waits: it rests.
const STILL: Duration = Duration::from_millis(1200);
const STILL_MAX: Duration = Duration::from_secs(600);

const CALLS: &str = "waybill_operation_calls_total{";
const SEND: &str = "send_message\"";
const ARCHIVED: &str = "waybill_mail_wbq_drained_total";
const WAITING: &str = "waybill_mail_wbq_depth";

/// What had happened at a moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    sent: u64,
    archived: u64,
    waiting: u64,
}

impl Look {
    async fn take(addr: SocketAddr, key: Option<&str>) -> Result<Self> {
        let answer = http::get(addr, "/metrics", key).await?;
        if answer.status != 200 {
            bail!("/metrics answered {}", answer.status);
        }
        let at = Instant::now();
        let count = |name| http::counter(&answer.body, name).map(|count| count as u64);
        let archived = count(ARCHIVED).unwrap_or(0);
        let waiting = count(WAITING).with_context(|| format!("no {WAITING}: is the archive on?"))?;
        Ok(Self { at, sent: sends(&answer.body), archived, waiting })
    }
}

/// Calls of send_message, by whatever name the operation goes.
fn sends(metrics: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(CALLS) && line.contains(SEND));
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    counts.sum::<f64>() as u64
}

/// Until nothing is left to be archived.
pub async fn settle(server: &Server) -> Result<()> {
    let began = Instant::now();
    let (addr, key) = (server.http, server.key.as_deref());
    let mut last = Look::take(addr, key).await?;
    while began.elapsed() < STILL_MAX {
        tokio::time::sleep(STILL).await;
        let now = Look::take(addr, key).await?;
        if now.archived == last.archived && now.waiting == 0 {
            return Ok(());
        }
        last = now;
    }
    bail!("{} messages are not archived after {} s", last.waiting, STILL_MAX.as_secs())
}

/// Looks at a server while it is under load.
pub struct Watch {
    addr: SocketAddr,
    key: Option<String>,
    looks: Vec<Look>,
}

impl Watch {
    /// What is sent from now on counts.
    pub async fn begin(server: &Server) -> Result<Self> {
        let (addr, key) = (server.http, server.key.clone());
        let first = Look::take(addr, key.as_deref()).await?;
        Ok(Self { addr, key, looks: vec![first] })
    }

    /// The lag of every message that was sent until then, archived by then or soon after.
    pub async fn until(mut self, load_ended: Receiver<bool>) -> Result<Histogram> {
        let (first, mut ended_at) = (self.looks[0], None);
        loop {
            tokio::time::sleep(LOOK).await;
            // Before the look: after the end nothing more is sent.
            let ended = *load_ended.borrow();
            let look = Look::take(self.addr, self.key.as_deref()).await?;
            self.looks.push(look);
            if !ended {
                continue;
            }
            let since = ended_at.get_or_insert(look.at).elapsed();
            if look.archived - first.archived >= look.sent - first.sent || since > REST_MAX {
                return Ok(lags(&self.looks));
            }
        }
    }
}

/// One that is in the archive at no look counts as archived at the last one.
fn lags(looks: &[Look]) -> Histogram {
    let mut lags = Histogram::default();
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return lags };
    let (mut sent, mut archived) = (0, 0);
    for message in 1..=last.sent - first.sent {
        while looks[sent].sent - first.sent < message {
            sent += 1;
        }
        while archived < looks.len() - 1 && looks[archived].archived - first.archived < message {
            archived += 1;
        }
        lags.record(looks[archived].at.saturating_duration_since(answered_at(looks, sent, first.sent + message)));
    }
    lags
}

/// Between two looks messages are taken to be sent evenly.
fn answered_at(looks: &[Look], place: usize, message: u64) -> Instant {
    let (before, after) = (looks[place - 1], looks[place]);
    let part = (message - before.sent) as f64 / (after.sent - before.sent) as f64;
    before.at + (after.at - before.at).mul_f64(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lag_of_a_message_is_from_its_answer_to_its_commit() {
        let start = Instant::now();
        let look = |ms, sent, archived| Look { at: start + Duration::from_millis(ms), sent, archived, waiting: 0 };
        // A hundred messages between 0 and 100 ms; half of them are archived at 200 ms, the rest at 1,100.
        let looks = [look(0, 5, 3), look(100, 105, 3), look(200, 105, 53), look(1_100, 105, 103)];
        let lags = lags(&looks);
        let close = |q, ms: f64| lags.quantile_us(q).is_some_and(|us| (us / 1e3 - ms).abs() < ms * 0.04);
        assert!(close(0.01, 150.0) && close(0.5, 199.0) && close(0.51, 1_000.0) && close(1.0, 1_049.0));
    }

    #[test]
    fn calls_of_other_operations_do_not_count() {
        let metrics = "waybill_operation_calls_total{operation=\"mail.send_message\",code=\"ok\"} 7\n\
                       waybill_operation_calls_total{operation=\"mail.reply_message\",code=\"ok\"} 3\n\
                       waybill_operation_calls_total{code=\"ok\",operation=\"send_message\"} 2\n";
        assert_eq!(sends(metrics), 9);
    }
}
