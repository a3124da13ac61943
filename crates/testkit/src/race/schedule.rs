//! One schedule: who may send the next statement, until both sides have answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::future::BoxFuture;
use serde_json::Value as Json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use waybill_store::Gate;

use super::watch::Watcher;

/// How often a side that is neither at its gate nor done is asked after in PostgreSQL.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// PostgreSQL finds a deadlock after a second; nothing else of ours takes this long.
const STUCK: Duration = Duration::from_secs(30);

pub(super) struct Run {
    pub(super) answers: [Json; 2],
    /// Which side went on, each time both could.
    pub(super) choices: Vec<usize>,
    pub(super) blocked: bool,
}

/// The next leaf of the tree, depth-first: the last choice that has not been turned is turned.
pub(super) fn next(choices: &[usize]) -> Option<Vec<usize>> {
    let last = choices.iter().rposition(|choice| *choice == 0)?;
    let mut next = choices[..last].to_vec();
    next.push(1);
    Some(next)
}

#[derive(Debug, PartialEq)]
enum At {
    /// Its next statement waits for leave.
    Gate,
    /// A statement of it waits for the other side's lock.
    Lock,
    /// On its way.
    Between,
    End,
}

struct Side {
    gate: Arc<Gate>,
    arrivals: UnboundedReceiver<()>,
    task: JoinHandle<Json>,
    at: At,
    answer: Json,
}

impl Side {
    fn start(run: impl FnOnce(Arc<Gate>) -> BoxFuture<'static, Json>) -> Self {
        let (gate, arrivals) = Gate::new();
        let gate = Arc::new(gate);
        let task = tokio::spawn(run(Arc::clone(&gate)));
        Self { gate, arrivals, task, at: At::Between, answer: Json::Null }
    }

    /// Follows the side to where it cannot go on by itself. `others` is how many other sides wait for locks.
    async fn settle(&mut self, watcher: &Watcher, others: i64) -> anyhow::Result<()> {
        let began = Instant::now();
        if self.at == At::Lock {
            // Asked at once: after most steps of the other side it still waits.
            if watcher.waiting().await? > others {
                return Ok(());
            }
            self.at = At::Between;
        }
        while self.at == At::Between {
            ensure!(began.elapsed() < STUCK, "a side neither came to its gate nor answered");
            tokio::select! {
                biased;
                _ = self.arrivals.recv() => self.at = At::Gate,
                answer = &mut self.task => (self.at, self.answer) = (At::End, answer?),
                () = tokio::time::sleep(LOOK_EVERY) => {
                    if watcher.waiting().await? > others {
                        self.at = At::Lock;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Follows `prefix` as far as it goes and then lets the first side go on whenever both could.
pub(super) async fn follow(
    watcher: &Watcher,
    prefix: &[usize],
    start: impl Fn(usize, Arc<Gate>) -> BoxFuture<'static, Json>,
) -> anyhow::Result<Run> {
    let mut sides = [0, 1].map(|side| Side::start(|gate| start(side, gate)));
    let (mut choices, mut blocked) = (Vec::new(), false);
    let began = Instant::now();
    loop {
        settle_both(&mut sides, watcher).await?;
        blocked |= sides.iter().any(|side| side.at == At::Lock);
        let ready: Vec<usize> = (0..2).filter(|side| sides[*side].at == At::Gate).collect();
        let chosen = match ready[..] {
            [] if sides.iter().all(|side| side.at == At::End) => break,
            // Its lock was given up a moment ago, or a deadlock waits to be found.
            [] => {
                ensure!(began.elapsed() < STUCK, "both sides wait for ever");
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            [only] => only,
            _ => {
                let choice = prefix.get(choices.len()).copied().unwrap_or(0);
                choices.push(choice);
                choice
            }
        };
        sides[chosen].at = At::Between;
        sides[chosen].gate.step();
    }
    let [first, second] = sides;
    Ok(Run { answers: [first.answer, second.answer], choices, blocked })
}

/// First the one that was let go, whose end may free the other.
async fn settle_both(sides: &mut [Side; 2], watcher: &Watcher) -> anyhow::Result<()> {
    let first = usize::from(sides[0].at != At::Between);
    for side in [first, 1 - first] {
        let others = i64::from(sides[1 - side].at == At::Lock);
        sides[side].settle(watcher, others).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_walked_to_its_last_leaf() {
        let (mut seen, mut prefix) = (Vec::new(), Some(Vec::new()));
        while let Some(choices) = prefix {
            // A tree with three choices in every path.
            let mut path = choices;
            path.resize(3, 0);
            prefix = next(&path);
            seen.push(path);
        }
        assert_eq!(seen.len(), 8);
        assert!(seen.is_sorted());
    }
}
