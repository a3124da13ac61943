//! fsync and fdatasync fail with EIO under the server: once, a few times in a row, or from some moment on for good.
//!
//! The kernel may have dropped what it could not write, so a later success proves nothing: the callers must be told that
//! nobody knows, nothing may be acknowledged before the file has been verified, and the retries must end as one task
//! each. While the disk stays broken no write is acknowledged and the server is not ready; reads go on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::{After, Scenario, configure};
use crate::checker::{Invariant, Violation};
use crate::client::Client;
use crate::history::Op;
use crate::load::{Load, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// After the commits of the start, which other threads make.
const NTH_MIN: u64 = 10;
const NTH_MAX: u64 = 40;
const IN_A_ROW_MAX: u64 = 3;
const LOAD_MS_MAX: u64 = 900;
/// Attempts to verify the file come quickly, so that a round stays short; who asks whether the server is ready hears how
/// it is now, and not how it was before the commit that failed.
const SETTINGS: &str = "[doors]\nprobe_ms = 0\n[sqlite]\nreopen_pause_ms = 100\n";
const REOPENED: &str = "waybill_store_reopened_total";
const UNKNOWN: &str = "503 unavailable";
/// Met by those who come while writing has stopped: surely nothing of them happened.
const STOPPED: &str = "503 store_unavailable";
/// A busy machine takes its time to attach strace to every thread.
const TROUBLE_MAX: Duration = Duration::from_secs(30);
/// The load goes on for so long in search of a commit that fails and is made up for.
const RECOVERY_MAX: Duration = Duration::from_millis(2_500);
/// And without load the server has this long to verify its file.
const SERVICE_MAX: Duration = Duration::from_secs(30);
/// The load goes on for this long after the recovery, or in vain.
const AFTERWARDS: Duration = Duration::from_millis(200);
/// Longer than the last calls take.
const SETTLED: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Once,
    Row(u64),
    ForGood,
}

pub struct FsyncError {
    folder: PathBuf,
    rng: Rng,
    round: u32,
    /// Rounds in which a commit failed.
    met: u32,
    nth: u64,
    shape: Shape,
    reopened: u64,
    /// Rounds in which the server asked to be started again.
    restarted: u32,
    /// It has done so in this round.
    has_stopped: bool,
    found: Vec<Violation>,
    told: String,
}

impl FsyncError {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        FsyncError {
            folder,
            rng,
            round: 0,
            met: 0,
            nth: 0,
            shape: Shape::Once,
            reopened: 0,
            restarted: 0,
            has_stopped: false,
            found: Vec::new(),
            told: String::new(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn choose(&mut self) {
        self.nth = NTH_MIN + self.rng.below(NTH_MAX - NTH_MIN + 1);
        // In turn, so that a short run has all of them.
        self.shape = match self.round % 3 {
            0 => Shape::Once,
            1 => Shape::Row(2 + self.rng.below(IN_A_ROW_MAX - 1)),
            _ => Shape::ForGood,
        };
        self.round += 1;
    }
}

fn wrapper(nth: u64, shape: Shape) -> Vec<String> {
    let when = match shape {
        Shape::Once => nth.to_string(),
        Shape::Row(count) => format!("{nth}..{}", nth + count - 1),
        Shape::ForGood => "1+".to_owned(),
    };
    let inject = format!("inject=fsync,fdatasync:error=EIO:when={when}");
    ["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", &inject]
        .map(str::to_owned)
        .to_vec()
}

/// From the moment it has attached, every fsync of the process fails. Ends with the process.
fn break_disk(pid: u32) -> Result<Child> {
    let inject = "inject=fsync,fdatasync:error=EIO";
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject, "-p", &pid.to_string()]);
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).kill_on_drop(true);
    strace.spawn().context("attaching strace")
}

/// What only the answers can tell.
fn judge(shape: Shape, tally: &Tally, reopened: u64, has_stopped: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (kind, count) in &tally.unknowns {
        if kind != UNKNOWN && kind != STOPPED {
            violations.push(Violation::new(Invariant::Unserved, format!("{count} × {kind} instead of {UNKNOWN}")));
        }
    }
    for (kind, count) in &tally.refusals {
        let detail = format!("{count} × {kind}, although nothing was wrong with the request");
        violations.push(Violation::new(Invariant::Unserved, detail));
    }
    let Some(failed) = tally.first_unknown else { return violations };
    if shape == Shape::ForGood {
        let hollow = tally.stamps.iter().filter(|stamp| stamp.began > failed);
        violations.extend(hollow.map(|stamp| {
            Violation::of(Invariant::Hollow, stamp.op, "acknowledged after every fsync had begun to fail")
        }));
    } else if reopened == 0 && (!has_stopped || tally.stamps.iter().any(|stamp| stamp.began > failed)) {
        let detail = "a commit failed, and the file was never opened again and verified";
        violations.push(Violation::new(Invariant::Unverified, detail));
    }
    violations
}

impl Scenario for FsyncError {
    async fn prepare(&mut self, launch: &mut Launch) -> Result<PathBuf> {
        configure(&self.folder, SETTINGS, launch)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// The server of the check was started as always; the one for the load has the failing disk.
    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        server.shut_down().await?;
        self.choose();
        self.reopened = 0;
        self.has_stopped = false;
        // strace counts each thread's fsyncs for itself: for good is for all of them only when it comes later.
        let wrapper = if self.shape == Shape::ForGood { Vec::new() } else { wrapper(self.nth, self.shape) };
        let broken = Launch { wrapper, ..launch.clone() };
        Server::start(&broken, data).await.map(Some)
    }

    async fn strike(&mut self, server: Server, load: &Load) -> Result<After> {
        if self.shape == Shape::ForGood {
            let _strace = break_disk(server.pid())?;
            if !server.await_trouble(TROUBLE_MAX).await {
                let detail = format!("still ready {TROUBLE_MAX:?} after every fsync began to fail");
                self.found.push(Violation::new(Invariant::Hollow, detail));
            }
            sleep(AFTERWARDS).await;
            let mut client = Client::new(server.endpoint.clone());
            let read = client.list(1, None).await;
            if !read.as_ref().is_ok_and(|answer| answer.success()) {
                let why = read.map_or_else(|error| format!("{error:#}"), |answer| answer.brief());
                self.found.push(Violation::new(Invariant::Unserved, format!("a read on a broken disk: {why}")));
            }
            // What is answered from here on may still be "unknown", which the retries settle.
            load.cut();
            server.kill().await?;
            return Ok(After::Restart(self.data()));
        }
        let mut client = Client::new(server.endpoint.clone());
        let began = Instant::now();
        while client.figure(REOPENED).await? == 0 && began.elapsed() < RECOVERY_MAX && !client.wants_restart().await {
            sleep(LOOK).await;
        }
        sleep(AFTERWARDS).await;
        // Another fsync may have failed just now: nothing more is asked for, and the last calls are answered.
        load.stop();
        sleep(SETTLED).await;
        // Who is not answered by now may meet the end of the server, and was promised nothing.
        load.cut();
        if client.wants_restart().await {
            // The fsync that failed was that of a checkpoint: a start copies the whole log again.
            self.restarted += 1;
            self.has_stopped = true;
            self.reopened = client.figure(REOPENED).await?;
            server.kill().await?;
            return Ok(After::Restart(self.data()));
        }
        let came_back = server.await_service(SERVICE_MAX).await.is_ok();
        // Over a new connection: the server may have closed the other one meanwhile.
        self.reopened = Client::new(server.endpoint.clone()).figure(REOPENED).await?;
        if came_back {
            // Its disk goes on failing, by and by in every thread: what it has promised is asked of the next one.
            server.kill().await?;
            return Ok(After::Restart(self.data()));
        }
        // The campaign's to tell, with more patience.
        Ok(After::Serving(Box::new(server)))
    }

    fn judge(&mut self, tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        let answers: Vec<String> = tally.unknowns.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        let when = match self.shape {
            Shape::Once => format!("fsync {} failed", self.nth),
            Shape::Row(count) => format!("{count} fsyncs from the {}th on failed", self.nth),
            Shape::ForGood => "every fsync from one moment on failed".to_owned(),
        };
        let met = tally.first_unknown.is_some();
        self.met += u32::from(met);
        let answers = if met { answers.join(", ") } else { "nothing: it was not reached".to_owned() };
        self.told = format!("{when}, answered {answers}, reopened {}", self.reopened);
        let mut violations = std::mem::take(&mut self.found);
        violations.extend(judge(self.shape, tally, self.reopened, self.has_stopped));
        violations
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        ensure!(self.met > 0 || self.round == 0, "no commit failed in {} rounds, so nothing was tested", self.round);
        let restarted = self.restarted;
        Ok(Some(format!("a commit failed in {} of {} rounds, a checkpoint in {restarted}", self.met, self.round)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Stamp;

    fn names(shape: Shape, tally: &Tally, reopened: u64) -> Vec<&'static str> {
        judge(shape, tally, reopened, false).iter().map(|violation| violation.invariant.name()).collect()
    }

    #[test]
    fn only_an_honest_failure_is_clean() {
        let failed = Instant::now();
        let honest = Tally {
            unknowns: [(UNKNOWN.to_owned(), 3), (STOPPED.to_owned(), 9)].into(),
            first_unknown: Some(failed),
            ..Tally::default()
        };
        assert!(names(Shape::Once, &honest, 1).is_empty());
        assert_eq!(names(Shape::Once, &honest, 0), ["unverified"]);
        assert!(names(Shape::ForGood, &honest, 0).is_empty());

        let later = failed + Duration::from_millis(1);
        let stamp = Stamp { op: Op { conn: 0, seq: 1 }, began: later, ended: later };
        let hollow = Tally { stamps: vec![stamp], ..honest.clone() };
        assert!(names(Shape::Row(3), &hollow, 1).is_empty(), "verified and gone on");
        assert_eq!(names(Shape::ForGood, &hollow, 0), ["hollow"]);

        for wrong in ["500 internal", "no answer"] {
            let tally = Tally { unknowns: [(wrong.to_owned(), 1)].into(), ..Tally::default() };
            assert_eq!(names(Shape::Once, &tally, 0), ["unserved"], "{wrong}");
        }
        let refused = Tally { refusals: [("400 invalid".to_owned(), 1)].into(), ..Tally::default() };
        assert_eq!(names(Shape::ForGood, &refused, 0), ["unserved"]);
    }

    #[test]
    fn a_short_run_has_every_shape() {
        let mut scenario = FsyncError::new("x".into(), 1);
        let shapes: Vec<Shape> = (0..3).map(|_| (scenario.choose(), scenario.shape).1).collect();
        assert!(matches!(shapes[..], [Shape::Once, Shape::Row(2..=3), Shape::ForGood]), "{shapes:?}");
    }
}
