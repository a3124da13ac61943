//! One FIFO queue in one store, and one whose four partitions are in four stores: what the others add where the disk is slow,
//! and what they cost where it is not.
//!
//! The slow disk is made: each commit takes longer by some milliseconds and holds a few operations at most. On SQLite that takes
//! a program with the feature `sabotage` (`WAYBILL_SLOW_DISK`), on PostgreSQL its own `commit_delay` and so few lanes that one
//! transaction at a time carries the sends of a queue, eight at most: one flush of the log has no more operations than that.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::process::Server;
use crate::queues::{Counter, opened_at};
use crate::table::print_table;
use crate::targets::Target;
use crate::wire::Wire;

const STORES: [&str; 4] = ["a", "b", "c", "d"];
const CONNECTIONS: usize = 64;
const BODY_BYTES: usize = 256;
const COMMIT_DELAY_MS: u64 = 10;
const COMMIT_OPERATIONS_MAX: u64 = 8;
const SLOW_LEAST: f64 = 3.0;
/// Within a tenth.
const USUAL_LEAST: f64 = 0.9;
/// `commit_delay` is waited for when so many others are about to commit; none is the least there is.
const SLOW_POSTGRES: [&str; 2] = ["commit_delay=10000", "commit_siblings=0"];

pub struct Asked {
    /// With the feature `sabotage`.
    pub waybill: PathBuf,
    pub pg_bin: Option<PathBuf>,
    pub slice: Duration,
    pub rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    Sqlite,
    Postgres,
}

/// What four partitions are to give, as a multiple of one: where the disk is the limit, and where it is not.
fn target(engine: Engine, slow: bool, ratio: f64) -> Target {
    let (name, least) = match (engine, slow) {
        (Engine::Sqlite, true) => ("sqlite, slow disk, four partitions over one", SLOW_LEAST),
        (Engine::Sqlite, false) => ("sqlite, as it is, four partitions over one", USUAL_LEAST),
        (Engine::Postgres, true) => ("postgres, slow disk, four partitions over one", SLOW_LEAST),
        (Engine::Postgres, false) => ("postgres, as it is, four partitions over one", USUAL_LEAST),
    };
    Target::times_at_least(name, least, Some(ratio).filter(|ratio| ratio.is_finite()))
}

pub async fn run(asked: &Asked, dir: &Path) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "sends/s to a FIFO queue, {CONNECTIONS} connections, each to a group of its own; medians of {} rounds",
        asked.rounds
    )?;
    writeln!(
        out,
        "slow disk: {COMMIT_DELAY_MS} ms more for each commit of at most {COMMIT_OPERATIONS_MAX} operations, for one and for four"
    )?;
    let mut targets = vec![["target", "wanted", "measured", "met"].map(str::to_owned).to_vec()];
    for (engine, name) in [(Engine::Sqlite, "sqlite"), (Engine::Postgres, "postgres")] {
        for slow in [true, false] {
            let home = dir.join(format!("{name}-{slow}"));
            std::fs::create_dir(&home)?;
            let rounds = contest(asked, engine, slow, &home).await.with_context(|| format!("{name}, slow: {slow}"))?;
            let (one, four) =
                (median(rounds.iter().map(|(one, _)| *one)), median(rounds.iter().map(|(_, four)| *four)));
            let ratio = median(rounds.iter().map(|(one, four)| four / one));
            let disk = if slow { "slow disk" } else { "as it is" };
            writeln!(
                out,
                "{name:<9} {disk:<10} one partition {one:>7.0}   four in four stores {four:>7.0}   {ratio:.2} x"
            )?;
            targets.push(target(engine, slow, ratio).row());
        }
    }
    writeln!(out)?;
    print_table(&mut out, &targets)
}

/// One and four, in turn; both queues are in one server.
async fn contest(asked: &Asked, engine: Engine, slow: bool, dir: &Path) -> Result<Vec<(f64, f64)>> {
    let clusters = match engine {
        Engine::Sqlite => Vec::new(),
        Engine::Postgres => clusters(asked, slow, dir).await?,
    };
    let settings = dir.join("settings.toml");
    std::fs::write(&settings, settings_of(&clusters, slow))?;
    let more: Vec<OsString> = vec!["--config".into(), settings.into()];
    let disk = format!("{COMMIT_DELAY_MS}:{COMMIT_OPERATIONS_MAX}");
    let environment = (slow && engine == Engine::Sqlite).then_some(("WAYBILL_SLOW_DISK", disk.as_str()));
    let server = Server::waybill_in(&asked.waybill, &dir.join("data"), &more, environment).await?;
    let one = opened_at(&server, "one.fifo", &json!({ "FifoQueue": "true" })).await?;
    let split = json!({ "FifoQueue": "true", "PartitionCount": STORES.len().to_string() });
    let four = opened_at(&server, "four.fifo", &split).await?;
    let mut rounds = Vec::new();
    for round in 0..asked.rounds {
        rounds.push((sends(&one, round, asked.slice).await?, sends(&four, round, asked.slice).await?));
    }
    server.stop().await?;
    Ok(rounds)
}

async fn clusters(asked: &Asked, slow: bool, dir: &Path) -> Result<Vec<Cluster>> {
    let settings = if slow { SLOW_POSTGRES.as_slice() } else { &[] };
    let mut clusters = Vec::new();
    for name in STORES {
        clusters.push(Cluster::start_with(asked.pg_bin.as_deref(), &dir.join(format!("pg-{name}")), settings).await?);
    }
    Ok(clusters)
}

/// Both queues are in one server, so what is slow is slow for both.
fn settings_of(clusters: &[Cluster], slow: bool) -> String {
    let store = |place: usize, name: &str| match clusters.get(place) {
        Some(cluster) => format!("{name} = \"{}\"\n", cluster.url()),
        None => format!("{name} = \"sqlite:{name}.db\"\n"),
    };
    let stores: String = STORES.iter().enumerate().map(|(place, name)| store(place, name)).collect();
    let (first, all, count) = (STORES[0], STORES.join(","), STORES.len());
    let lanes = if slow { format!("[postgres]\nlanes = {COMMIT_OPERATIONS_MAX}\n\n") } else { String::new() };
    format!(
        "{lanes}[shards]\n{stores}\n[sqs]\nfifo_partition_map = [\"one.fifo:1={first}\", \"four.fifo:{count}={all}\"]\n"
    )
}

async fn sends(counter: &Counter, round: usize, slice: Duration) -> Result<f64> {
    let (began, until) = (Instant::now(), Instant::now() + slice);
    let mut senders = JoinSet::new();
    for connection in 0..CONNECTIONS {
        senders.spawn(send_until(counter.clone(), round, connection, until));
    }
    let mut sent = 0;
    while let Some(own) = senders.join_next().await {
        sent += own??;
    }
    Ok(sent as f64 / began.elapsed().as_secs_f64())
}

async fn send_until(counter: Counter, round: usize, connection: usize, until: Instant) -> Result<u64> {
    let mut wire = Wire::connect(counter.addr).await?;
    let (body, mut sent) = ("m".repeat(BODY_BYTES), 0);
    while Instant::now() < until {
        let (group, id) = (format!("g{connection}"), format!("{round}-{connection}-{sent}"));
        let input = json!({ "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": id });
        let status = wire.exchange(&counter.post("SendMessage", input)?).await?;
        if status != 200 {
            bail!("a send was answered {status}: {}", String::from_utf8_lossy(wire.response()));
        }
        sent += 1;
    }
    Ok(sent)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_partitions_are_held_to_what_is_wanted_of_them() {
        for (slow, ratio, met) in [(true, 3.0, "yes"), (true, 2.9, "NO"), (false, 0.9, "yes"), (false, 0.89, "NO")] {
            for engine in [Engine::Sqlite, Engine::Postgres] {
                assert_eq!(target(engine, slow, ratio).row()[3], met, "slow: {slow}, {ratio}");
            }
        }
        assert_eq!(target(Engine::Sqlite, true, f64::NAN).row()[3], "not measured");
    }

    #[test]
    fn a_slow_commit_holds_a_few_operations_on_either_engine() {
        assert!(settings_of(&[], true).starts_with("[postgres]\nlanes = 8\n"));
        assert!(!settings_of(&[], false).contains("lanes"));
    }
}
