//! What an operation costs beside time: fsyncs, bytes, the writer, the processor.

use anyhow::{Result, bail};

use crate::cluster::Wal;
use crate::http;
use crate::process::{Server, cpu_seconds, written_bytes};

/// What one operation cost, by the counters of the server, the kernel and PostgreSQL.
#[derive(Clone, Default)]
pub struct Costs {
    pub fsyncs: Option<f64>,
    pub bytes: Option<f64>,
    pub writer_us: Option<f64>,
    /// Of the server's process only.
    pub cpu_us: Option<f64>,
    pub ops_per_commit: Option<f64>,
}

/// Differences of counters, divided by a number of operations; a counter that is missing stays missing.
pub struct PerOp(pub u64);

impl PerOp {
    pub fn share(&self, before: Option<f64>, after: Option<f64>, unit: f64) -> Option<f64> {
        Some((after? - before?) * unit / self.0.max(1) as f64)
    }
}

/// What a server has done since its start.
pub struct Counters {
    commits: Option<f64>,
    fsyncs: Option<f64>,
    ops: Option<f64>,
    writer_seconds: Option<f64>,
    cpu_seconds: Option<f64>,
    written_bytes: Option<f64>,
}

impl Counters {
    pub async fn read(server: &Server) -> Result<Self> {
        let answer = http::get(server.http, "/metrics", server.key.as_deref()).await?;
        if answer.status != 200 {
            bail!("/metrics answered {}", answer.status);
        }
        let text = &answer.body;
        // The log goes to a file only here, so it is not part of the price.
        let log_bytes = server.log_bytes();
        Ok(Self {
            commits: http::counter(text, "waybill_store_commits_total"),
            fsyncs: http::counter(text, "waybill_store_fsyncs_total"),
            ops: http::counter(text, "waybill_store_ops_total"),
            writer_seconds: http::counter(text, "waybill_store_writer_busy_nanoseconds_total").map(|ns| ns / 1e9),
            cpu_seconds: cpu_seconds(server.pid()),
            written_bytes: written_bytes(server.pid()).map(|bytes| bytes.saturating_sub(log_bytes) as f64),
        })
    }

    pub fn since(&self, before: &Self, ops: u64) -> Costs {
        let per_op = PerOp(ops);
        let commits = self.commits.zip(before.commits).map(|(after, before)| after - before);
        let stored = self.ops.zip(before.ops).map(|(after, before)| after - before);
        Costs {
            fsyncs: per_op.share(before.fsyncs, self.fsyncs, 1.0),
            bytes: per_op.share(before.written_bytes, self.written_bytes, 1.0),
            writer_us: per_op.share(before.writer_seconds, self.writer_seconds, 1e6),
            cpu_us: per_op.share(before.cpu_seconds, self.cpu_seconds, 1e6),
            ops_per_commit: stored
                .zip(commits)
                .filter(|(_, commits)| *commits > 0.0)
                .map(|(ops, commits)| ops / commits),
        }
    }
}

pub fn wal_costs(before: &Wal, after: &Wal, ops: u64) -> Costs {
    let per_op = PerOp(ops);
    Costs {
        fsyncs: per_op.share(before.syncs, after.syncs, 1.0),
        bytes: per_op.share(Some(before.bytes), Some(after.bytes), 1.0),
        ..Costs::default()
    }
}
