//! A disk that fills up under load and is cleared again. While it is full, creating is refused with 507 and nothing else,
//! canceling works, the server says that it is not ready; when there is room it takes work again without a restart.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use super::{After, Scenario};
use crate::checker::{Invariant, Violation};
use crate::history::Op;
use crate::image::Image;
use crate::load::{Load, Tally};
use crate::rng::{Rng, Stream};
use crate::server::{Launch, Server};

/// A sparse file; what the run does not fill, the filler reserves.
const IMAGE_MIB: u64 = 1_024;
const DATA: &str = "data";
/// What the filler leaves free: less than a second of load.
const LEFT_BYTES_MIN: u64 = 1 << 20;
const LEFT_BYTES_MAX: u64 = 3 << 20;
const LOAD_MS_MAX: u64 = 600;
const FILL_MAX: Duration = Duration::from_secs(40);
/// How long the disk stays full, and the load goes on when it is not any more.
const FULL: Duration = Duration::from_millis(300);
const AFTERWARDS: Duration = Duration::from_millis(200);
const RECOVERY_MAX: Duration = Duration::from_secs(40);
const REFUSAL: &str = "507 storage_full";

pub struct DiskFull {
    folder: PathBuf,
    keep: bool,
    rng: Rng,
    image: Option<Image>,
    room_at: Option<Instant>,
    told: String,
}

impl DiskFull {
    pub fn new(folder: PathBuf, keep: bool, seed: u64) -> Self {
        let rng = Rng::new(seed, Stream::Fault);
        DiskFull { folder, keep, rng, image: None, room_at: None, told: String::new() }
    }

    fn filler(&self) -> Result<PathBuf> {
        Ok(self.image.as_ref().context("no disk is mounted")?.folder().join("filler"))
    }

    fn mount(&mut self, image: Image) -> Result<PathBuf> {
        image.mount()?;
        let data = image.folder().join(DATA);
        self.image = Some(image);
        let _ = std::fs::remove_file(self.filler()?);
        std::fs::create_dir_all(&data)?;
        Ok(data)
    }
}

/// Free on the file system of this folder, for those who are not root.
fn free_bytes(folder: &Path) -> Result<u64> {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(folder).output().context("running df")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).with_context(|| format!("df says {text:?}"))
}

fn reserve(file: &Path, bytes: u64) -> Result<()> {
    let status = Command::new("fallocate").args(["-l", &bytes.to_string()]).arg(file).status()?;
    if !status.success() {
        bail!("reserving {bytes} bytes in {}: {status}", file.display());
    }
    Ok(())
}

/// Tasks canceled between the first refusal and the moment when there was room.
fn relieved(tally: &Tally, room_at: Instant) -> usize {
    let full_at = tally.first_refused.unwrap_or(room_at);
    tally.cancels_at.iter().filter(|began| (full_at..room_at).contains(*began)).count()
}

fn judge(tally: &Tally, room_at: Instant) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (kind, count) in tally.refusals.iter().filter(|(kind, _)| *kind != REFUSAL) {
        violations.push(Violation::new(Invariant::Unserved, format!("{count} × {kind} instead of {REFUSAL}")));
    }
    for (kind, count) in &tally.unknowns {
        violations.push(Violation::new(Invariant::Unserved, format!("{count} × {kind} on a full disk")));
    }
    if tally.cancels_refused > 0 {
        let detail = format!("{} cancels were refused on a full disk", tally.cancels_refused);
        violations.push(Violation::new(Invariant::Stuck, detail));
    }
    // A disk that was full from the first moment leaves nothing of this round to cancel.
    let made = tally.stamps.iter().any(|stamp| tally.first_refused.is_none_or(|full_at| stamp.ended < full_at));
    if made && relieved(tally, room_at) == 0 {
        violations.push(Violation::new(Invariant::Stuck, "nothing was canceled while the disk was full"));
    }
    if !tally.stamps.iter().any(|stamp| stamp.began > room_at) {
        violations.push(Violation::new(Invariant::Stuck, "nothing was created when there was room again"));
    }
    violations
}

impl Scenario for DiskFull {
    async fn prepare(&mut self, _launch: &mut Launch) -> Result<PathBuf> {
        let image = Image::create(&self.folder, "disk", IMAGE_MIB, self.keep)?;
        self.mount(image)
    }

    async fn resume(&mut self, _launch: &mut Launch, _data: &Path) -> Result<PathBuf> {
        let image = Image::left(&self.folder, "disk", self.keep)?;
        self.mount(image)
    }

    fn load_ms_max(&self) -> u64 {
        LOAD_MS_MAX
    }

    /// An orderly stop cuts the log, which would otherwise have room of its own for many commits.
    async fn begin(&mut self, server: Server, launch: &Launch, data: &Path) -> Result<Option<Server>> {
        server.shut_down().await?;
        let server = Server::start(launch, data).await?;
        let left = LEFT_BYTES_MIN + self.rng.below(LEFT_BYTES_MAX - LEFT_BYTES_MIN);
        let free = free_bytes(data)?;
        reserve(&self.filler()?, free.saturating_sub(left))?;
        self.told = format!("full after {:.1} MiB more", left as f64 / f64::from(1 << 20));
        Ok(Some(server))
    }

    /// Their deletes would take from the reserve that the cancels are judged by.
    fn takes_queues(&self) -> bool {
        false
    }

    async fn strike(&mut self, server: Server, _load: &Load) -> Result<After> {
        if !server.await_trouble(FILL_MAX).await {
            bail!("the disk is not full after {FILL_MAX:?}");
        }
        sleep(FULL).await;
        self.room_at = Some(Instant::now());
        std::fs::remove_file(self.filler()?)?;
        // One that never recovers is the campaign's to tell.
        if server.await_service(RECOVERY_MAX).await.is_ok() {
            sleep(AFTERWARDS).await;
        }
        Ok(After::Serving(Box::new(server)))
    }

    fn judge(&mut self, tally: &Tally, _created_us: &HashMap<Op, i64>) -> Vec<Violation> {
        let Some(room_at) = self.room_at.take() else { return Vec::new() };
        let during = relieved(tally, room_at);
        self.told = format!("{}: {} creates refused, {during} tasks canceled meanwhile", self.told, tally.refused);
        judge(tally, room_at)
    }

    fn told(&self) -> Option<String> {
        Some(self.told.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Stamp;

    #[test]
    fn work_ends_on_a_full_disk_and_begins_again_with_room() {
        let full_at = Instant::now();
        let at = |ms| full_at + Duration::from_millis(ms);
        let before = full_at - Duration::from_millis(9);
        let early = Stamp { op: Op { conn: 0, seq: 0 }, began: before, ended: before };
        let late = Stamp { op: Op { conn: 0, seq: 1 }, began: at(600), ended: at(601) };
        let good = Tally {
            refusals: [(REFUSAL.to_owned(), 9)].into(),
            first_refused: Some(full_at),
            cancels_at: vec![at(10)],
            stamps: vec![early, late],
            ..Tally::default()
        };
        let names = |tally: &Tally| -> Vec<&str> {
            judge(tally, at(500)).iter().map(|violation| violation.invariant.name()).collect()
        };
        assert!(names(&good).is_empty());
        assert_eq!(names(&Tally { cancels_refused: 1, ..good.clone() }), ["stuck"]);
        assert_eq!(names(&Tally { cancels_at: vec![at(501)], ..good.clone() }), ["stuck"]);
        assert_eq!(names(&Tally { stamps: vec![early], ..good.clone() }), ["stuck"]);
        let full_at_once = Tally { stamps: vec![late], cancels_at: Vec::new(), ..good.clone() };
        assert!(names(&full_at_once).is_empty(), "there was nothing to cancel");
        assert_eq!(names(&Tally { refusals: [("400 invalid".to_owned(), 1)].into(), ..good.clone() }), ["unserved"]);
        assert_eq!(names(&Tally { unknowns: [("503 unavailable".to_owned(), 1)].into(), ..good }), ["unserved"]);
    }
}
