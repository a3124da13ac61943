//! Files hurt while the server is down: a flipped bit in the log, a log cut short, torn pages of the database, an older
//! copy put in its place, a flipped bit in a stored value. A copy of the data folder is hurt and a server started on it:
//! it must refuse and say what is missing, or still have everything that was promised.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::audit::Audit;
use crate::checker::{Invariant, Violation};
use crate::client::Client;
use crate::history::Op;
use crate::load::{Load, SEQ_PER_ROUND, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// What belongs to the database; the rest of the folder is made anew at each start.
const FILES: [&str; 4] = ["waybill.db", "waybill.db-wal", "waybill.mark", "admin.key"];
const PAGE_BYTES: u64 = 4096;
const WAL_HEADER_BYTES: u64 = 32;
const FRAME_BYTES: u64 = 24 + PAGE_BYTES;
const LOAD_MS_MAX: u64 = 700;
/// To be asked whether it is ready is a commit, each time.
const SETTINGS: &str = "[doors]\nprobe_ms = 0\n";
/// The server notes its newest commit outside the log ten times a second, unless the machine stands still.
const MARK_MAX: Duration = Duration::from_secs(10);
const MARK_LOOK: Duration = Duration::from_millis(20);
/// Of the five kinds, so many in one round.
const KINDS_PER_ROUND: usize = 2;
const CHECKERS: u32 = 16;
const DETAIL_CHARS: usize = 60;
/// Some pages are free or hold what no answer shows; of several, one counts.
const TORN_PAGES: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    FlippedLog,
    CutLog,
    TornPages,
    OlderCopy,
    FlippedValue,
}

const KINDS: [Kind; 5] = [Kind::FlippedLog, Kind::OlderCopy, Kind::CutLog, Kind::TornPages, Kind::FlippedValue];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::FlippedLog => "a flipped bit in the log",
            Kind::CutLog => "a log cut short",
            Kind::TornPages => "torn pages",
            Kind::OlderCopy => "an older copy",
            Kind::FlippedValue => "a flipped bit in a stored value",
        }
    }
}

/// How the server took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reaction {
    Refused,
    /// It started, and nothing promised was missing: the damage met nothing that counts.
    Unharmed,
    /// It started, and something promised was missing or changed.
    Silent,
}

pub struct Damage {
    folder: PathBuf,
    rng: Rng,
    turn: usize,
    launch: Option<Launch>,
    seen: BTreeMap<(Kind, Reaction), u32>,
    found: Vec<Violation>,
    told: String,
}

impl Damage {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        Damage { folder, rng, turn: 0, launch: None, seen: BTreeMap::new(), found: Vec::new(), told: String::new() }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn older(&self) -> PathBuf {
        self.folder.join("older")
    }

    /// Hurts the copy in `folder`; false when there is nothing of that kind to hurt.
    fn hurt(&mut self, kind: Kind, folder: &Path, load: &Load) -> Result<bool> {
        let log = folder.join("waybill.db-wal");
        let log_bytes = live_bytes(&log)?;
        let database = folder.join("waybill.db");
        let pages = fs::metadata(&database)?.len() / PAGE_BYTES;
        match kind {
            Kind::FlippedLog | Kind::CutLog if log_bytes <= WAL_HEADER_BYTES => return Ok(false),
            Kind::FlippedLog => {
                flip(&log, WAL_HEADER_BYTES + self.rng.below(log_bytes - WAL_HEADER_BYTES), 1 << self.rng.below(8))?;
            }
            Kind::CutLog => {
                let left = WAL_HEADER_BYTES + self.rng.below(log_bytes - WAL_HEADER_BYTES);
                File::options().write(true).open(&log)?.set_len(left)?;
            }
            Kind::TornPages => {
                let file = File::options().write(true).open(&database)?;
                for _ in 0..TORN_PAGES {
                    let page = 1 + self.rng.below(pages.saturating_sub(1));
                    file.write_all_at(&[0xa5; PAGE_BYTES as usize / 2], page * PAGE_BYTES)?;
                }
            }
            Kind::FlippedValue => {
                let Some(at) = value_of(&fs::read(&database)?, load.round(), &mut self.rng) else { return Ok(false) };
                flip(&database, at, 1)?;
            }
            Kind::OlderCopy => {
                for file in &FILES[..2] {
                    let (old, place) = (self.older().join(file), folder.join(file));
                    if old.exists() {
                        fs::copy(old, place)?;
                    } else if place.exists() {
                        fs::remove_file(place)?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Waits until a commit is noted that came after all that was promised; twice, as the first may have been begun before.
    async fn await_mark(&self, server: &Server) {
        let mark = || fs::read(self.data().join("waybill.mark")).unwrap_or_default();
        let mut client = Client::new(server.endpoint.clone());
        let began = Instant::now();
        for _ in 0..2 {
            let before = mark();
            while mark() == before && began.elapsed() < MARK_MAX {
                let _ = client.ready().await;
                sleep(MARK_LOOK).await;
            }
        }
    }

    /// An orderly stop brings everything into the database: a page that is still in the log would be read from there.
    async fn empty_log(&self, folder: &Path) -> Result<()> {
        let mut launch = self.launch.clone().context("no server was started before")?;
        launch.log = folder.join("server.log");
        Server::start(&launch, folder).await?.shut_down().await?;
        fs::remove_file(&launch.log)?;
        Ok(())
    }

    /// Starts a server on the hurt folder and watches.
    async fn watch(&mut self, kind: Kind, folder: &Path, load: &Load, seed: u64) -> Result<(Reaction, String)> {
        let mut launch = self.launch.clone().context("no server was started before")?;
        launch.log = folder.join("server.log");
        let server = match Server::start(&launch, folder).await {
            Ok(server) => server,
            Err(error) => {
                let words = format!("{error:#}");
                let Some(why) = refusal(&words) else {
                    let detail = format!("{}: refused without saying what is wrong: {words}", kind.name());
                    self.found.push(Violation::new(Invariant::Silent, detail));
                    return Ok((Reaction::Silent, "refused without a reason".to_owned()));
                };
                return Ok((Reaction::Refused, why));
            }
        };
        let missing = Audit::once(CHECKERS, seed).promises(load.round(), &server.endpoint, load.journal()).await?;
        server.kill().await?;
        let Some(first) = missing.first() else {
            return Ok((Reaction::Unharmed, "served, nothing missing".to_owned()));
        };
        let first: String = first.to_string().chars().take(DETAIL_CHARS).collect();
        Ok((Reaction::Silent, format!("served with {} promises broken, as in {first}…", missing.len())))
    }
}

/// What the server says is wrong, if it does.
fn refusal(words: &str) -> Option<String> {
    let lost = words.split_once("has lost ").and_then(|(_, rest)| rest.split_once(" commits"));
    if let Some(count) = lost.and_then(|(count, _)| count.parse::<u64>().ok()) {
        return Some(format!("refused, {count} commits are missing"));
    }
    if words.contains(" is damaged: ") {
        return Some("refused as damaged".to_owned());
    }
    // SQLite's own words, when not even its first pages can be read.
    ["is malformed", "is not a database"]
        .iter()
        .any(|sign| words.contains(sign))
        .then(|| "refused as malformed".to_owned())
}

/// How much of the log is of its present turn: it begins anew at its front and leaves the rest of the older turn behind.
fn live_bytes(log: &Path) -> Result<u64> {
    const SALT: std::ops::Range<usize> = 16..24;
    let Ok(bytes) = fs::read(log) else { return Ok(0) };
    let Some(salt) = bytes.get(SALT) else { return Ok(0) };
    let (frames, _) = bytes[WAL_HEADER_BYTES as usize..].as_chunks::<{ FRAME_BYTES as usize }>();
    let live = frames.iter().take_while(|frame| &frame[8..16] == salt).count() as u64;
    Ok(WAL_HEADER_BYTES + live * FRAME_BYTES)
}

/// Where the last digit of the number of one of the round's operations is stored, as part of a payload.
fn value_of(database: &[u8], round: u32, rng: &mut Rng) -> Option<u64> {
    const NAME: &[u8] = b"\"seq\":";
    let found = database.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).filter_map(|(at, _)| {
        let digits = database[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number: u32 = std::str::from_utf8(&database[at + NAME.len()..][..digits]).ok()?.parse().ok()?;
        (number / SEQ_PER_ROUND == round).then_some((at + NAME.len() + digits - 1) as u64)
    });
    rng.sample(found.collect(), 1).pop()
}

fn flip(path: &Path, at: u64, mask: u8) -> Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ mask], at)?;
    Ok(())
}

/// The files of a stopped or idle server.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to)?;
    for file in FILES.iter().filter(|file| from.join(file).exists()) {
        fs::copy(from.join(file), to.join(file)).with_context(|| format!("copying {file}"))?;
    }
    Ok(())
}

impl Scenario for Damage {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, SETTINGS, launch)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// The server is idle: what is copied here is the older copy of later.
    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        self.launch = Some(launch.clone());
        copy(data, &self.older())?;
        Ok(Some(server))
    }

    /// What a hurt copy lacks is asked for by tasks.
    fn takes_queues(&self) -> bool {
        false
    }

    /// What was answered has been noted outside the log when the server is killed.
    async fn strike(&mut self, server: Server, load: &Load) -> Result<After> {
        load.stop();
        // Answers received before this line are the promised ones.
        load.cut();
        self.await_mark(&server).await;
        server.kill().await?;
        let mut told = Vec::new();
        for _ in 0..KINDS_PER_ROUND {
            let kind = KINDS[self.turn % KINDS.len()];
            self.turn += 1;
            let folder = self.folder.join("hurt");
            copy(&self.data(), &folder)?;
            if matches!(kind, Kind::TornPages | Kind::FlippedValue) {
                self.empty_log(&folder).await?;
            }
            if !self.hurt(kind, &folder, load)? {
                told.push(format!("{}: there was none", kind.name()));
                continue;
            }
            let seed = self.rng.next();
            let (reaction, words) = self.watch(kind, &folder, load, seed).await?;
            *self.seen.entry((kind, reaction)).or_default() += 1;
            // SQLite has no checksum over a page, so a bit inside a value is noticed by nobody: a gap that is counted and
            // told, not hidden.
            if reaction == Reaction::Silent && kind != Kind::FlippedValue && self.found.is_empty() {
                self.found.push(Violation::new(Invariant::Silent, format!("{}: {words}", kind.name())));
            }
            told.push(format!("{}: {words}", kind.name()));
        }
        self.told = told.join("; ");
        Ok(After::Restart(self.data()))
    }

    fn judge(&mut self, _tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        let lines = KINDS.iter().map(|kind| {
            let count = |reaction| self.seen.get(&(*kind, reaction)).copied().unwrap_or(0);
            let [refused, unharmed, silent] = [Reaction::Refused, Reaction::Unharmed, Reaction::Silent].map(count);
            format!("{} {refused} refused, {unharmed} without effect, {silent} unnoticed", kind.name())
        });
        Ok(Some(lines.collect::<Vec<_>>().join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_missing() {
        assert_eq!(refusal("The database has lost 12 commits: x").as_deref(), Some("refused, 12 commits are missing"));
        assert_eq!(refusal("The database file x is damaged: y").as_deref(), Some("refused as damaged"));
        assert_eq!(refusal("database disk image is malformed").as_deref(), Some("refused as malformed"));
        assert_eq!(refusal("the server ended at start: signal: 11"), None);
    }

    #[test]
    fn an_older_turn_of_the_log_is_not_live() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(live_bytes(file.path()).unwrap(), 0);
        let mut log = vec![7; WAL_HEADER_BYTES as usize + 3 * FRAME_BYTES as usize];
        log[WAL_HEADER_BYTES as usize + 2 * FRAME_BYTES as usize + 8] = 6;
        fs::write(file.path(), log).unwrap();
        assert_eq!(live_bytes(file.path()).unwrap(), WAL_HEADER_BYTES + 2 * FRAME_BYTES);
    }

    #[test]
    fn a_value_of_the_round_is_found() {
        let text = br#"x{"seq":1000007}y{"seq":2000008}z{"seq":3}"#;
        let mut rng = Rng::new(1, Stream::Fault);
        assert_eq!(value_of(text, 2, &mut rng).map(|at| text[at as usize]), Some(b'8'));
        assert_eq!(value_of(text, 4, &mut rng), None);
    }

    #[test]
    fn flipping_twice_leaves_a_file_as_it_was() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [1, 2, 3]).unwrap();
        flip(file.path(), 1, 0xff).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), [1, 0xfd, 3]);
        flip(file.path(), 1, 0xff).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), [1, 2, 3]);
    }
}
