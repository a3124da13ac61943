//! The outbox against a model of a few lines, with random calls and crashes: after each call both must agree.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use waybill_daemon::config;
use waybill_daemon::outbox::rules::{Digest, draw};
use waybill_daemon::outbox::{Accept, Outbox, Outcome, Parcel, Query, Requeue, Settled, Status, Verdict};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::{Clock, Code, Entropy};

const STEPS: usize = 400;
const IDS: u64 = 48;
const DESTINATIONS: u64 = 3;

#[derive(Clone, Debug)]
struct Row {
    status: Status,
    fingerprint: Digest,
    destination: u64,
}

/// Rows in the order of arrival.
#[derive(Default)]
struct Model {
    ids: HashMap<String, usize>,
    rows: Vec<Row>,
}

impl Model {
    fn insert(&mut self, id: &str, row: Row) {
        assert!(self.ids.insert(id.to_owned(), self.rows.len()).is_none());
        self.rows.push(row);
    }

    /// The oldest live row of each destination.
    fn heads(&self) -> BTreeMap<u64, usize> {
        let mut heads = BTreeMap::new();
        for (at, row) in self.rows.iter().enumerate() {
            if matches!(row.status, Status::Pending | Status::Inflight) {
                heads.entry(row.destination).or_insert(at);
            }
        }
        heads
    }

    fn expected(&self, id: &str, fingerprint: Digest) -> (&'static str, Option<&'static str>) {
        let Some(at) = self.ids.get(id) else { return ("insert", None) };
        let row = &self.rows[*at];
        let same = row.fingerprint == fingerprint;
        match (row.status, same) {
            (Status::Pending, true) => ("queued", None),
            (Status::Inflight, true) => ("inflight", None),
            (Status::Done, true) => ("duplicate", None),
            (Status::Dead, true) => ("conflict", Some("outbox_dead_fingerprint_match")),
            (Status::Aborted, true) => ("conflict", Some("outbox_aborted_fingerprint_match")),
            (Status::Pending, false) => ("conflict", Some("outbox_pending_fingerprint_mismatch")),
            (Status::Inflight, false) => ("conflict", Some("outbox_inflight_fingerprint_mismatch")),
            (Status::Done, false) => ("conflict", Some("outbox_done_fingerprint_mismatch")),
            (Status::Dead, false) => ("conflict", Some("outbox_dead_fingerprint_mismatch")),
            (Status::Aborted, false) => ("conflict", Some("outbox_aborted_fingerprint_mismatch")),
        }
    }
}

fn accept(id: &str, variant: u8, destination: u64) -> Accept {
    Accept {
        client_message_id: id.to_owned(),
        request_fingerprint: [variant; 32],
        request: "{}".to_owned(),
        parcel: Parcel {
            envelope: format!("{{\"of\":\"{id}\"}}"),
            wire_fingerprint: [variant; 32],
            destination_kind: "dm".to_owned(),
            destination_ref: format!("d{destination}"),
            key_id: None,
            epoch: None,
        },
    }
}

fn told(verdict: &Verdict) -> (&'static str, Option<&'static str>) {
    match verdict {
        Verdict::Insert => ("insert", None),
        Verdict::Queued => ("queued", None),
        Verdict::Inflight => ("inflight", None),
        Verdict::Duplicate { .. } => ("duplicate", None),
        Verdict::Conflict(conflict) => ("conflict", Some(conflict.name)),
    }
}

struct World {
    folder: tempfile::TempDir,
    time: ManualSource,
    random: SeededEntropy,
    outbox: Outbox,
    model: Model,
    /// Row ids of the database by place in the model, for what is in flight.
    in_flight: HashMap<usize, i64>,
    seen: BTreeMap<&'static str, usize>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let time = ManualSource::at(crate::support::START_US);
        let outbox = open(&folder, &time).await;
        let (model, in_flight, seen) = (Model::default(), HashMap::new(), BTreeMap::new());
        Self { folder, time, random: SeededEntropy::new(seed), outbox, model, in_flight, seen }
    }

    fn below(&self, bound: u64) -> u64 {
        draw(&self.random) % bound
    }

    async fn step(&mut self) {
        let what = match self.below(100) {
            0..45 => self.accept().await,
            45..58 => self.claim().await,
            58..73 => self.settle().await,
            73..85 => self.advance().await,
            85..92 => self.requeue().await,
            92..94 => self.restart().await,
            94..97 => self.kill().await,
            _ => {
                self.outbox.prune(Duration::ZERO, true).await.unwrap();
                "prune"
            }
        };
        *self.seen.entry(what).or_default() += 1;
        self.compare().await;
    }

    async fn accept(&mut self) -> &'static str {
        let id = format!("id-{}", self.below(IDS));
        let (variant, destination) = (self.below(2) as u8, self.below(DESTINATIONS));
        // The destination is part of what a fingerprint is made from.
        let given = accept(&id, variant * 16 + destination as u8, destination);
        let fingerprint = given.request_fingerprint;
        let verdict = self.outbox.accept(given).await.unwrap();
        assert_eq!(told(&verdict), self.model.expected(&id, fingerprint), "{id}");
        if verdict == Verdict::Insert {
            self.model.insert(&id, Row { status: Status::Pending, fingerprint, destination });
        }
        "accept"
    }

    async fn claim(&mut self) -> &'static str {
        self.time.pass(Duration::from_secs(120));
        let claimed = self.outbox.claim(64).await.unwrap();
        let mut expected = Vec::new();
        for at in self.model.heads().into_values() {
            if self.model.rows[at].status == Status::Pending {
                self.model.rows[at].status = Status::Inflight;
                expected.push(at);
            }
        }
        let mut taken: Vec<usize> =
            claimed.flights.iter().map(|flight| self.model.ids[&flight.client_message_id]).collect();
        for flight in &claimed.flights {
            assert_eq!(flight.envelope, format!("{{\"of\":\"{}\"}}", flight.client_message_id));
            self.in_flight.insert(self.model.ids[&flight.client_message_id], flight.id);
        }
        taken.sort_unstable();
        expected.sort_unstable();
        assert_eq!(taken, expected);
        "claim"
    }

    async fn settle(&mut self) -> &'static str {
        let Some((&at, &row)) = self.in_flight.iter().min() else { return "nothing to settle" };
        self.in_flight.remove(&at);
        let (outcome, becomes, what) = self.outcome();
        let settled = self.outbox.settle(row, outcome.clone()).await.unwrap().unwrap();
        let is_right = match settled {
            Settled::Done { .. } => becomes == Status::Done,
            Settled::Dead { .. } => becomes == Status::Dead,
            Settled::Pending { .. } => becomes == Status::Pending,
        };
        assert!(is_right, "{settled:?}");
        assert_eq!(self.outbox.settle(row, Outcome::Refused { reason: String::new() }).await.unwrap(), None);
        self.model.rows[at].status = becomes;
        what
    }

    fn outcome(&self) -> (Outcome, Status, &'static str) {
        match self.below(3) {
            0 => (crate::support::delivered(), Status::Done, "delivered"),
            1 => (crate::support::refused(), Status::Dead, "refused"),
            _ => (crate::support::failed(), Status::Pending, "failed"),
        }
    }

    /// Some of what is in flight ends, and what may be sent is taken up to a bound, in one call.
    async fn advance(&mut self) -> &'static str {
        self.time.pass(Duration::from_secs(120));
        let count = self.below(DESTINATIONS + 1) as usize;
        let mut positions: Vec<usize> = self.in_flight.keys().copied().collect();
        positions.sort_unstable();
        let (mut ended, mut failed) = (Vec::new(), Vec::new());
        for at in positions.into_iter().take(count) {
            let (outcome, becomes, _) = self.outcome();
            ended.push((self.in_flight.remove(&at).unwrap(), outcome));
            self.model.rows[at].status = becomes;
            if becomes == Status::Pending {
                failed.push(at);
            }
        }
        let room = self.below(DESTINATIONS + 1) as usize;
        let (settled, claimed) = self.outbox.advance(ended.clone(), room).await.unwrap();
        assert!(settled.len() == ended.len() && settled.iter().all(Option::is_some), "{settled:?}");
        let pending = |at: &usize| self.model.rows[*at].status == Status::Pending;
        let heads: Vec<usize> = self.model.heads().into_values().filter(pending).collect();
        let taken: Vec<usize> =
            claimed.flights.iter().map(|flight| self.model.ids[&flight.client_message_id]).collect();
        assert!(taken.len() <= room && taken.iter().all(|at| heads.contains(at)), "{taken:?} of {heads:?}");
        // One that has failed just now may have a pause, and the pause may be nothing.
        let is_left = heads.iter().any(|at| !taken.contains(at) && !failed.contains(at));
        assert!(taken.len() == room || !is_left, "{taken:?} of {heads:?} with room for {room}");
        for flight in claimed.flights {
            let at = self.model.ids[&flight.client_message_id];
            self.model.rows[at].status = Status::Inflight;
            self.in_flight.insert(at, flight.id);
        }
        "advance"
    }

    async fn requeue(&mut self) -> &'static str {
        let (id, new) = (format!("id-{}", self.below(IDS)), format!("id-{}", self.below(IDS)));
        let destination = self.below(DESTINATIONS);
        let replacement = accept(&new, 200, destination);
        let requeue = Requeue { client_message_id: id.clone(), replacement, operator: "test".to_owned() };
        let requeued = self.outbox.requeue(requeue).await;
        let status = self.model.ids.get(&id).map(|at| self.model.rows[*at].status);
        let expected = match status {
            None => Some(Code::NotFound),
            Some(Status::Inflight | Status::Done | Status::Aborted) => Some(Code::NotRequeueable),
            Some(_) if self.model.ids.contains_key(&new) => Some(Code::AlreadyExists),
            Some(_) => None,
        };
        assert_eq!(requeued.as_ref().err().map(|error| error.code()), expected, "{status:?}");
        let Ok(requeued) = requeued else { return "requeue refused" };
        assert_eq!(requeued.warning.is_some(), status == Some(Status::Pending));
        self.model.insert(&new, Row { status: Status::Pending, fingerprint: [200; 32], destination });
        let at = self.model.ids[&id];
        self.model.rows[at].status = Status::Aborted;
        "requeue"
    }

    /// Closed in order and opened anew.
    async fn restart(&mut self) -> &'static str {
        let old = self.outbox.store().clone();
        tokio::task::spawn_blocking(move || old.close()).await.unwrap();
        self.outbox = open(&self.folder, &self.time).await;
        self.began_anew();
        "restart"
    }

    /// What a killed process leaves: the files as they are, with a log that nobody has copied into the database.
    async fn kill(&mut self) -> &'static str {
        let left = tempfile::tempdir().unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        // The log first: whatever is copied into the database meanwhile is in it as well.
        names.sort_by_key(|name| !name.to_string_lossy().ends_with("-wal"));
        let is_kept = |name: &std::ffi::OsString| !name.to_string_lossy().ends_with("-shm");
        for name in names.into_iter().filter(is_kept) {
            std::fs::copy(self.folder.path().join(&name), left.path().join(&name)).unwrap();
        }
        let outbox = open(&left, &self.time).await;
        let old = std::mem::replace(&mut self.outbox, outbox).store().clone();
        tokio::task::spawn_blocking(move || old.close()).await.unwrap();
        self.folder = left;
        self.began_anew();
        "kill"
    }

    fn began_anew(&mut self) {
        for row in &mut self.model.rows {
            if row.status == Status::Inflight {
                row.status = Status::Pending;
            }
        }
        self.in_flight.clear();
    }

    async fn compare(&self) {
        let listed = self.outbox.list(Query { limit: Some(1_000), ..Query::default() }).await.unwrap().messages;
        let found: Vec<(usize, Status)> =
            listed.iter().map(|row| (self.model.ids[&row.client_message_id], row.status)).collect();
        let expected: Vec<(usize, Status)> = self.model.rows.iter().map(|row| row.status).enumerate().collect();
        assert_eq!(found, expected, "rows in the order of arrival, none released");
        let figures = self.outbox.figures().await.unwrap();
        for status in Status::ALL {
            let count = self.model.rows.iter().filter(|row| row.status == status).count() as u64;
            assert_eq!(figures.of(status), count, "{status:?}");
        }
    }
}

async fn open(folder: &tempfile::TempDir, time: &ManualSource) -> Outbox {
    let clock = Arc::new(Clock::new(time.clone()));
    let entropy = Arc::new(SeededEntropy::new(5)) as Arc<dyn Entropy>;
    Outbox::open(&folder.path().join("outbox.db"), config::Outbox::default(), &clock, &entropy).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_does_what_its_table_says() {
    let mut seen = BTreeMap::new();
    for seed in 0..4 {
        let mut world = World::new(seed).await;
        for _ in 0..STEPS {
            world.step().await;
        }
        for (what, count) in world.seen {
            *seen.entry(what).or_insert(0) += count;
        }
    }
    for what in [
        "accept",
        "claim",
        "advance",
        "delivered",
        "refused",
        "failed",
        "requeue",
        "requeue refused",
        "restart",
        "kill",
        "prune",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count >= 5), "{what} was hardly tried: {seen:?}");
    }
}
