//! `pgbench` against the tables the product has made.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::{self, Cluster, USER};
use crate::load::Outcome;

/// What the product sends, as a script for pgbench.
pub const CREATE_TASK: &str = include_str!("create_task.pgbench.sql");
pub const SEND_MESSAGE: &str = include_str!("send_message.pgbench.sql");

/// The same statements from pgbench: what PostgreSQL does when nothing stands before it.
pub async fn run(cluster: &Cluster, database: &str, text: &str, clients: usize, measure: Duration) -> Result<Outcome> {
    let script = cluster.dir.with_extension("sql");
    std::fs::write(&script, text)?;
    let (port, clients) = (cluster.port.to_string(), clients.to_string());
    let seconds = measure.as_secs().max(1).to_string();
    let mut command = Command::new(cluster.bin.join("pgbench"));
    command.args(["-h", "127.0.0.1", "-p", &port, "-U", USER, "-n", "-M", "prepared", "-j", "2"]);
    command.args(["-c", &clients, "-T", &seconds, "-f"]).arg(&script).arg(database);
    parse(&cluster::run(command, "pgbench").await?)
}

fn parse(output: &str) -> Result<Outcome> {
    let field = |prefix: &str| {
        let value = output.lines().find_map(|line| line.strip_prefix(prefix))?.split_whitespace().next()?;
        value.parse::<f64>().ok()
    };
    let per_second = field("tps = ").with_context(|| format!("no tps in pgbench's output: {output}"))?;
    let ops = field("number of transactions actually processed: ").context("no number of transactions")?;
    let mut outcome = Outcome { ops: ops as u64, ops_total: ops as u64, ..Outcome::default() };
    if per_second > 0.0 {
        outcome.seconds = ops / per_second;
    }
    if let Some(failed) = field("number of failed transactions: ").filter(|failed| *failed > 0.0) {
        outcome.errors.insert("failed transaction".to_owned(), failed as u64);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbench_output() {
        let output = "scaling factor: 1\nnumber of transactions actually processed: 8000\n\
            number of failed transactions: 2 (0.025%)\nlatency average = 8.0 ms\n\
            tps = 4000.5 (without initial connection time)\n";
        let outcome = parse(output).unwrap();
        assert_eq!(outcome.ops, 8000);
        assert!((outcome.seconds - 2.0).abs() < 0.01);
        assert_eq!(outcome.errors.len(), 1);
        assert!(parse("nothing").is_err());
    }
}
