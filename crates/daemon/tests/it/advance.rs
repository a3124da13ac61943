//! Answers are settled, lines go on and successors are taken in one commit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tempfile::TempDir;
use waybill_daemon::config;
use waybill_daemon::outbox::{Accept, Claimed, Flight, Outbox, Outcome, Parcel, Settled, Status};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::{Clock, Entropy, Mode, Result};
use waybill_store::{Ctx, Tx, Work};

use crate::support::{START_US, delivered, failed, refused};

struct World {
    _folder: TempDir,
    time: ManualSource,
    outbox: Outbox,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let time = ManualSource::at(START_US);
        let clock = Arc::new(Clock::new(time.clone()));
        let entropy = Arc::new(SeededEntropy::new(5)) as Arc<dyn Entropy>;
        let settings = config::Outbox { max_age_seconds: Some(1_000), ..config::Outbox::default() };
        let outbox = Outbox::open(&folder.path().join("outbox.db"), settings, &clock, &entropy).await.unwrap();
        Self { _folder: folder, time, outbox }
    }

    /// So many for each destination, in turns; their ids are `<destination>-<number>`.
    async fn fill(&self, destinations: usize, each: usize) {
        for number in 0..each {
            for destination in 0..destinations {
                self.accept(&format!("d{destination}"), &format!("d{destination}-{number}")).await;
            }
        }
    }

    async fn accept(&self, destination: &str, id: &str) {
        let parcel = Parcel {
            envelope: format!("{{\"of\":\"{id}\"}}"),
            wire_fingerprint: [1; 32],
            destination_kind: "topic".to_owned(),
            destination_ref: destination.to_owned(),
            key_id: None,
            epoch: None,
        };
        let (client_message_id, request) = (id.to_owned(), "{}".to_owned());
        let accept = Accept { client_message_id, request_fingerprint: [1; 32], request, parcel };
        self.outbox.accept(accept).await.unwrap();
    }

    async fn commits(&self) -> i64 {
        self.outbox.store().system().run(Commits).await.unwrap()
    }

    async fn advance(&self, ended: Vec<(i64, Outcome)>, room: usize) -> (Vec<Option<Settled>>, Claimed) {
        self.outbox.advance(ended, room).await.unwrap()
    }

    async fn count(&self, status: Status) -> u64 {
        self.outbox.figures().await.unwrap().of(status)
    }
}

/// How many commits the file has seen.
struct Commits;

impl Work for Commits {
    type Output = i64;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<i64> {
        tx.query_opt("SELECT commit_seq FROM meta WHERE id = 1", &[]).await?.unwrap().int(0)
    }
}

fn ids(flights: &[Flight]) -> Vec<&str> {
    let mut ids: Vec<&str> = flights.iter().map(|flight| flight.client_message_id.as_str()).collect();
    ids.sort_unstable();
    ids
}

fn all(flights: &[Flight], outcome: &Outcome) -> Vec<(i64, Outcome)> {
    flights.iter().map(|flight| (flight.id, outcome.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_commit_settles_all_answers_and_takes_their_successors_in_order() {
    let world = World::new().await;
    world.fill(3, 4).await;
    let (_, mut claimed) = world.advance(Vec::new(), 64).await;
    assert_eq!(ids(&claimed.flights), ["d0-0", "d1-0", "d2-0"]);
    for round in 1..4 {
        let before = world.commits().await;
        let (settled, next) = world.advance(all(&claimed.flights, &delivered()), 64).await;
        assert_eq!(world.commits().await, before + 1);
        assert!(settled.iter().all(|settled| matches!(settled, Some(Settled::Done { .. }))), "{settled:?}");
        let expected = [format!("d0-{round}"), format!("d1-{round}"), format!("d2-{round}")];
        assert_eq!(ids(&next.flights), expected);
        for flight in &next.flights {
            assert_eq!(flight.envelope, format!("{{\"of\":\"{}\"}}", flight.client_message_id));
            assert_eq!(flight.client_message_id.split('-').next(), Some(flight.destination_ref.as_str()));
        }
        assert_eq!((next.next_at, world.count(Status::Inflight).await), (None, 3));
        // An answer that comes twice changes nothing and takes nothing.
        let (settled, nothing) = world.advance(all(&claimed.flights, &refused()), 64).await;
        assert_eq!((settled, nothing.flights), (vec![None; 3], Vec::new()));
        claimed = next;
    }
    let (_, last) = world.advance(all(&claimed.flights, &delivered()), 64).await;
    assert_eq!((last, world.count(Status::Done).await), (Claimed::default(), 12));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_message_is_followed_at_once_and_a_failed_one_holds_its_line() {
    let world = World::new().await;
    world.fill(2, 3).await;
    let (_, claimed) = world.advance(Vec::new(), 64).await;
    let ended: Vec<(i64, Outcome)> = claimed
        .flights
        .iter()
        .map(|flight| (flight.id, if flight.destination_ref == "d0" { refused() } else { slow() }))
        .collect();
    let (settled, next) = world.advance(ended, 64).await;
    assert_eq!(ids(&next.flights), ["d0-1"]);
    let due = settled.iter().find_map(|settled| match settled {
        Some(Settled::Pending { next_attempt_at, .. }) => Some(*next_attempt_at),
        _ => None,
    });
    assert!(due.is_some() && next.next_at == due, "{settled:?} {next:?}");
    world.time.pass(Duration::from_secs(61));
    let (_, next) = world.advance(all(&next.flights, &delivered()), 64).await;
    assert_eq!(ids(&next.flights), ["d0-2", "d1-0"], "the one that failed goes before those behind it");
}

/// A failure whose pause is not nothing.
fn slow() -> Outcome {
    match failed() {
        Outcome::Failed { reason, .. } => Outcome::Failed { reason, retry_after: Some(Duration::from_secs(5)) },
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_beyond_the_room_and_nobody_waits_for_ever() {
    const WINDOW: usize = 4;
    let world = World::new().await;
    world.fill(10, 3).await;
    let mut in_flight: Vec<Flight> = Vec::new();
    let mut sent: Vec<String> = Vec::new();
    let mut first: Vec<String> = Vec::new();
    while sent.len() < 30 {
        // Some are answered, others stay in flight.
        let answered: Vec<Flight> = in_flight.drain(..in_flight.len().min(3)).collect();
        let room = WINDOW - in_flight.len();
        let (_, claimed) = world.advance(all(&answered, &delivered()), room).await;
        assert!(claimed.flights.len() <= room, "{} of {room}", claimed.flights.len());
        sent.extend(answered.into_iter().map(|flight| flight.client_message_id));
        first.extend(claimed.flights.iter().map(|flight| flight.client_message_id.clone()));
        in_flight.extend(claimed.flights);
        let lines: std::collections::HashSet<&str> =
            in_flight.iter().map(|flight| flight.destination_ref.as_str()).collect();
        assert_eq!(lines.len(), in_flight.len(), "one per destination");
        assert_eq!(world.count(Status::Inflight).await, in_flight.len() as u64);
    }
    for destination in 0..10 {
        let own: Vec<&String> = sent.iter().filter(|id| id.starts_with(&format!("d{destination}-"))).collect();
        assert!(own.len() == 3 && own.is_sorted(), "{own:?}");
    }
    let heads = first.iter().take(10).filter(|id| id.ends_with("-0")).count();
    assert_eq!(heads, 10, "each destination once before any a second time: {first:?}");
    let (_, none) = world.advance(Vec::new(), 0).await;
    assert!(none.flights.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_a_line_goes_on_and_waits() {
    let world = World::new().await;
    world.fill(1, 2).await;
    let (_, claimed) = world.advance(Vec::new(), 1).await;
    let (settled, none) = world.advance(all(&claimed.flights, &delivered()), 0).await;
    assert!(matches!(settled[0], Some(Settled::Done { .. })) && none.flights.is_empty());
    assert!(none.next_at.is_some(), "it is due and waits for room");
    assert_eq!(ids(&world.advance(Vec::new(), 1).await.1.flights), ["d0-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_is_too_old_is_not_sent() {
    let world = World::new().await;
    world.fill(1, 2).await;
    let (_, claimed) = world.advance(Vec::new(), 64).await;
    world.time.pass(Duration::from_secs(990));
    world.accept("d0", "young").await;
    world.time.pass(Duration::from_secs(20));
    let (settled, next) = world.advance(all(&claimed.flights, &delivered()), 64).await;
    assert!(matches!(settled[0], Some(Settled::Done { .. })), "an answer counts however late it comes");
    assert!(next.flights.is_empty() && next.next_at.is_some(), "{next:?}");
    let mut flights = Vec::new();
    while flights.is_empty() {
        flights = world.advance(Vec::new(), 64).await.1.flights;
    }
    assert_eq!((ids(&flights), world.count(Status::Dead).await), (vec!["young"], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_for_a_lost_connection_claims_nothing_after_the_reset() {
    let world = World::new().await;
    world.fill(2, 2).await;
    let (_, claimed) = world.advance(Vec::new(), 1).await;
    let late = world.outbox.advance(all(&claimed.flights, &delivered()), 64);
    assert_eq!(world.outbox.reset().await.unwrap(), 1);
    let (settled, nothing) = late.await.unwrap();
    assert_eq!((settled, nothing.flights), (vec![None], Vec::new()));
    assert_eq!(world.count(Status::Inflight).await, 0);
    world.time.pass(Duration::from_secs(2));
    assert_eq!(ids(&world.advance(Vec::new(), 64).await.1.flights), ["d0-0", "d1-0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_may_be_sent_calls_for_a_look() {
    let world = World::new().await;
    let is_told = || world.outbox.arrived().now_or_never().is_some();
    assert!(is_told(), "of what was there at the start");
    world.accept("d0", "head").await;
    assert!(is_told());
    world.accept("d0", "behind").await;
    assert!(!is_told());
    world.accept("d0", "head").await;
    assert!(!is_told(), "a repeat is nothing new");
    let (_, claimed) = world.advance(Vec::new(), 64).await;
    world.advance(all(&claimed.flights, &delivered()), 64).await;
    assert!(!is_told(), "whoever advances has looked");
    world.accept("d1", "another head").await;
    assert!(is_told());
}
