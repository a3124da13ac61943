//! Members without daemons, who hand their messages to the broker itself: far more than its budget allows, what was accepted
//! again and again, the same id twice at once, with another body, and from somebody else. What was accepted is told as such
//! at any time, whatever the budget says; what was not costs nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use waybill_bench::member::Member;

use super::LOAD_MS_MAX;
use super::judge::{self, Got, Inboxes};
use super::players::Players;
use super::record::{self, Key, Lane, Names, Peer, Record, To, Verdict};
use super::senders::SEQ_PER_ROUND;
use crate::checker::{Invariant, Violation};
use crate::client::{ATTEMPT_PAUSE, Endpoint};
use crate::history::Event;
use crate::load::Load;
use crate::rng::{Rng, Stream};
use crate::workload::{Count, Signals};

/// Used up within moments, and there again within one.
const SETTINGS: &str = "[mesh]\nsends_per_window = 40\nwindow_s = 1\n";
pub const SLUG: &str = "direct";
const LANES: [Lane; 6] = [
    Lane { from: Peer::Alice, to: To::Peer(Peer::Bob), number: 0 },
    Lane { from: Peer::Alice, to: To::Peer(Peer::Carol), number: 1 },
    Lane { from: Peer::Bob, to: To::Peer(Peer::Alice), number: 2 },
    Lane { from: Peer::Bob, to: To::Peer(Peer::Carol), number: 3 },
    Lane { from: Peer::Carol, to: To::Peer(Peer::Alice), number: 4 },
    Lane { from: Peer::Carol, to: To::Peer(Peer::Bob), number: 5 },
];
const PAUSE_MS: u64 = 8;
/// A budget that is used up is there again within a second.
const SETTLE_MAX: Duration = Duration::from_secs(15);
const FINISH_MAX: Duration = Duration::from_secs(45);
const REPEATED: usize = 40;
const PATH: &str = "/mesh/v1/messages";

pub struct Crowd {
    folder: PathBuf,
    seed: u64,
    members: BTreeMap<Peer, Member>,
    record: Option<Record>,
    callers: JoinSet<Result<Count>>,
    round: u32,
    sent: Count,
}

/// What a caller works with.
struct Caller {
    lane: Lane,
    round: u32,
    seed: u64,
    from: Member,
    to: Member,
    /// Somebody else, who tries its ids.
    stranger: Member,
    record: Record,
    signals: Signals,
    rng: Rng,
    count: Count,
}

enum Said {
    /// 201
    New(Names),
    /// 200
    Known(Names),
    Conflict(Value),
    Charged,
    Refused(String),
    Unknown(String),
}

impl Crowd {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        Crowd {
            folder,
            seed,
            members: BTreeMap::new(),
            record: None,
            callers: JoinSet::new(),
            round: 0,
            sent: Count::default(),
        }
    }

    fn member(&self, peer: Peer) -> Result<Member> {
        self.members.get(&peer).cloned().with_context(|| format!("{} is no member", peer.name()))
    }

    fn record(&self) -> Result<&Record> {
        self.record.as_ref().context("there is no record")
    }

    fn caller(&self, lane: Lane, round: u32, hand: u32, signals: Signals) -> Result<Caller> {
        let To::Peer(to) = lane.to else { bail!("a lane to nobody") };
        let stranger = Peer::ALL.into_iter().find(|peer| *peer != lane.from).context("nobody else")?;
        Ok(Caller {
            lane,
            round,
            seed: self.seed,
            from: self.member(lane.from)?,
            to: self.member(to)?,
            stranger: self.member(stranger)?,
            record: self.record()?.clone(),
            signals,
            rng: Rng::new(self.seed, Stream::Mesh { round, hand }),
            count: Count::default(),
        })
    }

    /// What is unknown is sent again until the broker says what it is.
    async fn settle(&mut self) -> Result<Vec<Violation>> {
        let mut violations = Vec::new();
        for key in self.record()?.with(|history| history.open()) {
            let mut caller = self.caller(key.lane, self.round, 0, Signals::default())?;
            let began = Instant::now();
            while caller.send(key).await != Event::Ok {
                if began.elapsed() > SETTLE_MAX {
                    violations.push(record::violation(Invariant::Unserved, key, "sent again, and not accepted"));
                    break;
                }
                sleep(ATTEMPT_PAUSE).await;
            }
        }
        Ok(violations)
    }

    pub async fn judge(&mut self) -> Result<Vec<Violation>> {
        let mut inboxes = Inboxes::new();
        for (peer, member) in &self.members {
            let inbox: &mut Vec<Got> = inboxes.entry(*peer).or_default();
            let mut after = 0;
            loop {
                let (page, next) = member.history(after).await?;
                let is_last = page.is_empty() || next == after;
                inbox.extend(page.into_iter().map(|it| Got {
                    id: it.id,
                    body: it.text,
                    sender: it.sender,
                    topic: None,
                }));
                if is_last {
                    break;
                }
                after = next;
            }
        }
        Ok(self.record()?.with(|history| judge::judge(history, &inboxes)))
    }
}

impl Players for Crowd {
    const SETTINGS: &'static str = SETTINGS;
    /// A budget that is used up is there again after a while, and has to be used up again.
    const LOAD_MS_MAX: u64 = 2 * LOAD_MS_MAX;

    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.record = Some(Record::create(self.folder.join("mesh.jsonl"), self.seed)?);
        let owner = Member::found(at.addr, &at.key, SLUG, Peer::Alice.name()).await?;
        let invite = owner.invite(2).await?;
        for peer in [Peer::Bob, Peer::Carol] {
            self.members.insert(peer, Member::join(at.addr, &invite, peer.name()).await?);
        }
        self.members.insert(Peer::Alice, owner);
        Ok(())
    }

    fn begin(&mut self, load: &Load) -> Result<()> {
        self.round = load.round();
        for (hand, lane) in (0..).zip(LANES) {
            let caller = self.caller(lane, self.round, hand, load.signals.clone())?;
            self.callers.spawn(caller.run());
        }
        Ok(())
    }

    /// After the fault, with the broker at this address.
    async fn end(&mut self, at: &Endpoint) -> Result<Vec<Violation>> {
        let gather = async {
            while let Some(count) = self.callers.join_next().await {
                let count = count.context("a caller ended badly")??;
                self.sent.acknowledged += count.acknowledged;
                self.sent.refused += count.refused;
                self.sent.unknown += count.unknown;
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, gather).await.context("the callers did not end")??;
        self.members.values_mut().for_each(|member| member.addr = at.addr);
        let mut violations = self.settle().await?;
        let keys: Vec<Key> = self.record()?.with(|history| history.sends.keys().copied().collect());
        let chosen = Rng::new(self.seed ^ u64::from(self.round), Stream::Sample).sample(keys, REPEATED);
        for key in chosen {
            self.caller(key.lane, self.round, 0, Signals::default())?.repeat(key).await;
        }
        violations.extend(self.judge().await?);
        Ok(violations)
    }

    fn told(&self) -> String {
        let Count { acknowledged, refused, unknown } = self.sent;
        format!("{acknowledged} accepted or repeated, {refused} beyond the budget, {unknown} unknown")
    }

    fn summary(&self) -> String {
        format!("mesh: {}", self.told())
    }
}

impl Caller {
    async fn run(mut self) -> Result<Count> {
        let mut taken: Vec<Key> = Vec::new();
        for n in 0..SEQ_PER_ROUND {
            if self.signals.stopped() {
                break;
            }
            sleep(Duration::from_millis(self.rng.below(PAUSE_MS))).await;
            let before = taken.get(self.rng.below(taken.len() as u64) as usize).copied();
            if let Some(key) = before {
                match self.rng.below(4) {
                    0 => self.contradict(key).await,
                    1 => self.steal(key).await,
                    _ => self.repeat(key).await,
                }
            }
            let key = Key { lane: self.lane, seq: self.round * SEQ_PER_ROUND + n };
            let event = if self.rng.below(5) == 0 { self.send_twice(key).await } else { self.send(key).await };
            match event {
                Event::Ok => taken.push(key),
                // Beyond the budget: the id is free, and nobody needs it.
                Event::Fail => {}
                // Settled when the fault is over, before anything else of the lane.
                _ => break,
            }
        }
        Ok(self.count)
    }

    async fn ask(from: &Member, to: &Member, id: &str, text: &str) -> Said {
        let body = Member::message(id, &Member::to_member(&to.key()), text).to_string();
        let answer = match from.call("POST", PATH, &body).await {
            Ok(answer) => answer,
            Err(error) => return Said::Unknown(format!("{error:#}")),
        };
        let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let names = Names { message: text("broker_message_id"), history: text("history_id") };
        let brief = || format!("{} {}", answer.status, answer.body.trim());
        match answer.status {
            201 => Said::New(names),
            200 => Said::Known(names),
            409 => Said::Conflict(body),
            429 => Said::Charged,
            400..=499 => Said::Refused(brief()),
            _ => Said::Unknown(brief()),
        }
    }

    fn found(&self, invariant: Invariant, key: Key, detail: String) {
        self.record.with(|history| history.found.push(record::violation(invariant, key, detail)));
    }

    /// A first send, or one of unknown fate once more.
    async fn send(&mut self, key: Key) -> Event {
        self.record.invoke(key, self.round);
        let said = Self::ask(&self.from, &self.to, &key.id(), &key.body(self.seed)).await;
        self.note(key, said)
    }

    fn note(&mut self, key: Key, said: Said) -> Event {
        let verdict = match said {
            Said::New(names) | Said::Known(names) => Verdict::Done(names),
            Said::Conflict(body) => Verdict::Conflict(format!("{} mismatch", body["conflict"])),
            Said::Charged => Verdict::Refused("429".to_owned()),
            Said::Refused(why) => {
                self.found(Invariant::Unserved, key, format!("a valid message was refused: {why}"));
                Verdict::Refused(why)
            }
            Said::Unknown(why) => Verdict::Unknown(why),
        };
        let event = self.record.settle(key, &verdict);
        match event {
            Event::Ok => self.count.acknowledged += 1,
            Event::Fail => self.count.refused += 1,
            _ => self.count.unknown += 1,
        }
        event
    }

    /// Two first sends of one id at once: one of them makes the message.
    async fn send_twice(&mut self, key: Key) -> Event {
        self.record.invoke(key, self.round);
        let (id, body) = (key.id(), key.body(self.seed));
        let ask = || Self::ask(&self.from, &self.to, &id, &body);
        let (one, other) = tokio::join!(ask(), ask());
        if matches!((&one, &other), (Said::New(_), Said::New(_))) {
            self.found(Invariant::Doubled, key, "two sends at once were both told that they made it".to_owned());
        }
        // Whichever says more about what became of it.
        let weight = |said: &Said| match said {
            Said::New(_) | Said::Known(_) => 2,
            Said::Unknown(_) => 1,
            Said::Conflict(_) | Said::Charged | Said::Refused(_) => 0,
        };
        self.note(key, if weight(&one) >= weight(&other) { one } else { other })
    }

    /// What was accepted, again: known, by the same names, and for nothing.
    async fn repeat(&mut self, key: Key) {
        let promised = self.record.with(|history| history.sends.get(&key).is_some_and(|sent| sent.names.is_some()));
        if !promised {
            return;
        }
        match Self::ask(&self.from, &self.to, &key.id(), &key.body(self.seed)).await {
            Said::New(names) => self.found(Invariant::Doubled, key, format!("accepted, and then anew as {names:?}")),
            Said::Charged => {
                self.found(Invariant::Miscounted, key, "accepted, and a repeat is charged to the budget".to_owned());
            }
            said @ Said::Refused(_) => drop(self.note(key, said)),
            said => {
                self.record.invoke(key, self.round);
                self.note(key, said);
            }
        }
    }

    /// Another body under an id that was accepted.
    async fn contradict(&mut self, key: Key) {
        match Self::ask(&self.from, &self.to, &key.id(), "contradicted").await {
            Said::New(_) | Said::Known(_) => {
                self.found(Invariant::Altered, key, "another request under its id was taken".to_owned());
            }
            Said::Charged => {
                self.found(
                    Invariant::Miscounted,
                    key,
                    "accepted, and a contradiction is charged to the budget".to_owned(),
                );
            }
            Said::Conflict(_) | Said::Refused(_) | Said::Unknown(_) => {}
        }
    }

    /// The same request by somebody else: refused, and nothing of the original is shown.
    async fn steal(&mut self, key: Key) {
        match Self::ask(&self.stranger, &self.to, &key.id(), &key.body(self.seed)).await {
            Said::New(_) | Said::Known(_) => {
                self.found(Invariant::Foreign, key, "somebody else's message under its id was taken".to_owned());
            }
            Said::Conflict(body) if !body["broker_message_id"].is_null() || !body["history_id"].is_null() => {
                self.found(Invariant::Foreign, key, format!("somebody else is shown its names: {body}"));
            }
            Said::Conflict(_) | Said::Charged | Said::Refused(_) | Said::Unknown(_) => {}
        }
    }
}
