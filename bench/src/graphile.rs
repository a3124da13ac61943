//! graphile-worker, a job queue in PostgreSQL that many people use, on the same cluster: no HTTP, no keys, no receipts.
//! A small driver in its own language calls its library as an application would.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::{self, Cluster};
use crate::contest::{Graphile, Sample};
use crate::costs::wal_costs;

const DRIVER: &str = include_str!("../graphile/driver.mjs");

pub struct Installed {
    home: PathBuf,
    driver: PathBuf,
    url: String,
}

impl Installed {
    /// `home` is where npm has put node and graphile-worker; the driver is written to `dir`.
    pub fn new(home: &Path, dir: &Path, url: String) -> Result<Self> {
        let home = home.canonicalize().with_context(|| format!("no folder {}", home.display()))?;
        if !home.join("node_modules/graphile-worker").is_dir() {
            bail!("npm has not installed graphile-worker in {}", home.display());
        }
        let driver = dir.join("graphile.mjs");
        std::fs::write(&driver, DRIVER)?;
        Ok(Self { home, driver, url })
    }

    pub async fn slice(
        &self,
        cluster: &Cluster,
        what: Graphile,
        connections: usize,
        warmup: Duration,
        measure: Duration,
    ) -> Result<Sample> {
        let before = cluster.wal().await?;
        let mode = match what {
            Graphile::Add => "add",
            Graphile::Claim => "claim",
            Graphile::Batched => "batched",
        };
        let mut command = Command::new(self.home.join("node_modules/node/bin/node"));
        command.arg(&self.driver).arg(&self.home).args([&self.url, mode, &connections.to_string()]);
        command.args([warmup.as_millis().to_string(), measure.as_millis().to_string()]);
        // It says so for every job otherwise.
        command.env("NO_LOG_SUCCESS", "1");
        let output = cluster::run(command, "graphile-worker's driver").await?;
        let mut sample = parse(&output)?;
        // The jobs that a claiming slice needs are added before it, in the same count of bytes.
        if what == Graphile::Add {
            let ops = (sample.ops_per_second * (warmup + measure).as_secs_f64()) as u64;
            sample.costs = wal_costs(&before, &cluster.wal().await?, ops);
            sample.costs.fsyncs = None;
        }
        Ok(sample)
    }
}

/// The last line of the driver's output is its result.
fn parse(output: &str) -> Result<Sample> {
    let line = output.lines().last().context("the driver said nothing")?;
    let result: Value = serde_json::from_str(line).with_context(|| format!("no result in {line:?}"))?;
    let number = |field: &str| result[field].as_f64();
    let (ops, seconds) = number("ops").zip(number("seconds")).with_context(|| format!("no figures in {line:?}"))?;
    if ops < 1.0 || seconds <= 0.0 {
        bail!("not one success: {line}");
    }
    let mut sample = Sample {
        ops_per_second: ops / seconds,
        p50_us: number("p50_us"),
        p95_us: None,
        p99_us: number("p99_us"),
        archive_lag_us: None,
        client_cpu: None,
        costs: crate::costs::Costs::default(),
        errors: std::collections::BTreeMap::new(),
    };
    if let Some(errors) = result["errors"].as_u64().filter(|errors| *errors > 0) {
        sample.errors.insert("failed job".to_owned(), errors);
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_output() {
        let sample = parse("a word\n{\"ops\":600,\"seconds\":2,\"p50_us\":900.5,\"errors\":3}\n").unwrap();
        assert!((sample.ops_per_second - 300.0).abs() < 0.01);
        assert_eq!((sample.p50_us, sample.p99_us), (Some(900.5), None));
        assert_eq!(sample.errors.len(), 1);
        assert!(parse("").is_err() && parse("{\"ops\":0,\"seconds\":1}").is_err());
    }
}
