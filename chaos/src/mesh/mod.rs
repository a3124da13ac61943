//! A mesh of three daemons and their broker, in work: programs hand messages over, daemons and broker pass them on, and after
//! a fault everything acknowledged has to be in the inboxes, once and in order.
//!
//! Daemons know the broker by the address of a line of ours, which leads to wherever the broker is.

mod daemon;
pub mod direct;
pub mod ipc;
mod judge;
pub mod line;
pub mod players;
pub mod record;
mod senders;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::daemon::Daemon;
use self::daemon::{Home, SLUG, home_of};
use self::judge::{Got, Inboxes};
use self::line::Line;
use self::players::Players;
use self::record::{Key, Peer, Record, TOPIC, To, WARM};
use self::senders::{LANES, Sender, request};
use crate::checker::{Invariant, Violation};
use crate::client::{ATTEMPT_PAUSE, ATTEMPTS_MAX, Endpoint};
use crate::history::Event;
use crate::load::{Load, Pace};
use crate::rng::{Rng, Stream};
use crate::workload::{Count, Signals};

/// Of the broker: no budget is in the way of the load, and what is not acknowledged is pushed again soon.
const SETTINGS: &str = "[mesh]\nsends_per_window = 100000\nwindow_s = 1\nredeliver_ms = 500\n";
/// The tasks beside it only show that the broker lives.
pub const PACE: Pace = Pace { connections: 4, per_second: 60, sprints: false };
const LOAD_MS_MAX: u64 = 900;
/// Everybody hears everybody by then, or the mesh was not made.
const WARM_MAX: Duration = Duration::from_secs(60);
const FINISH_MAX: Duration = Duration::from_secs(45);
/// For outboxes to be empty and inboxes to be full, when nothing is in the way any more.
const REST_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// Rows of an inbox asked for at a time.
const PAGE: usize = 500;
/// Messages of a round that are handed over once more when they are done.
const REPEATED: usize = 60;

pub struct Party {
    /// The run's folder.
    folder: PathBuf,
    /// Where each has its home.
    homes: BTreeMap<Peer, Home>,
    daemons: BTreeMap<Peer, Daemon>,
    line: Option<Line>,
    record: Option<Record>,
    senders: JoinSet<Count>,
    inboxes: Inboxes,
    /// The last row that was read of each.
    read: BTreeMap<Peer, i64>,
    round: u32,
    seed: u64,
    sent: Count,
    settled: u64,
    checks: u64,
}

impl Party {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        Party {
            folder,
            homes: BTreeMap::new(),
            daemons: BTreeMap::new(),
            line: None,
            record: None,
            senders: JoinSet::new(),
            inboxes: Inboxes::new(),
            read: BTreeMap::new(),
            round: 0,
            seed,
            sent: Count::default(),
            settled: 0,
            checks: 0,
        }
    }

    /// The home of one peer is below this folder.
    pub fn settle_in(&mut self, peer: Peer, program: &Path, base: &Path) -> Result<()> {
        let path = home_of(base, peer.name());
        std::fs::create_dir_all(&path)?;
        let log = self.folder.join(format!("{}.log", peer.name()));
        // Commands run in other folders than ours.
        let program = std::path::absolute(program)?;
        self.homes.insert(peer, Home { program, path, log });
        Ok(())
    }

    fn home(&self, peer: Peer) -> Result<&Home> {
        self.homes.get(&peer).with_context(|| format!("{} has no home", peer.name()))
    }

    /// Between daemons and broker.
    pub fn line(&self) -> Result<&Line> {
        self.line.as_ref().context("there is no line")
    }

    fn record(&self) -> Result<&Record> {
        self.record.as_ref().context("there is no record")
    }

    async fn subscribe(&self, peer: Peer) -> Result<()> {
        let mut local = self.home(peer)?.local();
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match local.post("/v1/topic/subscribe", &json!({ "topic": TOPIC })).await {
                Ok(answer) if answer.success() => return Ok(()),
                Ok(answer) => last = answer.brief(),
                Err(error) => last = format!("{error:#}"),
            }
            sleep(ATTEMPT_PAUSE).await;
        }
        bail!("{} cannot subscribe: {last}", peer.name())
    }

    /// Keys and names need a moment to be known everywhere; what is refused before that is not what is tested.
    async fn warm(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut last = String::new();
        for attempt in 0.. {
            if began.elapsed() > WARM_MAX {
                bail!("not everybody hears everybody: {last}");
            }
            let message = format!("{WARM}{attempt}");
            let mut taken = true;
            for from in Peer::ALL {
                let others = Peer::ALL.into_iter().filter(|peer| *peer != from).map(To::Peer);
                for to in others.chain([To::Topic]) {
                    let id = format!("warm-{}-{}-{attempt}", from.name(), to.name());
                    let (path, body) = request(to, &message, &id);
                    let answer = self.home(from)?.local().post(path, &body).await?;
                    if !answer.success() {
                        (taken, last) = (false, format!("{} to {}: {}", from.name(), to.name(), answer.brief()));
                    }
                }
            }
            let heard = async {
                while !self.heard(&message).await? {
                    sleep(LOOK).await;
                }
                anyhow::Ok(())
            };
            match timeout(Duration::from_secs(2), heard).await {
                Ok(heard) => {
                    heard?;
                    return Ok(());
                }
                Err(_) if taken => "all was taken, and not all has arrived".clone_into(&mut last),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Whether everybody has this from everybody else, directly and by the topic.
    async fn heard(&mut self, message: &str) -> Result<bool> {
        self.collect().await?;
        Ok(Peer::ALL.into_iter().all(|peer| {
            let inbox = self.inboxes.get(&peer).map_or(&[][..], Vec::as_slice);
            let others = Peer::ALL.into_iter().filter(|from| *from != peer);
            others.flat_map(|from| [(from, None), (from, Some(TOPIC))]).all(|(from, topic)| {
                let is_it =
                    |got: &Got| got.body == message && got.sender == from.name() && got.topic.as_deref() == topic;
                inbox.iter().any(is_it)
            })
        }))
    }

    pub async fn start(&mut self, peer: Peer) -> Result<()> {
        self.start_with(peer, None, &[]).await
    }

    /// Another program in the same home, or another environment.
    pub async fn start_with(&mut self, peer: Peer, program: Option<&Path>, envs: &[(String, String)]) -> Result<()> {
        let mut home = self.home(peer)?.clone();
        if let Some(program) = program {
            home.program = std::path::absolute(program)?;
        }
        let daemon = home.start(envs).await.with_context(|| format!("the daemon of {}", peer.name()))?;
        self.daemons.insert(peer, daemon);
        Ok(())
    }

    /// The daemon of a peer, to be killed or stopped.
    pub fn take(&mut self, peer: Peer) -> Result<Daemon> {
        self.daemons.remove(&peer).with_context(|| format!("{} has no daemon", peer.name()))
    }

    /// A daemon that nobody has ended has to be there.
    fn gone(&mut self) -> Result<Vec<Violation>> {
        let mut violations = Vec::new();
        for (peer, daemon) in &mut self.daemons {
            if let Some(status) = daemon.ended()? {
                let detail = format!("the daemon of {} ended by itself: {status}", peer.name());
                violations.push(Violation::new(Invariant::Unserved, detail));
            }
        }
        Ok(violations)
    }

    fn sender(&self, lane: record::Lane, signals: Signals, rng: Rng) -> Result<Sender> {
        let home = self.home(lane.from)?;
        Ok(Sender {
            lane,
            round: self.round,
            local: home.local(),
            twin: home.local(),
            record: self.record()?.clone(),
            signals,
            rng,
            seed: self.seed,
            count: Count::default(),
        })
    }

    /// Hands over only what it is told to.
    fn idle_sender(&self, lane: record::Lane) -> Result<Sender> {
        self.sender(lane, Signals::default(), Rng::new(self.seed, Stream::Mesh { round: 0, hand: 0 }))
    }

    /// What is unknown is handed over again, in the order of its lane, until it is acknowledged.
    async fn settle(&mut self) -> Result<Vec<Violation>> {
        let open = self.record()?.with(|history| history.open());
        let mut violations = Vec::new();
        for key in open {
            let mut sender = self.idle_sender(key.lane)?;
            let mut event = sender.hand_over(key).await;
            for _ in 1..ATTEMPTS_MAX {
                if event == Event::Ok {
                    break;
                }
                sleep(ATTEMPT_PAUSE).await;
                event = sender.hand_over(key).await;
            }
            self.settled += 1;
            if event != Event::Ok {
                violations.push(record::violation(Invariant::Unserved, key, "handed over again, and not acknowledged"));
            }
        }
        Ok(violations)
    }

    /// Until every outbox is empty and every inbox has what was acknowledged.
    async fn rest(&mut self) -> Result<Vec<Violation>> {
        let began = Instant::now();
        loop {
            let mut busy = None;
            for peer in Peer::ALL {
                let answer = self.home(peer)?.local().get("/v1/health").await;
                let health = answer.map_or_else(|error| json!(format!("{error:#}")), |answer| answer.body);
                let is_idle = health["queue_depth"] == 0 && health["inflight"] == 0 && health["connected"] == true;
                if !is_idle {
                    busy = Some(format!("{}: {health}", peer.name()));
                }
            }
            self.collect().await?;
            let complete = self.record()?.with(|history| judge::is_complete(history, &self.inboxes));
            if complete && busy.is_none() {
                return Ok(Vec::new());
            }
            if began.elapsed() > REST_MAX {
                // What is not there by now is told by the judge.
                let stuck = busy.map(|busy| format!("not at rest {REST_MAX:?} after the fault: {busy}"));
                return Ok(stuck.into_iter().map(|detail| Violation::new(Invariant::Stuck, detail)).collect());
            }
            sleep(LOOK).await;
        }
    }

    /// Reads on in every inbox.
    async fn collect(&mut self) -> Result<()> {
        for peer in Peer::ALL {
            let mut local = self.home(peer)?.local();
            let since = self.read.entry(peer).or_default();
            let inbox = self.inboxes.entry(peer).or_default();
            loop {
                let answer = local.get(&format!("/v1/inbox?since={since}&limit={PAGE}")).await;
                // A daemon may be on its way up.
                let Ok(answer) = answer else { break };
                ensure!(answer.success(), "the inbox of {}: {}", peer.name(), answer.brief());
                let messages = answer.body["messages"].as_array().context("an inbox without messages")?;
                for message in messages {
                    *since = message["id"].as_i64().context("a message without its row")?;
                    inbox.push(got(message)?);
                }
                if messages.is_empty() || answer.body["next_cursor"].is_null() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Messages that are done, once more: each is told as what it is.
    async fn repeat(&mut self) -> Result<Vec<Violation>> {
        let round = self.round;
        let keys: Vec<Key> = self.record()?.with(|history| {
            let of_round = history.sends.iter().filter(|(_, sent)| sent.round == round).map(|(key, _)| *key);
            of_round.filter(|key| !history.replaced.contains_key(key)).collect()
        });
        let chosen = Rng::new(self.seed ^ u64::from(round), Stream::Sample).sample(keys, REPEATED);
        let mut violations = Vec::new();
        for key in chosen {
            self.idle_sender(key.lane)?.hand_over(key).await;
            let known = self.record()?.with(|history| history.sends.get(&key).is_some_and(|sent| sent.names.is_some()));
            if !known {
                let detail = "delivered, and a repeat is not told that it is done";
                violations.push(record::violation(Invariant::Doubled, key, detail));
            }
        }
        violations.extend(self.record()?.with(|history| history.found.clone()));
        Ok(violations)
    }

    /// The broker's own books.
    async fn check(&mut self, at: &Endpoint) -> Result<Vec<Violation>> {
        self.checks += 1;
        let url = format!("http://{}", at.addr);
        let args = ["mesh", "check", SLUG, "--url", &url, "--key", &at.key];
        let (status, said) = self.home(Peer::Alice)?.attempt(&args).await?;
        let detail = || format!("waybill mesh check: {status}: {said}");
        Ok((!status.success()).then(|| Violation::new(Invariant::Orphaned, detail())).into_iter().collect())
    }
}

impl Players for Party {
    const SETTINGS: &'static str = SETTINGS;
    const LOAD_MS_MAX: u64 = LOAD_MS_MAX;

    /// Says which program the daemons are, before anybody is at home.
    fn prepare(&mut self, program: &Path) -> Result<()> {
        let base = self.folder.clone();
        Peer::ALL.iter().try_for_each(|peer| self.settle_in(*peer, program, &base))
    }

    /// Makes the mesh, its members and its topic, and waits until everybody hears everybody.
    async fn open(&mut self, at: &Endpoint) -> Result<()> {
        self.record = Some(Record::create(self.folder.join("mesh.jsonl"), self.seed)?);
        let line = self.line.insert(Line::start(at.addr).await?);
        let url = format!("http://127.0.0.1:{}", line.port);
        let alice = self.home(Peer::Alice)?;
        let create = ["mesh", "create", SLUG, "--name", "alice", "--json", "--url", &url, "--key", &at.key];
        alice.run(&create).await.context("making the mesh")?;
        for peer in [Peer::Bob, Peer::Carol] {
            let invite = alice.run(&["mesh", "invite", SLUG, "--json"]).await.context("inviting")?;
            let invite = invite["invite"].as_str().context("no invite was printed")?;
            self.home(peer)?.run(&["mesh", "join", invite, "--name", peer.name()]).await.context("joining")?;
        }
        for peer in Peer::ALL {
            self.home(peer)?.configure().with_context(|| format!("settings of {}", peer.name()))?;
            self.start(peer).await?;
        }
        let topics = ["mesh", "topics", "create", SLUG, TOPIC];
        self.home(Peer::Alice)?.run(&topics).await.context("making the topic")?;
        for peer in Peer::ALL {
            self.subscribe(peer).await?;
        }
        self.warm().await
    }

    /// The load of a round.
    fn begin(&mut self, load: &Load) -> Result<()> {
        self.round = load.round();
        for (hand, lane) in (0..).zip(LANES) {
            let rng = Rng::new(self.seed, Stream::Mesh { round: self.round, hand });
            let sender = self.sender(lane, load.signals.clone(), rng)?;
            self.senders.spawn(sender.run());
        }
        Ok(())
    }

    /// After the fault, with the broker at this address: everything comes to rest, and is judged.
    async fn end(&mut self, at: &Endpoint) -> Result<Vec<Violation>> {
        self.line()?.aim(at.addr);
        let mut total = Count::default();
        let gather = async {
            while let Some(count) = self.senders.join_next().await {
                let count = count.context("a sender ended badly")?;
                total.acknowledged += count.acknowledged;
                total.refused += count.refused;
                total.unknown += count.unknown;
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, gather).await.context("the senders did not end")??;
        self.sent.acknowledged += total.acknowledged;
        self.sent.refused += total.refused;
        self.sent.unknown += total.unknown;
        if total.acknowledged == 0 {
            let refusals = self.record()?.with(|history| history.refusals.clone());
            bail!("nothing was acknowledged, so nothing was tested: {refusals:?}");
        }
        let mut violations = self.gone()?;
        if violations.is_empty() {
            violations = self.settle().await?;
        }
        if violations.is_empty() {
            violations = self.rest().await?;
        }
        violations.extend(self.record()?.with(|history| judge::judge(history, &self.inboxes)));
        if violations.is_empty() {
            violations.extend(self.repeat().await?);
            violations.extend(self.check(at).await?);
        }
        Ok(violations)
    }

    /// After the last round: the inboxes as a whole once more, and the daemons end as an operator ends them.
    async fn close(&mut self, at: &Endpoint) -> Result<Vec<Violation>> {
        self.inboxes.clear();
        self.read.clear();
        let mut violations = self.rest().await?;
        violations.extend(self.record()?.with(|history| judge::judge(history, &self.inboxes)));
        violations.extend(self.check(at).await?);
        for peer in Peer::ALL {
            let status = self.take(peer)?.stop().await?;
            if !status.success() {
                let detail = format!("the daemon of {} ended with {status}", peer.name());
                violations.push(Violation::new(Invariant::Unserved, detail));
            }
        }
        Ok(violations)
    }

    fn told(&self) -> String {
        let arrived: usize = self.inboxes.values().map(Vec::len).sum();
        format!("{} handed over, {} in inboxes, {} unknown settled", self.sent.acknowledged, arrived, self.settled)
    }

    fn summary(&self) -> String {
        let replaced = self.record.as_ref().map_or(0, |record| record.with(|history| history.replaced.len()));
        format!("mesh: {}, {replaced} replaced, {} clean checks of the broker's books", self.told(), self.checks)
    }
}

fn got(message: &Value) -> Result<Got> {
    let text = |name: &str| message[name].as_str().map(str::to_owned).with_context(|| format!("no {name}: {message}"));
    let topic = message["topic"].as_str().map(str::to_owned);
    Ok(Got { id: text("client_message_id")?, body: text("body")?, sender: text("sender_name")?, topic })
}
