//! Hours of mail: whether memory and open files stay what they are while messages, connections and commits come and go.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::office::Office;
use super::turns::What;
use crate::load::Outcome;
use crate::process::memory;
use crate::site::Site;

const AGENTS: usize = 8;
/// Each turn of the soak: its messages are sent at their pace, then everybody reads and searches as fast as it is answered.
const SENDS: Duration = Duration::from_secs(9);
const READS: Duration = Duration::from_millis(500);
/// Parts of the time that are compared.
const PARTS: usize = 6;
const MIB: f64 = 1024.0 * 1024.0;

pub struct Asked {
    pub waybill: PathBuf,
    pub time: Duration,
    pub per_second: u64,
}

/// What the server had at the end of a turn.
struct Look {
    after: Duration,
    resident: u64,
    /// The part of it that is the program's own. The rest is mapped from files, such as the indexes of the archive's packs, and
    /// the kernel takes it back when it needs it.
    own: u64,
    files: usize,
}

pub async fn run(asked: &Asked, dir: &Path) -> Result<()> {
    let site = Site { waybill: asked.waybill.clone(), data: dir.join("soak"), store: None };
    let mut office = Office::open(&site, AGENTS).await?;
    let began = Instant::now();
    let (mut looks, mut reads, mut refused) = (Vec::new(), 0, 0);
    let every = Duration::from_micros(AGENTS as u64 * 1_000_000 / asked.per_second);
    let mut slice = 0;
    while began.elapsed() < asked.time {
        slice += 1;
        let send = What::Send { slice, every: Some(every) };
        refused += errors(&office.load(send, AGENTS, Duration::ZERO, SENDS).await?);
        for what in [What::Fetch, What::Search] {
            let outcome = office.load(what, AGENTS, Duration::ZERO, READS).await?;
            reads += outcome.ops_total;
            refused += errors(&outcome);
        }
        let pid = office.house.pid()?;
        let now = memory(pid)?;
        let look = Look { after: began.elapsed(), resident: now.resident, own: now.anonymous, files: open_files(pid)? };
        say(&look, office.messages, reads, refused)?;
        looks.push(look);
    }
    conclude(&looks, office.messages, reads, refused)
}

fn errors(outcome: &Outcome) -> u64 {
    outcome.errors.values().sum()
}

fn open_files(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn say(look: &Look, sent: u64, reads: u64, refused: u64) -> Result<()> {
    let Look { after, resident, own, files } = look;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>5} s  {sent:>8} sent  {reads:>9} read  {refused} refused  {:>6.1} MiB, own {:>6.1}  {files} files",
        after.as_secs(),
        *resident as f64 / MIB,
        *own as f64 / MIB
    )?;
    Ok(out.flush()?)
}

/// A line for each part of the time; an error where anybody was refused.
fn conclude(looks: &[Look], sent: u64, reads: u64, refused: u64) -> Result<()> {
    let whole = looks.last().context("no turn was finished")?.after;
    let mut out = std::io::stdout().lock();
    for part in 0..PARTS as u32 {
        let of_part = looks.iter().filter(|look| part_of(look.after, whole) == part);
        let (mut count, mut sum, mut own, mut most, mut files) = (0.0, 0.0, 0, 0, 0);
        for look in of_part {
            (count, sum) = (count + 1.0, sum + look.resident as f64);
            (own, most, files) = (own.max(look.own), most.max(look.resident), files.max(look.files));
        }
        if count > 0.0 {
            let (mean, own, most) = (sum / count / MIB, own as f64 / MIB, most as f64 / MIB);
            let part = part + 1;
            writeln!(
                out,
                "part {part} of {PARTS}: {mean:.1} MiB resident, {most:.1} at most; own {own:.1} at most; {files} files"
            )?;
        }
    }
    writeln!(out, "{sent} sent, {reads} read in {} s", whole.as_secs())?;
    match refused {
        0 => Ok(()),
        refused => bail!("{refused} calls were refused"),
    }
}

/// Which part of the whole this moment is in.
fn part_of(after: Duration, whole: Duration) -> u32 {
    let share = after.as_secs_f64() / whole.as_secs_f64() * PARTS as f64;
    (share as u32).min(PARTS as u32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_has_equal_parts() {
        let part = |after| part_of(Duration::from_secs(after), Duration::from_secs(60));
        assert_eq!([part(0), part(9), part(10), part(59), part(60)], [0, 0, 1, 5, 5]);
    }
}
