//! Queues as a workload, over the listener for SQS clients: a standard queue, a FIFO queue with several groups in several
//! partitions, one that most messages leave as dead letters, one whose sends have a budget, and in each round one that is
//! purged.
//!
//! They are worked on through all rounds and emptied at the end. After each round what is unknown is settled as far as
//! a client can (a FIFO send is sent again under its deduplication id, a purge is made again), the history is judged, and
//! the totals that the server shows must be those that the history leaves.

mod attempts;
mod budget;
mod client;
mod hands;
mod history;
mod judge;
mod order;
mod purger;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use waybill_bench::signed::Signer;

use self::budget::SPENDERS;
use self::client::{Client, Target};
use self::hands::{Asked, Hand, WAIT_S};
use self::history::{Key, QueueKind, Record};
use self::judge::{Book, RECEIVES_MAX};
use self::purger::Left;
use crate::checker::{Invariant, Violation};
use crate::history::{Event, Fate};
use crate::rng::{self, Rng, Stream};
use crate::workload::{Count, Held, Signals, Site, Workload};

/// One writer each, and two in every partition.
const GROUPS: u32 = 8;
pub const PARTITIONS: usize = 4;
const STANDARD_WRITERS: u32 = 2;
const FIFO_RECEIVERS: u32 = 3;
const STANDARD_RECEIVERS: u32 = 2;
/// Above the longest call, and what a receiver may sleep before it.
const FINISH_MAX: Duration = Duration::from_secs(45);
/// For a call that has to be answered now that there is no fault.
const ATTEMPTS_MAX: u32 = 40;
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// For what is in flight to be visible again, and for everything to be received.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// The same, when it is known that something is wrong.
const DIAGNOSED_FOR: Duration = Duration::from_secs(3);
const DRAINERS: usize = 2;
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// Longer than whoever empties a queue needs from a receive to its delete, also on a machine that has other work.
const DRAIN_VISIBILITY_S: u64 = 20;
/// What was not deleted when it should have been comes again within the time of a diagnosis.
const DIAGNOSED_VISIBILITY_S: u64 = 1;
/// Messages that ended in a round this long ago are let go.
const KEPT: Duration = Duration::from_secs(20);
/// Kept for longer than a run lasts.
const RETENTION_S: &str = "1209600";
const DRAINED: [QueueKind; 5] =
    [QueueKind::Standard, QueueKind::Fifo, QueueKind::Poison, QueueKind::Dead, QueueKind::Throttled];

pub struct Queues {
    seed: u64,
    choice: Choice,
    record: Record,
    key: Option<(String, String)>,
    hands: JoinSet<(Count, Option<Left>)>,
    left: Left,
    /// The queue that was purged in the last round. By the next check nothing of it is in flight.
    purged: Option<QueueKind>,
    resolved: u64,
    told: Told,
}

/// For the line at the end.
#[derive(Default)]
struct Told {
    sent: u64,
    received: u64,
    deleted: u64,
    unknown: u64,
    dead: u64,
    drained: Duration,
    /// Receives that waited, and by how much the slowest was late.
    waits: (usize, Duration),
}

/// Which queues a run has.
#[derive(Clone, Debug)]
pub struct Choice {
    /// What their names begin with: those of another run on the same data are left alone.
    pub run: String,
    /// Those that are purged have partitions, too.
    pub purges_fifo: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Choice { run: format!("chaos-{:x}", rng::fresh_seed() & 0xffff_ffff), purges_fifo: false }
    }
}

impl Choice {
    /// The queues that have partitions, for settings that place them.
    pub fn partitioned(&self, rounds: u32) -> Vec<String> {
        let purged = (1..=rounds).map(QueueKind::PurgedFifo).filter(|_| self.purges_fifo);
        std::iter::once(QueueKind::Fifo).chain(purged).map(|kind| kind.name(&self.run)).collect()
    }
}

fn fifo() -> Value {
    json!({"FifoQueue": "true", "ContentBasedDeduplication": "true", "PartitionCount": PARTITIONS.to_string()})
}

impl Queues {
    /// Its journal stands beside that of the tasks.
    pub fn new(journal: &Path, seed: u64, choice: Choice) -> Result<Self> {
        let record = Record::create(journal.with_file_name("queues.jsonl"), seed)?;
        Ok(Queues {
            seed,
            choice,
            record,
            key: None,
            hands: JoinSet::new(),
            left: Left::default(),
            purged: None,
            resolved: 0,
            told: Told::default(),
        })
    }

    fn target(&self, at: &Site, signals: &Signals) -> Result<Target> {
        let (id, secret) = self.key.clone().context("nobody has an access key yet")?;
        Ok(Target {
            signer: Signer { addr: at.sqs, id, secret },
            run: self.choice.run.clone(),
            signals: signals.clone(),
        })
    }

    fn hand(&self, target: &Target, round: u32, hand: u32) -> Hand {
        Hand {
            client: Client::new(target),
            record: self.record.clone(),
            signals: target.signals.clone(),
            rng: Rng::new(self.seed, Stream::Queue { round, hand }),
            seed: self.seed,
            count: Count::default(),
        }
    }

    async fn make(&mut self, at: &Site) -> Result<()> {
        let mut admin = crate::client::Client::new(at.endpoint.clone());
        let made = admin.post("/admin/keys", &json!({"principal": "agent:chaos", "sqs": true})).await?;
        ensure!(made.success(), "making an access key: {}", made.brief());
        let text = |name: &str| made.text(name).map(str::to_owned).with_context(|| format!("a key without {name}"));
        self.key = Some((text("access_key_id")?, text("secret_access_key")?));
        let mut client = Client::new(&self.target(at, &Signals::default())?);
        let dead = format!("arn:aws:sqs:us-east-1:000000000000:{}", QueueKind::Dead.name(&self.choice.run));
        let policy = json!({"deadLetterTargetArn": dead, "maxReceiveCount": RECEIVES_MAX}).to_string();
        for (kind, mut attributes) in [
            (QueueKind::Standard, json!({})),
            (QueueKind::Fifo, fifo()),
            (QueueKind::Dead, json!({})),
            (QueueKind::Poison, json!({"RedrivePolicy": policy})),
            (QueueKind::Throttled, budget::attributes()),
        ] {
            attributes["MessageRetentionPeriod"] = json!(RETENTION_S);
            let outcome = client.create(kind, &attributes).await;
            ensure!(outcome.event() == Event::Ok, "making the queue {kind:?}: {:?}", outcome.unexpected());
        }
        Ok(())
    }

    fn begin(&mut self, round: u32, at: &Site, signals: &Signals) -> Result<()> {
        let target = self.target(at, signals)?;
        let writers = (0..GROUPS)
            .map(|group| (QueueKind::Fifo, group))
            .chain((0..STANDARD_WRITERS).map(|lane| (QueueKind::Standard, lane)))
            .chain([(QueueKind::Poison, 0)]);
        let receivers = std::iter::repeat_n(QueueKind::Fifo, FIFO_RECEIVERS as usize)
            .chain(std::iter::repeat_n(QueueKind::Standard, STANDARD_RECEIVERS as usize))
            .chain([QueueKind::Poison, QueueKind::Dead, QueueKind::Throttled]);
        let mut number = 0;
        for (kind, group) in writers {
            let hand = self.hand(&target, round, number);
            self.hands.spawn(async move { (hand.write(kind, group).await, None) });
            number += 1;
        }
        for kind in receivers {
            let hand = self.hand(&target, round, number);
            let receiver = number;
            self.hands.spawn(async move { (hand.consume(kind, receiver).await, None) });
            number += 1;
        }
        for group in 0..SPENDERS {
            let hand = self.hand(&target, round, number);
            self.hands.spawn(async move { (hand.spend(round, group).await, None) });
            number += 1;
        }
        let (purger, other) = (self.hand(&target, round, number), self.hand(&target, round, number + 1));
        let ends = round.is_multiple_of(2);
        let kind = if self.choice.purges_fifo { QueueKind::PurgedFifo(round) } else { QueueKind::Purged(round) };
        self.hands.spawn(async move {
            let (count, left) = purger.purge(other, kind, ends).await;
            (count, Some(left))
        });
        Ok(())
    }

    async fn gather(&mut self) -> Result<Count> {
        let mut total = Count::default();
        let drain = async {
            while let Some(hand) = self.hands.join_next().await {
                let (count, left) = hand.context("a sender or receiver ended badly")?;
                total.acknowledged += count.acknowledged;
                total.refused += count.refused;
                total.unknown += count.unknown;
                if let Some(left) = left {
                    self.left = left;
                }
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, drain).await.context("the senders and receivers did not end")??;
        self.told.unknown += total.unknown;
        Ok(total)
    }

    async fn judge(&mut self, at: &Site) -> Result<Vec<Violation>> {
        let target = self.target(at, &Signals::default())?;
        let mut violations = self.settle(&target).await?;
        violations.extend(judge::judge(&self.record.lock()));
        if violations.is_empty() {
            violations = self.totals(&target).await;
            if !violations.is_empty() {
                // Which messages those are, the rest of the story may tell.
                violations.extend(self.drain(at, DIAGNOSED_FOR).await?);
            }
        }
        if violations.is_empty() {
            self.tally();
            if let Some(before) = Instant::now().checked_sub(KEPT) {
                self.record.lock().forget(before);
            }
        }
        Ok(violations)
    }

    /// Every FIFO send of unknown fate is made again, in the order of its group, and a purge likewise.
    async fn settle(&mut self, target: &Target) -> Result<Vec<Violation>> {
        let open: Vec<Key> = {
            let history = self.record.lock();
            let open = history.sends.iter().filter(|(key, sent)| key.kind == QueueKind::Fifo && sent.fate.open());
            open.map(|(key, _)| *key).collect()
        };
        self.resolved += open.len() as u64;
        let mut senders = JoinSet::new();
        for group in 0..GROUPS {
            let keys: Vec<Key> = open.iter().filter(|key| key.group == group).copied().collect();
            let mut hand = self.hand(target, 0, group);
            senders.spawn(async move { hand.send_again(keys).await });
        }
        let mut violations = Vec::new();
        while let Some(group) = senders.join_next().await {
            violations.extend(group.context("whoever sends again ended badly")?);
        }
        let left = std::mem::take(&mut self.left);
        self.resolved += u64::from(left.unknown);
        self.hand(target, 0, GROUPS).finish_purge(&left).await;
        let before = std::mem::replace(&mut self.purged, left.kind);
        if let Some(kind) = before.filter(|_| violations.is_empty()) {
            violations = self.empty(target, kind).await;
        }
        Ok(violations)
    }

    /// Receives and deletes what is left in the queue that was purged in an earlier round, and lets go of it.
    async fn empty(&self, target: &Target, kind: QueueKind) -> Vec<Violation> {
        let target = Target { signals: Signals::default(), ..target.clone() };
        let mut hand = self.hand(&target, 0, 0);
        let emptied = async {
            let violations = await_empty(&target, &[kind], DRAIN_MAX).await;
            target.signals.stop();
            violations
        };
        let (mut violations, ()) = tokio::join!(emptied, hand.empty_out(kind, 0, DRAIN_VISIBILITY_S, false));
        let mut history = self.record.lock();
        violations.extend(judge::judge(&history));
        violations.extend(judge::judge_end(&history, &[kind]));
        history.close(kind);
        violations
    }

    /// Nobody sends or receives: what the server counts is what the history leaves.
    async fn totals(&self, target: &Target) -> Vec<Violation> {
        let mut client = Client::new(target);
        let mut violations = Vec::new();
        let (standard, poison) = ([QueueKind::Standard], [QueueKind::Poison, QueueKind::Dead]);
        for places in [&standard[..], &[QueueKind::Fifo], &poison, &[QueueKind::Throttled]] {
            let mut total = 0;
            for kind in places {
                match total_of(&mut client, *kind).await {
                    Some(of_place) => total += of_place,
                    None => {
                        let detail = format!("{kind:?}: its attributes were not shown");
                        violations.push(Violation::new(Invariant::Unserved, detail));
                    }
                }
            }
            let (least, most) = Book::open(&self.record.lock()).bounds(places);
            if violations.is_empty() && !(least..=most).contains(&total) {
                let detail = format!("{places:?}: {total} messages, where there must be {least} to {most}");
                let invariant = if total < least { Invariant::Lost } else { Invariant::Miscounted };
                violations.push(Violation::new(invariant, detail));
            }
        }
        violations
    }

    fn tally(&mut self) {
        let history = self.record.lock();
        let ended = history.ended.len() as u64;
        let acknowledged = history.sends.values().filter(|sent| sent.fate == Fate::Promised).count() as u64;
        (self.told.sent, self.told.received) = (ended + acknowledged, history.received);
        let deleted =
            history.deliveries.iter().filter(|one| one.deletes.iter().any(|it| it.event == Event::Ok)).count();
        (self.told.deleted, self.told.dead) = (ended + deleted as u64, history.dead);
        self.told.waits = judge::waits(&history);
    }

    /// Everything is received and deleted, and then there is nothing left.
    async fn drain(&mut self, at: &Site, longest: Duration) -> Result<Vec<Violation>> {
        let began = Instant::now();
        let target = self.target(at, &Signals::default())?;
        let places: Vec<QueueKind> = DRAINED.into_iter().chain(self.purged).collect();
        // Nobody strikes any more, and nothing is known to be wrong.
        let calm = longest == DRAIN_MAX;
        let visibility_s = if calm { DRAIN_VISIBILITY_S } else { DIAGNOSED_VISIBILITY_S };
        let mut drainers = JoinSet::new();
        for (number, kind) in (0..).zip(places.iter().flat_map(|kind| [*kind; DRAINERS])) {
            let mut hand = self.hand(&target, u32::MAX, number);
            drainers.spawn(async move { hand.empty_out(kind, number, visibility_s, calm).await });
        }
        let mut violations = await_empty(&target, &places, longest).await;
        target.signals.stop();
        while let Some(drainer) = drainers.join_next().await {
            drainer.context("whoever empties a queue ended badly")?;
        }
        let history = self.record.lock();
        violations.extend(judge::judge(&history));
        violations.extend(judge::judge_end(&history, &places));
        self.resolved += history.sends.values().filter(|sent| sent.fate == Fate::Unknown).count() as u64;
        drop(history);
        self.tally();
        ensure!(self.told.sent > 0 && self.told.received > 0, "nothing was sent to queues, so nothing was tested");
        self.told.drained = began.elapsed();
        Ok(violations)
    }
}

async fn total_of(client: &mut Client, kind: QueueKind) -> Option<u64> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(total) = client.total(kind).await {
            return Some(total);
        }
        sleep(AGAIN_AFTER).await;
    }
    None
}

/// Waits until no queue has a message left, by their own totals.
async fn await_empty(target: &Target, places: &[QueueKind], longest: Duration) -> Vec<Violation> {
    let mut client = Client::new(target);
    let began = Instant::now();
    let mut left: Vec<(QueueKind, Option<u64>)> = places.iter().map(|kind| (*kind, None)).collect();
    while began.elapsed() < longest && !left.is_empty() {
        let mut still = Vec::new();
        for (kind, _) in left {
            match total_of(&mut client, kind).await {
                Some(0) => {}
                total => still.push((kind, total)),
            }
        }
        left = still;
        if !left.is_empty() {
            sleep(DRAIN_LOOK).await;
        }
    }
    let detail = |(kind, total): &(QueueKind, Option<u64>)| {
        format!("{kind:?} is not empty {longest:?} after the last send, but has {total:?}")
    };
    left.iter().map(|one| Violation::new(Invariant::Miscounted, detail(one))).collect()
}

impl Hand {
    /// One after the other, each until it is acknowledged.
    async fn send_again(&mut self, keys: Vec<Key>) -> Vec<Violation> {
        let mut violations = Vec::new();
        for key in keys {
            let mut event = self.send(key).await;
            for _ in 1..ATTEMPTS_MAX {
                if event == Event::Ok {
                    break;
                }
                sleep(AGAIN_AFTER).await;
                event = self.send(key).await;
            }
            if event != Event::Ok {
                violations.push(judge::violation(Invariant::Unserved, key, "sent again, and not acknowledged"));
            }
        }
        violations
    }

    /// Receives and deletes until it is told to stop. Where it is calm there is time to wait for what comes.
    async fn empty_out(&mut self, kind: QueueKind, receiver: u32, visibility_s: u64, calm: bool) {
        let wait_s = if calm { WAIT_S } else { 0 };
        while !self.signals.stopped() {
            let asked = Asked { kind, receiver, visibility_s, wait_s, attempt: None, calm };
            let came: Vec<usize> = self.receive_as(&asked).await.collect();
            if came.is_empty() {
                sleep(DRAIN_LOOK / 2).await;
            }
            self.delete(kind, &came).await;
        }
    }
}

impl Workload for Queues {
    fn name(&self) -> &'static str {
        "queues"
    }

    fn open<'a>(&'a mut self, at: &'a Site) -> Held<'a, ()> {
        Box::pin(self.make(at))
    }

    fn start(&mut self, round: u32, at: &Site, signals: &Signals) -> Result<()> {
        self.begin(round, at, signals)
    }

    fn finish(&mut self) -> Held<'_, Count> {
        Box::pin(self.gather())
    }

    fn void(&mut self, since: Instant, until: Instant) {
        self.record.lock().void(since, until);
        // Whether it was purged is unknown as well, and so it is purged again.
        self.left.unknown |= self.left.kind.is_some();
    }

    fn check<'a>(&'a mut self, _round: u32, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(self.judge(at))
    }

    fn close<'a>(&'a mut self, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(self.drain(at, DRAIN_MAX))
    }

    fn resolved(&self) -> u64 {
        self.resolved
    }

    fn journal(&self) -> &Path {
        self.record.path()
    }

    fn summary(&self) -> Option<String> {
        let Told { sent, received, deleted, unknown, dead, drained, waits: (waits, late) } = &self.told;
        Some(format!(
            "queues: {sent} sends and {deleted} deletes acknowledged, {received} receives, {dead} dead letters, \
             {unknown} unknown, emptied in {:.1} s; {waits} receives waited, the slowest {:.2} s too long",
            drained.as_secs_f64(),
            late.as_secs_f64()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a, as docs/queues.md says.
    fn partition(group: &str) -> usize {
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
        group.bytes().fold(2_166_136_261, hash) as usize & (PARTITIONS - 1)
    }

    #[test]
    fn every_partition_has_two_groups() {
        let mut groups = [0; PARTITIONS];
        (0..GROUPS).for_each(|group| groups[partition(&group.to_string())] += 1);
        assert_eq!(groups, [2; PARTITIONS]);
    }

    #[test]
    fn settings_can_name_the_queues_that_are_made() {
        let choice = Choice { run: "r".to_owned(), purges_fifo: true };
        assert_eq!(choice.partitioned(2), ["r-line.fifo", "r-purged-1.fifo", "r-purged-2.fifo"]);
        assert_eq!(Choice { purges_fifo: false, ..choice }.partitioned(2), ["r-line.fifo"]);
        assert_ne!(Choice::default().run, Choice::default().run, "two runs on the same data have queues of their own");
    }
}
