//! A primary and its standby by streaming replication, and what a fail-over manager does with them: it promotes the
//! standby, leads the clients there, and makes a new standby of the machine that failed.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::cluster::Cluster;

const DATABASE: &str = "waybill";
const POLL: Duration = Duration::from_millis(20);
/// For the standby to stream, to notice that its primary is gone, and to become one.
const STATE_MAX: Duration = Duration::from_secs(60);

/// A position in the log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `16/B374D848`
    pub fn parse(text: &str) -> Option<Lsn> {
        let (high, low) = text.trim().split_once('/')?;
        Some(Lsn((u64::from_str_radix(high, 16).ok()? << 32) | u64::from_str_radix(low, 16).ok()?))
    }
}

impl std::fmt::Display for Lsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// What the dead primary had written and the standby had not received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behind {
    pub bytes: u64,
    pub commits: u64,
}

/// One statement, as the superuser, whom row-level security does not bind.
pub async fn sql(on: &Cluster, text: &str) -> Result<String> {
    let port = on.port.to_string();
    let args = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    on.program("psql", &[&args[..], &["-d", DATABASE, "-c", text]].concat()).await
}

/// Every start after a crash or a copy would else fsync each file by itself, for seconds.
pub async fn prepare(primary: &Cluster) -> Result<()> {
    sql(primary, "ALTER SYSTEM SET recovery_init_sync_method = 'syncfs'").await.map(drop)
}

/// Asks until the answer is the one waited for.
async fn await_answer(on: &Cluster, text: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + STATE_MAX;
    let mut last = String::new();
    while Instant::now() < deadline {
        last = sql(on, text).await?;
        if last == wanted {
            return Ok(());
        }
        sleep(POLL).await;
    }
    bail!("{text} is {last:?} and not {wanted:?} after {STATE_MAX:?}")
}

/// Copies the primary into the standby's place, whatever was there, and starts it.
pub async fn follow(primary: u16, mut standby: Cluster) -> Result<(Cluster, Duration)> {
    let began = Instant::now();
    while standby.data().exists() {
        // Its parts live a moment longer than it does, and may still write.
        if let Err(error) = std::fs::remove_dir_all(standby.data())
            && began.elapsed() > STATE_MAX
        {
            return Err(error).context("clearing the old primary away");
        }
        sleep(POLL).await;
    }
    let port = primary.to_string();
    let mut args = vec!["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-D", "data"];
    args.extend(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
    standby.program("pg_basebackup", &args).await?;
    standby.start().await.context("the standby")?;
    Ok((standby, began.elapsed()))
}

/// Returns when the standby streams; from then on, if `synchronous`, no commit is answered before it has it too.
pub async fn attach(primary: &Cluster, synchronous: bool) -> Result<()> {
    await_answer(primary, "SELECT state FROM pg_stat_replication", "streaming").await?;
    if !synchronous {
        return Ok(());
    }
    sql(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
    sql(primary, "SELECT pg_reload_conf()").await?;
    await_answer(primary, "SELECT sync_state FROM pg_stat_replication", "sync").await
}

/// The process that sends the log to the standby.
async fn sender(primary: &Cluster) -> Result<u32> {
    let pid = sql(primary, "SELECT pid FROM pg_stat_replication").await?;
    pid.parse().with_context(|| format!("the log is sent by {pid:?}"))
}

pub async fn signal(pid: u32, signal: &str) -> Result<()> {
    let status = tokio::process::Command::new("kill").arg(signal).arg(pid.to_string()).status().await?;
    if !status.success() {
        bail!("kill {signal} {pid}: {status}");
    }
    Ok(())
}

/// How far the standby has come, once nothing more can come.
async fn received(standby: &Cluster) -> Result<Lsn> {
    await_answer(standby, "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'", "0").await?;
    let text = sql(standby, "SELECT pg_last_wal_receive_lsn()").await?;
    Lsn::parse(&text).with_context(|| format!("the standby has received {text:?}"))
}

async fn timeline(primary: &Cluster) -> Result<u32> {
    let text = sql(primary, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").await?;
    u32::from_str_radix(&text, 16).with_context(|| format!("the timeline is {text:?}"))
}

/// Read from the files of a primary that is down: what it had beyond that place.
async fn behind(dead: &Cluster, timeline: u32, received: Lsn) -> Result<Behind> {
    let (timeline, from) = (timeline.to_string(), received.to_string());
    let args = ["--path=data/pg_wal", "--rmgr=Transaction", "--timeline", &timeline, "--start", &from];
    // It ends with an error where the log ends; without a record beyond that place it says only that.
    let output = dead.attempt("pg_waldump", &args).await?;
    Ok(read_dump(&String::from_utf8_lossy(&output.stdout), received))
}

fn read_dump(dump: &str, received: Lsn) -> Behind {
    let mut behind = Behind::default();
    for line in dump.lines() {
        let lsn = line.split("lsn: ").nth(1).and_then(|rest| Lsn::parse(rest.split(',').next()?));
        let Some(lsn) = lsn.filter(|lsn| *lsn >= received) else { continue };
        behind.bytes = lsn.0 - received.0;
        behind.commits += u64::from(line.contains("desc: COMMIT"));
    }
    behind
}

/// SIGKILL of the primary, with its log held back from the standby for a while before. Says when, and what the standby lacks.
pub async fn kill_late(primary: &mut Cluster, standby: &Cluster, lag: Duration) -> Result<(Instant, Behind)> {
    let (timeline, sender) = (timeline(primary).await?, sender(primary).await?);
    signal(sender, "-STOP").await?;
    sleep(lag).await;
    let killed = Instant::now();
    primary.kill().await?;
    // A stopped process does not notice that its postmaster is gone.
    signal(sender, "-KILL").await?;
    let received = received(standby).await?;
    Ok((killed, behind(primary, timeline, received).await?))
}

/// Returns when the standby takes writes.
pub async fn promote(standby: &Cluster) -> Result<()> {
    standby.program("pg_ctl", &["promote", "-s", "-w", "-D", "data"]).await?;
    await_answer(standby, "SELECT pg_is_in_recovery()", "f").await
}

/// Where the clients of the pair connect; led to another machine by `aim`.
pub struct Gateway {
    pub port: u16,
    target: Arc<AtomicU16>,
    accepting: JoinHandle<()>,
}

impl Gateway {
    pub async fn start(target: u16) -> Result<Gateway> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (port, target) = (listener.local_addr()?.port(), Arc::new(AtomicU16::new(target)));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&target)));
        Ok(Gateway { port, target, accepting })
    }

    /// For new connections; those that are open end with the machine they lead to.
    pub fn aim(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
    }
}

impl Drop for Gateway {
    /// The connections belong to the accepting task and end with it.
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: Arc<AtomicU16>) {
    let mut relays = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let target = (Ipv4Addr::LOCALHOST, target.load(Ordering::SeqCst));
        relays.spawn(async move {
            let Ok(mut server) = TcpStream::connect(target).await else { return };
            // An error is a closed connection, and both ends see it as such.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        while relays.try_join_next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_read_back() {
        assert_eq!(Lsn::parse("1/0000000F"), Some(Lsn((1 << 32) + 15)));
        assert_eq!(Lsn::parse(&Lsn(0x16_b374_d848).to_string()), Some(Lsn(0x16_b374_d848)));
        assert_eq!(Lsn::parse(""), None);
    }

    #[test]
    fn only_commits_beyond_the_place_count() {
        let line = |lsn: &str, what: &str| {
            format!("rmgr: Transaction len (rec/tot): 34/ 34, tx: 7, lsn: {lsn}, prev 0/1, desc: {what} 2026-11-15\n")
        };
        let dump = [line("0/10", "COMMIT"), line("0/20", "COMMIT"), line("0/28", "ABORT"), line("0/30", "COMMIT")];
        let found = read_dump(&dump.concat(), Lsn(0x20));
        assert_eq!((found.bytes, found.commits), (0x10, 2));
        assert_eq!(read_dump("", Lsn(0x20)).commits, 0);
    }
}
