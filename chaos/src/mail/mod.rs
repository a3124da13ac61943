//! Mail as a workload, over REST: agents of one project write to each other under keys, acknowledge what they get, and reserve
//! files.
//!
//! After each round every send of unknown fate is made again under its key. Then each agent's feed of deliveries must have
//! what was promised to it, once, and nothing else. The archive is waited for and must have a whole file for each message,
//! every acknowledgement in the files of what agents have seen, and nothing that others than its owner may read.
//!
//! After some rounds the agents move to a new project, since a round looks at all of its project, and must not take longer the
//! more rounds were played. The end looks at every project once more.

mod archive;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::judge::{Fate, Sent};
use crate::checker::{Invariant, Violation};
use crate::client::{Answer, Client, patiently};
use crate::rng::{self, Rng, Stream};
use crate::workload::{Count, Held, Signals, Site, Workload};

const AGENTS: usize = 5;
/// Of one project.
const ROUNDS_MAX: u32 = 20;
const WRITERS: u32 = 4;
/// Between two calls of one writer, at most.
const PAUSE_MS_MAX: u64 = 40;
const FINISH_MAX: Duration = Duration::from_secs(45);
/// For the archive to have everything. A project that failed often rests in between.
const ARCHIVED_MAX: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(100);
const EVENTS: u32 = 500;

/// What is known of all messages, by their keys.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<BTreeMap<String, Sent>>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came to one agent, by number and subject, and where its feed goes on.
#[derive(Default)]
struct Feed {
    cursor: Option<String>,
    came: Vec<(i64, String)>,
}

/// One project, what was asked for in it, and what came of it.
struct Project {
    key: String,
    agents: Vec<String>,
    record: Record,
    /// How far each agent's feed was read, and what came by it.
    feeds: BTreeMap<String, Feed>,
    rounds: u32,
}

pub struct Mail {
    seed: u64,
    /// The last one is written in.
    projects: Vec<Project>,
    hands: JoinSet<Count>,
    journal: PathBuf,
    resolved: u64,
}

impl Project {
    async fn make(at: &Site) -> Result<Self> {
        let mut client = Client::new(at.endpoint.clone());
        let key = format!("/chaos/{:x}", rng::fresh_seed() & 0xffff_ffff);
        expect(client.post("/v1/mail/projects", &json!({"human_key": key})).await?)?;
        let mut agents = Vec::with_capacity(AGENTS);
        for _ in 0..AGENTS {
            let input = json!({"project_key": key, "program": "chaos", "model": "none"});
            let made = expect(client.post("/v1/mail/agent_identities", &input).await?)?;
            let name = made.text("name").context("an agent without a name")?.to_owned();
            let input = json!({"project_key": key, "agent_name": name, "policy": "open"});
            expect(client.post("/v1/mail/contacts/policy", &input).await?)?;
            agents.push(name);
        }
        Ok(Project { key, agents, record: Record::default(), feeds: BTreeMap::new(), rounds: 0 })
    }

    fn writer(&self, at: &Site, signals: &Signals, rng: Rng) -> Writer {
        Writer {
            client: Client::new(at.endpoint.clone()),
            project: self.key.clone(),
            agents: self.agents.clone(),
            record: self.record.clone(),
            signals: signals.clone(),
            rng,
            count: Count::default(),
        }
    }

    /// Messages and acknowledgements that were promised.
    fn promised(&self) -> (usize, usize) {
        let all = self.record.lock();
        let acks = all.values().filter(|sent| matches!(sent.ack, Some((_, true)))).count();
        (all.values().filter(|sent| sent.promised().is_some()).count(), acks)
    }

    /// Every send of unknown fate is made again under its key, and every acknowledgement likewise. How many there were.
    async fn settle(&self, mut writer: Writer) -> Result<(u64, Vec<Violation>)> {
        let open: Vec<(String, Sent)> = {
            let all = self.record.lock();
            all.iter().filter(|(_, sent)| sent.is_open()).map(|(key, sent)| (key.clone(), sent.clone())).collect()
        };
        let (count, mut violations) = (open.len() as u64, Vec::new());
        for (key, mut sent) in open {
            if sent.fate == Fate::Unknown {
                let answer = patiently(async || writer.client.post("/v1/mail/messages", &sent.request).await).await?;
                match id_of(&answer) {
                    Some(id) => sent.fate = Fate::Promised(id),
                    None => {
                        let detail = format!("mail {key}: sent again, and {}", answer.brief());
                        violations.push(Violation::new(Invariant::Unserved, detail));
                        continue;
                    }
                }
            }
            if let (Some(id), Some((agent, false))) = (sent.promised(), sent.ack.clone()) {
                let (path, input) = writer.acknowledgement(id, &agent);
                let answer = patiently(async || writer.client.post(&path, &input).await).await?;
                if answer.success() {
                    sent.ack = Some((agent, true));
                } else {
                    let detail = format!("mail {key}: acknowledged again, and {}", answer.brief());
                    violations.push(Violation::new(Invariant::Unserved, detail));
                }
            }
            self.record.lock().insert(key, sent);
        }
        Ok((count, violations))
    }

    /// What has come to each agent since the last look.
    async fn follow(&mut self, at: &Site) -> Result<()> {
        let mut client = Client::new(at.endpoint.clone());
        for agent in &self.agents {
            let Feed { cursor, came } = self.feeds.entry(agent.clone()).or_default();
            loop {
                let after = cursor.as_ref().map(|cursor| format!("&after={cursor}")).unwrap_or_default();
                let key = self.key.replace('/', "%2F");
                let query = format!("project_key={key}&agent_name={agent}&limit={EVENTS}{after}");
                let path = format!("/v1/mail/inbox/events?{query}");
                let answer = expect(patiently(async || client.get(&path).await).await?)?;
                for event in answer.body["events"].as_array().context("a feed without events")? {
                    let id = event["message_id"].as_i64().context("a delivery without a number")?;
                    came.push((id, event["subject"].as_str().unwrap_or_default().to_owned()));
                }
                *cursor = answer.text("next_cursor").map(str::to_owned);
                if answer.body["has_more"] != Value::Bool(true) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// By what came to its agents.
    async fn judge_deliveries(&mut self, at: &Site) -> Result<Vec<Violation>> {
        self.follow(at).await?;
        let feeds: BTreeMap<&str, &[(i64, String)]> =
            self.feeds.iter().map(|(agent, feed)| (agent.as_str(), feed.came.as_slice())).collect();
        Ok(judge::deliveries(&self.record.lock(), &feeds))
    }

    /// Waited for, since it follows; then it must have everything.
    async fn judge_archive(&self, at: &Site) -> Result<Vec<Violation>> {
        let mut client = Client::new(at.endpoint.clone());
        let began = Instant::now();
        loop {
            let health = expect(patiently(async || client.post("/v1/mail/health", &json!({})).await).await?)?;
            let archive = &health.body["archive"];
            if archive.is_null() {
                return Ok(Vec::new());
            }
            let files = at.data.join("mail-archive/default").join(slug(&self.key));
            let written = archive["wbq_depth"] == 0 && archive["needs_reindex_total"] == 0;
            let mut violations = match written {
                true => archive::judge(&files, &self.record.lock()),
                false => vec![Violation::new(Invariant::Unfiled, format!("the archive is behind: {archive}"))],
            };
            // What was acknowledged is written by a look of its own, a moment after the rows.
            if violations.is_empty() || began.elapsed() > ARCHIVED_MAX {
                if violations.is_empty() {
                    violations.extend(archive::fsck(&files));
                }
                return Ok(violations);
            }
            sleep(LOOK).await;
        }
    }
}

impl Mail {
    /// Its journal stands beside that of the tasks.
    pub fn new(journal: &Path, seed: u64) -> Self {
        Mail {
            seed,
            projects: Vec::new(),
            hands: JoinSet::new(),
            journal: journal.with_file_name("mail.json"),
            resolved: 0,
        }
    }

    fn hand(&self, round: u32, hand: u32) -> Rng {
        Rng::new(self.seed, Stream::Mail { round, hand })
    }

    async fn gather(&mut self) -> Result<Count> {
        let mut total = Count::default();
        let drain = async {
            while let Some(hand) = self.hands.join_next().await {
                let count = hand.context("a writer of mail ended badly")?;
                total.acknowledged += count.acknowledged;
                total.refused += count.refused;
                total.unknown += count.unknown;
            }
            anyhow::Ok(())
        };
        timeout(FINISH_MAX, drain).await.context("the writers of mail did not end")??;
        Ok(total)
    }

    async fn judge(&mut self, number: usize, at: &Site) -> Result<Vec<Violation>> {
        let rng = self.hand(u32::MAX, 0);
        let project = &mut self.projects[number];
        let writer = project.writer(at, &Signals::default(), rng);
        let (resolved, mut violations) = project.settle(writer).await?;
        self.resolved += resolved;
        violations.extend(project.judge_deliveries(at).await?);
        self.save()?;
        if violations.is_empty() {
            violations = self.projects[number].judge_archive(at).await?;
        }
        Ok(violations)
    }

    async fn check_round(&mut self, at: &Site) -> Result<Vec<Violation>> {
        let last = self.projects.len() - 1;
        let violations = self.judge(last, at).await?;
        self.projects[last].rounds += 1;
        if self.projects[last].rounds == ROUNDS_MAX {
            self.projects.push(Project::make(at).await?);
        }
        Ok(violations)
    }

    async fn check_all(&mut self, at: &Site) -> Result<Vec<Violation>> {
        let sent = self.projects.iter().any(|project| !project.record.lock().is_empty());
        ensure!(sent, "no mail was sent, so nothing was tested");
        let mut violations = Vec::new();
        for number in 0..self.projects.len() {
            violations.extend(self.judge(number, at).await?);
        }
        Ok(violations)
    }

    fn save(&self) -> Result<()> {
        let mut told = BTreeMap::new();
        for project in &self.projects {
            let all = project.record.lock();
            let fates = all.iter().map(|(key, sent)| (key.clone(), format!("{:?}", sent.fate)));
            told.insert(&project.key, fates.collect::<BTreeMap<String, String>>());
        }
        std::fs::write(&self.journal, serde_json::to_vec_pretty(&told)?).context("writing the journal of mail")
    }
}

fn expect(answer: Answer) -> Result<Answer> {
    ensure!(answer.success(), "mail: {}", answer.brief());
    Ok(answer)
}

fn id_of(answer: &Answer) -> Option<i64> {
    answer.success().then(|| answer.body["deliveries"][0]["payload"]["id"].as_i64()).flatten()
}

fn slug(project: &str) -> String {
    project.trim_matches('/').replace('/', "-")
}

/// Somebody who writes as all of the agents, one call after the other.
struct Writer {
    client: Client,
    project: String,
    agents: Vec<String>,
    record: Record,
    signals: Signals,
    rng: Rng,
    count: Count,
}

impl Writer {
    async fn write(mut self, round: u32, hand: u32) -> Count {
        let mut number = 0;
        while !self.signals.stopped() {
            self.send(format!("r{round}-h{hand}-n{number}")).await;
            number += 1;
            if !self.signals.sprints() {
                sleep(Duration::from_millis(self.rng.below(PAUSE_MS_MAX))).await;
            }
        }
        self.count
    }

    fn draw(&mut self) -> (String, BTreeSet<String>) {
        let chosen = 2 + self.rng.below(3) as usize;
        let mut some = self.rng.sample(self.agents.clone(), chosen);
        let sender = some.pop().unwrap_or_default();
        (sender, some.into_iter().collect())
    }

    async fn send(&mut self, key: String) {
        let (sender, recipients) = self.draw();
        let mut lists: [Vec<&String>; 3] = Default::default();
        for (at, name) in recipients.iter().enumerate() {
            lists[at % 3].push(name);
        }
        let [to, bcc, cc] = &lists;
        let request = json!({
            "project_key": self.project, "sender_name": sender, "to": to, "cc": cc, "bcc": bcc, "subject": key,
            "body_md": format!("The text of {key}."), "ack_required": true, "idempotency_key": key,
        });
        let outcome = self.client.post("/v1/mail/messages", &request).await;
        let fate = self.fate(&outcome);
        let mut sent = Sent { request, recipients, fate, ack: None };
        if let (Some(id), 0) = (sent.promised(), self.rng.below(2)) {
            sent.ack = Some(self.acknowledge(id, &sent).await);
        }
        self.record.lock().insert(key, sent);
    }

    fn fate(&mut self, outcome: &Result<Answer>) -> Fate {
        match outcome {
            // After the cut no answer is a promise.
            Ok(answer) if answer.success() && !self.signals.is_cut() => match id_of(answer) {
                Some(id) => {
                    self.count.acknowledged += 1;
                    Fate::Promised(id)
                }
                None => Fate::Unknown,
            },
            Ok(answer) if answer.refused() || answer.undone() => {
                self.count.refused += 1;
                Fate::Refused
            }
            _ => {
                self.count.unknown += 1;
                Fate::Unknown
            }
        }
    }

    /// By one of those who got it: whether it was answered.
    async fn acknowledge(&mut self, id: i64, sent: &Sent) -> (String, bool) {
        let agent = sent.recipients.iter().next().cloned().unwrap_or_default();
        let (path, input) = self.acknowledgement(id, &agent);
        let answered = self.client.post(&path, &input).await.is_ok_and(|answer| answer.success());
        (agent, answered && !self.signals.is_cut())
    }

    fn acknowledgement(&self, id: i64, agent: &str) -> (String, Value) {
        (format!("/v1/mail/messages/{id}/ack"), json!({"project_key": self.project, "agent_name": agent}))
    }
}

impl Workload for Mail {
    fn name(&self) -> &'static str {
        "mail"
    }

    fn open<'a>(&'a mut self, at: &'a Site) -> Held<'a, ()> {
        Box::pin(async move {
            self.projects.push(Project::make(at).await?);
            Ok(())
        })
    }

    fn start(&mut self, round: u32, at: &Site, signals: &Signals) -> Result<()> {
        let project = self.projects.last().context("there is no project yet")?;
        for hand in 0..WRITERS {
            let writer = project.writer(at, signals, self.hand(round, hand));
            self.hands.spawn(writer.write(round, hand));
        }
        Ok(())
    }

    fn finish(&mut self) -> Held<'_, Count> {
        Box::pin(self.gather())
    }

    fn check<'a>(&'a mut self, _round: u32, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(self.check_round(at))
    }

    fn close<'a>(&'a mut self, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(self.check_all(at))
    }

    fn resolved(&self) -> u64 {
        self.resolved
    }

    fn journal(&self) -> &Path {
        &self.journal
    }

    fn summary(&self) -> Option<String> {
        let of_each = self.projects.iter().map(Project::promised);
        let (sent, acks) = of_each.fold((0, 0), |(sent, acks), (s, a)| (sent + s, acks + a));
        let projects = self.projects.len();
        Some(format!("mail: {sent} messages and {acks} acknowledgements promised, in {projects} projects"))
    }
}
