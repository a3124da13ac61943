//! The contestants, and the rounds in which they take turns.
//!
//! The machine is shared and its speed drifts, so nobody runs for long: each round gives every contestant one short
//! slice, every second round in reverse order, and only numbers of the same round are divided by each other. Heats keep the
//! servers of one question from running while another is measured.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::costs::Costs;
use crate::fleet::Fleet;
use crate::load::Outcome;
use crate::mail;
use crate::mesh;
use crate::queues::{self, Deed, Homes, House};

/// Between slices: time for a contestant to finish what it does behind its answers.
pub const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    Sqlite,
    Postgres,
}

/// What graphile-worker does in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Graphile {
    /// Jobs are added one by one.
    Add,
    /// Jobs are claimed and completed one by one, as is its default.
    Claim,
    /// Jobs are claimed and completed in batches, as it advises for speed.
    Batched,
}

/// What is written before each fdatasync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Raw {
    /// A record at the end of a file: the simplest program that keeps what it is told.
    Append,
    /// A block over one that is there already: the least a disk can be asked for.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    Fdatasync(Raw),
    Hello,
    Sqlite,
    Postgres,
    /// SendMessage of SQS, signed.
    Send(Engine),
    Pgbench,
    /// Create, lease and complete.
    Lifecycle(Engine),
    Graphile(Graphile),
    /// Open obligations out of a long ledger.
    Obligations(Engine),
    /// A claim out of an empty queue.
    Claim(Engine),
    /// A claim past a backlog of what the worker cannot do.
    ClaimPast(Engine),
    /// The ceiling once more, in the rounds of the queues.
    HelloBeside,
    Queue(House, Deed),
    /// The statements of SendMessage.
    PgbenchSends,
    Mail(mail::House, mail::Deed),
    /// The ceiling once more, in the rounds of the mesh.
    HelloMesh,
    Mesh(mesh::Deed),
}

/// Of the product on SQLite.
const fn queue(deed: Deed) -> Contestant {
    Contestant::Queue(House::Sqlite, deed)
}

/// Of the product, with little mail …
const fn mail_of_few(deed: mail::Deed) -> Contestant {
    Contestant::Mail(mail::House::Few, deed)
}

/// … and with 100,000 messages.
const fn mail_of_many(deed: mail::Deed) -> Contestant {
    Contestant::Mail(mail::House::Many, deed)
}

impl Contestant {
    pub const ALL: [Self; 52] = [
        Self::Fdatasync(Raw::Append),
        Self::Fdatasync(Raw::Over),
        Self::Hello,
        Self::Sqlite,
        Self::Postgres,
        Self::Send(Engine::Sqlite),
        Self::Send(Engine::Postgres),
        Self::Pgbench,
        Self::Lifecycle(Engine::Sqlite),
        Self::Lifecycle(Engine::Postgres),
        Self::Graphile(Graphile::Add),
        Self::Graphile(Graphile::Claim),
        Self::Graphile(Graphile::Batched),
        Self::Obligations(Engine::Sqlite),
        Self::Obligations(Engine::Postgres),
        Self::Claim(Engine::Sqlite),
        Self::Claim(Engine::Postgres),
        Self::ClaimPast(Engine::Sqlite),
        Self::ClaimPast(Engine::Postgres),
        Self::HelloBeside,
        queue(Deed::Send),
        queue(Deed::Batch),
        queue(Deed::Take),
        queue(Deed::EndToEnd),
        queue(Deed::Fifo),
        queue(Deed::Wake),
        Self::Queue(House::Postgres, Deed::Send),
        Self::PgbenchSends,
        queue(Deed::Few),
        queue(Deed::Many),
        queue(Deed::Free),
        queue(Deed::Locked),
        queue(Deed::Large),
        Self::Queue(House::Fauxqs, Deed::Send),
        Self::Queue(House::Fauxqs, Deed::Batch),
        Self::Queue(House::Fauxqs, Deed::Take),
        Self::Queue(House::ElasticMq, Deed::Send),
        Self::Queue(House::ElasticMq, Deed::Batch),
        Self::Queue(House::ElasticMq, Deed::Take),
        mail_of_few(mail::Deed::Send),
        mail_of_few(mail::Deed::Paced),
        mail_of_few(mail::Deed::Fetch),
        mail_of_few(mail::Deed::Guard),
        mail_of_many(mail::Deed::Send),
        mail_of_many(mail::Deed::Fetch),
        mail_of_many(mail::Deed::Search),
        Self::Mail(mail::House::AgentMail, mail::Deed::Send),
        Self::Mail(mail::House::AgentMail, mail::Deed::Fetch),
        Self::HelloMesh,
        Self::Mesh(mesh::Deed::Send),
        Self::Mesh(mesh::Deed::EndToEnd),
        Self::Mesh(mesh::Deed::Topics),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fdatasync(Raw::Append) => "fdatasync append",
            Self::Fdatasync(Raw::Over) => "fdatasync over",
            Self::Hello => "hello",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Send(Engine::Sqlite) => "sends sqlite",
            Self::Send(Engine::Postgres) => "sends postgres",
            Self::Pgbench => "pgbench",
            Self::Lifecycle(Engine::Sqlite) => "lifecycle sqlite",
            Self::Lifecycle(Engine::Postgres) => "lifecycle postgres",
            Self::Graphile(Graphile::Add) => "graphile add",
            Self::Graphile(Graphile::Claim) => "graphile claim",
            Self::Graphile(Graphile::Batched) => "graphile batched",
            Self::Obligations(Engine::Sqlite) => "obligations sqlite",
            Self::Obligations(Engine::Postgres) => "obligations postgres",
            Self::Claim(Engine::Sqlite) => "claim sqlite",
            Self::Claim(Engine::Postgres) => "claim postgres",
            Self::ClaimPast(Engine::Sqlite) => "claim past sqlite",
            Self::ClaimPast(Engine::Postgres) => "claim past postgres",
            Self::HelloBeside => "hello beside queues",
            Self::Queue(house, deed) => queues::name(house, deed),
            Self::PgbenchSends => "pgbench sends",
            Self::Mail(house, deed) => mail::name(house, deed),
            Self::HelloMesh => "hello beside the mesh",
            Self::Mesh(deed) => mesh::name(deed),
        }
    }

    /// The name that `--only` knows it by.
    pub fn part(self) -> &'static str {
        match self {
            Self::Fdatasync(_) => "fdatasync",
            Self::Lifecycle(_) => "lifecycle",
            Self::Send(_) => "sends",
            Self::Graphile(_) => "graphile",
            Self::Obligations(_) => "obligations",
            Self::Claim(_) | Self::ClaimPast(_) => "backlog",
            Self::Queue(House::Fauxqs | House::ElasticMq, _) => "rivals",
            Self::Queue(_, Deed::Few | Deed::Many | Deed::Free | Deed::Locked | Deed::Large) => "depths",
            Self::HelloBeside | Self::Queue(..) | Self::PgbenchSends => "queues",
            Self::Mail(mail::House::AgentMail, _) => "mail-rivals",
            Self::Mail(..) => "mail",
            Self::HelloMesh | Self::Mesh(_) => "mesh",
            alone => alone.name(),
        }
    }

    /// The store of the product that it measures.
    pub fn engine(self) -> Option<Engine> {
        match self {
            Self::Sqlite => Some(Engine::Sqlite),
            Self::Postgres => Some(Engine::Postgres),
            Self::Lifecycle(engine) | Self::Obligations(engine) | Self::Send(engine) => Some(engine),
            Self::Claim(engine) | Self::ClaimPast(engine) => Some(engine),
            Self::Queue(House::Sqlite, _) => Some(Engine::Sqlite),
            Self::Queue(House::Postgres, _) => Some(Engine::Postgres),
            Self::Fdatasync(_) | Self::Hello | Self::Pgbench | Self::Graphile(_) => None,
            Self::HelloBeside | Self::Queue(..) | Self::PgbenchSends => None,
            Self::Mail(mail::House::Few | mail::House::Many, _) => Some(Engine::Sqlite),
            Self::Mail(mail::House::AgentMail, _) | Self::HelloMesh | Self::Mesh(_) => None,
        }
    }
}

/// A contestant and its number of connections.
pub type Slot = (Contestant, usize);

/// In the order of a round: those that are compared stand close to each other.
const HEATS: [&[Slot]; 10] = [
    &[
        (Contestant::Fdatasync(Raw::Over), 1),
        (Contestant::Sqlite, 1),
        (Contestant::Fdatasync(Raw::Append), 1),
        (Contestant::Hello, 1),
        (Contestant::Postgres, 1),
        (Contestant::Postgres, 8),
        (Contestant::Hello, 8),
        (Contestant::Sqlite, 8),
        (Contestant::Sqlite, 64),
        (Contestant::Hello, 64),
        (Contestant::Send(Engine::Sqlite), 64),
        (Contestant::Send(Engine::Postgres), 64),
        (Contestant::Postgres, 64),
        (Contestant::Postgres, 32),
        (Contestant::Pgbench, 32),
    ],
    &[
        (Contestant::Lifecycle(Engine::Sqlite), 1),
        (Contestant::Lifecycle(Engine::Sqlite), 64),
        (Contestant::Lifecycle(Engine::Postgres), 8),
        (Contestant::Lifecycle(Engine::Postgres), 32),
        (Contestant::Graphile(Graphile::Add), 32),
        (Contestant::Graphile(Graphile::Claim), 32),
        (Contestant::Graphile(Graphile::Batched), 32),
    ],
    &[(Contestant::Obligations(Engine::Sqlite), 1), (Contestant::Obligations(Engine::Postgres), 1)],
    &[
        (Contestant::Claim(Engine::Sqlite), 1),
        (Contestant::ClaimPast(Engine::Sqlite), 1),
        (Contestant::Claim(Engine::Postgres), 1),
        (Contestant::ClaimPast(Engine::Postgres), 1),
    ],
    &[
        (queue(Deed::Send), 64),
        (queue(Deed::Batch), 64),
        (Contestant::HelloBeside, 64),
        (queue(Deed::Take), 64),
        (queue(Deed::Fifo), 64),
        (queue(Deed::EndToEnd), 32),
        (queue(Deed::Wake), 1),
    ],
    &[(Contestant::Queue(House::Postgres, Deed::Send), 32), (Contestant::PgbenchSends, 32)],
    &[
        (queue(Deed::Send), 16),
        (Contestant::Queue(House::Fauxqs, Deed::Send), 16),
        (Contestant::Queue(House::ElasticMq, Deed::Send), 16),
        (Contestant::Queue(House::ElasticMq, Deed::Batch), 16),
        (Contestant::Queue(House::Fauxqs, Deed::Batch), 16),
        (queue(Deed::Batch), 16),
        (queue(Deed::Take), 16),
        (Contestant::Queue(House::Fauxqs, Deed::Take), 16),
        (Contestant::Queue(House::ElasticMq, Deed::Take), 16),
    ],
    &[
        (queue(Deed::Few), 1),
        (queue(Deed::Many), 1),
        (queue(Deed::Free), 1),
        (queue(Deed::Locked), 1),
        (queue(Deed::Large), 1),
    ],
    &[
        // With more connections mcp-agent-mail 0.1.0 comes to a stand.
        (Contestant::Mail(mail::House::AgentMail, mail::Deed::Send), 4),
        (mail_of_few(mail::Deed::Send), 4),
        (mail_of_few(mail::Deed::Send), 64),
        (mail_of_few(mail::Deed::Send), 8),
        (mail_of_many(mail::Deed::Send), 8),
        (mail_of_few(mail::Deed::Paced), 8),
        (Contestant::Mail(mail::House::AgentMail, mail::Deed::Fetch), 4),
        (mail_of_few(mail::Deed::Fetch), 4),
        (mail_of_few(mail::Deed::Fetch), 8),
        (mail_of_many(mail::Deed::Fetch), 8),
        (mail_of_many(mail::Deed::Search), 1),
        (mail_of_few(mail::Deed::Guard), 1),
    ],
    &[
        (Contestant::Mesh(mesh::Deed::Send), 64),
        (Contestant::HelloMesh, 64),
        (Contestant::Mesh(mesh::Deed::Topics), 16),
        (Contestant::Mesh(mesh::Deed::EndToEnd), 1),
    ],
];

pub struct Settings {
    pub waybill: PathBuf,
    pub pg_bin: Option<PathBuf>,
    /// Where npm has installed graphile-worker and its node.
    pub graphile: Option<PathBuf>,
    pub rivals: Homes,
    /// The virtual environment that has mcp-agent-mail.
    pub agent_mail: Option<PathBuf>,
    pub measure: Duration,
    pub rounds: usize,
    pub idempotent: bool,
    pub contestants: Vec<Contestant>,
}

pub struct Sample {
    pub ops_per_second: f64,
    pub p50_us: Option<f64>,
    pub p95_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Of mail, the 99th percentile from the answer to the archive.
    pub archive_lag_us: Option<f64>,
    /// Of one core, that the load client took.
    pub client_cpu: Option<f64>,
    pub costs: Costs,
    pub errors: BTreeMap<String, u64>,
}

impl Sample {
    pub fn new(outcome: Outcome, costs: Costs) -> Result<Self> {
        if outcome.ops == 0 {
            bail!("not one success: {:?}", outcome.errors);
        }
        Ok(Self {
            ops_per_second: outcome.ops as f64 / outcome.seconds,
            p50_us: outcome.latencies.quantile_us(0.5),
            p95_us: outcome.latencies.quantile_us(0.95),
            p99_us: outcome.latencies.quantile_us(0.99),
            archive_lag_us: None,
            client_cpu: outcome.client_cpu,
            costs,
            errors: outcome.errors,
        })
    }
}

#[derive(Default)]
pub struct Results {
    /// One entry per round, so that equal positions belong to the same round.
    pub samples: BTreeMap<Slot, Vec<Option<Sample>>>,
    /// Who could not run, and why.
    pub failures: BTreeMap<String, String>,
}

pub async fn run(settings: &Settings, dir: &Path, results: &mut Results) -> Result<()> {
    let mut fleet = Fleet::new(settings, dir);
    for heat in HEATS {
        let slots = heat.iter().filter(|(contestant, _)| settings.contestants.contains(contestant));
        let slots: Vec<Slot> = slots.copied().collect();
        run_heat(&mut fleet, settings, slots, results).await?;
        fleet.dismiss()?;
    }
    Ok(())
}

async fn run_heat(
    fleet: &mut Fleet<'_>,
    settings: &Settings,
    mut slots: Vec<Slot>,
    results: &mut Results,
) -> Result<()> {
    for contestant in Contestant::ALL {
        if !slots.iter().any(|slot| slot.0 == contestant) {
            continue;
        }
        writeln!(std::io::stderr(), "preparing {}", contestant.name())?;
        if let Err(error) = fleet.prepare(contestant).await {
            results.failures.insert(contestant.name().to_owned(), format!("{error:#}"));
            slots.retain(|slot| slot.0 != contestant);
        }
    }
    for round in 1..=settings.rounds {
        for slot in &slots {
            let name = format!("{} at {}", slot.0.name(), slot.1);
            writeln!(std::io::stderr(), "round {round} of {}: {name}", settings.rounds)?;
            let sample = fleet.slice(*slot).await;
            let sample = sample.map_err(|error| results.failures.insert(name, format!("{error:#}"))).ok();
            results.samples.entry(*slot).or_default().push(sample);
            tokio::time::sleep(PAUSE).await;
        }
        slots.reverse();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_slot_and_a_name_of_their_own() {
        let slots: Vec<Slot> = HEATS.into_iter().flatten().copied().collect();
        let mut names: Vec<&str> = Contestant::ALL.map(Contestant::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Contestant::ALL.len());
        for contestant in Contestant::ALL {
            assert!(slots.iter().any(|slot| slot.0 == contestant), "{}", contestant.name());
        }
    }
}
