//! Reservations as they are stored, and which of them stand in the way of a path.
//!
//! # Contract
//! Whatever gives, extends or ends reservations of a project calls [`lock`] first and goes by the time it answers with. On
//! PostgreSQL that puts those calls in a row: the rows that one reads are those that the one before has left. The time never
//! runs backwards from one call to the next, although callers' clocks may, by up to [`SKEW_MAX_US`]: a lease that one call has
//! found expired cannot be renewed by the next.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Row, STATEMENTS_MAX, Sql, Statement, Tx, Value};

use crate::Settings;
use crate::acting::{Agent, Project};
use crate::archive_rows::{ArchiveKind, noting};
use crate::rules::globs::{Budget, Pattern};
use crate::rules::paths::{PATHS_MAX, Path};
use crate::sent::check_active;

pub const TTL_DEFAULT_S: i64 = 3_600;
pub const TTL_MIN_S: i64 = 60;
pub const TTL_MAX_S: i64 = 365 * 86_400;
pub const REASON_CHARS_MAX: usize = 1_000;
/// So far the clocks of two servers on one database may be apart. A reservation from further ahead was made under a wrong clock:
/// going by it would stop the project's time until the right one has come so far.
const SKEW_MAX_US: i64 = 60_000_000;
/// Holders shown for one path; more would tell nothing more.
const HOLDERS_MAX: usize = 10;
/// Holders of one answer, in bytes of their texts. From there on each path has one: answers are kept for a day under their keys,
/// and must not be many times larger than what was asked.
const HOLDERS_BYTES_MAX: usize = 256 << 10;
/// Of somebody else's reason, in characters.
const REASON_SHOWN_CHARS: usize = 200;

/// As it is stored.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub id: i64,
    pub agent: i64,
    pub agent_name: String,
    pub path: String,
    pub exclusive: bool,
    pub reason: String,
    pub created_at: Time,
    pub expires_at: Time,
    pub released_at: Option<Time>,
}

/// The columns that [`Reservation::read`] reads, in its order, of `mail_reservations r` and `mail_agents a`.
macro_rules! reservation_columns {
    () => {
        "r.reservation, r.agent, a.name, r.path, r.exclusive, r.reason, r.created_at, r.expires_at, r.released_at"
    };
}
pub(crate) use reservation_columns;

macro_rules! active {
    ($and:literal) => {
        concat!(
            "SELECT ",
            reservation_columns!(),
            " FROM mail_reservations r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
             WHERE r.tenant = $1 AND r.project = $2 AND r.released_at IS NULL AND r.expires_at > $3 ",
            $and
        )
    };
}

impl Reservation {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            id: row.int(0)?,
            agent: row.int(1)?,
            agent_name: row.text(2)?.to_owned(),
            path: row.text(3)?.to_owned(),
            exclusive: row.bool(4)?,
            reason: row.text(5)?.to_owned(),
            created_at: row.time(6)?,
            expires_at: row.time(7)?,
            released_at: row.time_opt(8)?,
        })
    }

    pub fn is_active(&self, now: Time) -> bool {
        self.released_at.is_none() && self.expires_at > now
    }
}

/// Somebody's reservation that stands in the way.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    pub id: i64,
    pub agent: String,
    pub path_pattern: String,
    pub exclusive: bool,
    pub reason: String,
    pub expires_ts: Time,
}

impl From<&Reservation> for Holder {
    fn from(held: &Reservation) -> Self {
        Self {
            id: held.id,
            agent: held.agent_name.clone(),
            path_pattern: held.path.clone(),
            exclusive: held.exclusive,
            reason: held.reason.chars().take(REASON_SHOWN_CHARS).collect(),
            expires_ts: held.expires_at,
        }
    }
}

/// A path that was not given, and why.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Conflict {
    pub path: String,
    /// At most 10 of them, and one of each path where many conflict.
    pub holders: Vec<Holder>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Granted {
    pub id: i64,
    pub path_pattern: String,
    pub exclusive: bool,
    pub reason: String,
    pub expires_ts: Time,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reserved {
    pub granted: Vec<Granted>,
    /// Paths that others hold. They were not reserved; the rest was.
    pub conflicts: Vec<Conflict>,
}

/// What an agent wants to reserve.
pub struct Wanted<'a> {
    pub paths: &'a [Path],
    pub exclusive: bool,
    pub ttl_s: Option<i64>,
    pub reason: &'a str,
}

/// Lets nobody else change the project's reservations until the transaction ends. Answers with the time that counts.
pub async fn lock(ctx: &Ctx<'_>, tx: &mut Tx<'_>, project: i64) -> Result<Time> {
    const LOCK: Sql = Sql {
        sqlite: "SELECT 1 FROM mail_projects WHERE tenant = $1 AND project = $2",
        postgres: "SELECT 1 FROM mail_projects WHERE tenant = $1 AND project = $2 FOR NO KEY UPDATE",
    };
    const LATEST: &str = "SELECT created_at FROM mail_reservations WHERE tenant = $1 AND project = $2 \
                          ORDER BY reservation DESC LIMIT 1";
    let lock = tx.text(LOCK);
    tx.query_opt(lock, &[project.into()]).await?.ok_or_else(|| Error::not_found("project"))?;
    let latest = tx.query_opt(LATEST, &[project.into()]).await?;
    let latest = latest.map(|row| row.time(0)).transpose()?;
    let latest = latest.filter(|latest| latest.micros().saturating_sub(ctx.now.micros()) <= SKEW_MAX_US);
    Ok(latest.map_or(ctx.now, |latest| latest.max(ctx.now)))
}

/// Gives what nobody else holds. The caller has the lock and acts for the agent; `now` is the lock's.
pub async fn reserve(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    now: Time,
    project: &Project,
    agent: &Agent,
    wanted: &Wanted<'_>,
) -> Result<Reserved> {
    check_active(agent)?;
    let held = in_the_way(tx, now, project.id, wanted.paths).await?;
    let mut looking = Looking::default();
    let (mut free, mut conflicts) = (Vec::new(), Vec::new());
    for path in wanted.paths {
        let others = held.iter().filter(|held| held.reservation.agent != agent.id);
        let holders = looking.conflicting(path, wanted.exclusive, others);
        if holders.is_empty() {
            free.push(path);
        } else {
            conflicts.push(Conflict { path: path.text.clone(), holders });
        }
    }
    check_room(ctx, tx, now, project, agent, free.len()).await?;
    let granted = insert(tx, now, project, agent, wanted, &free).await?;
    Ok(Reserved { granted, conflicts })
}

/// What one call compares and tells.
#[derive(Default)]
pub(crate) struct Looking {
    budget: Budget,
    told_bytes: usize,
}

impl Looking {
    /// Those that keep the path from being given; `others` are other agents'.
    pub(crate) fn conflicting<'a>(
        &mut self,
        path: &Path,
        exclusive: bool,
        others: impl Iterator<Item = &'a Held>,
    ) -> Vec<Holder> {
        let most = if self.told_bytes < HOLDERS_BYTES_MAX { HOLDERS_MAX } else { 1 };
        let excluding = others.filter(|held| exclusive || held.reservation.exclusive);
        let meeting = excluding.filter(|held| held.meets(path, &mut self.budget)).take(most);
        let holders: Vec<Holder> = meeting.map(|held| Holder::from(&held.reservation)).collect();
        self.told_bytes += holders.iter().map(|holder| holder.path_pattern.len() + holder.reason.len()).sum::<usize>();
        holders
    }
}

/// An active reservation, read for comparison.
pub(crate) struct Held {
    pub(crate) reservation: Reservation,
    /// None where a stored path cannot be read (one from another server's archive): it stands in everybody's way.
    pattern: Option<Pattern>,
}

impl Held {
    fn new(row: &Row) -> Result<Self> {
        let reservation = Reservation::read(row)?;
        let pattern = Pattern::read(&reservation.path).ok();
        Ok(Self { reservation, pattern })
    }

    pub(crate) fn meets(&self, path: &Path, budget: &mut Budget) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.overlaps(&path.pattern, budget))
    }
}

/// The active reservations of the project that could overlap one of the paths: those that begin in the same folder, and those
/// that may begin anywhere. A pattern that may begin anywhere, or many folders, are compared with all.
pub(crate) async fn in_the_way(tx: &mut Tx<'_>, now: Time, project: i64, paths: &[Path]) -> Result<Vec<Held>> {
    const OF_HEAD: &str = active!("AND r.head = $4 ORDER BY r.reservation");
    let heads: Option<BTreeSet<&str>> = paths.iter().map(|path| path.pattern.head()).collect();
    let rows = match heads {
        Some(mut heads) if heads.len() < STATEMENTS_MAX => {
            heads.insert("");
            let of_head = |head| -> Statement<'_> { (OF_HEAD, vec![project.into(), now.into(), Value::from(head)]) };
            let statements: Vec<Statement<'_>> = heads.into_iter().map(of_head).collect();
            tx.query_all(&statements).await?.concat()
        }
        _ => tx.query(ALL_ACTIVE, &[project.into(), now.into()]).await?,
    };
    rows.iter().map(Held::new).collect()
}

const ALL_ACTIVE: &str = active!("ORDER BY r.reservation");

/// Active reservations of one agent, oldest first: as many as it may have, at most.
pub(crate) async fn of_agent(tx: &mut Tx<'_>, now: Time, project: i64, agent: i64) -> Result<Vec<Reservation>> {
    const OF_AGENT: &str = active!("AND r.agent = $4 ORDER BY r.reservation");
    let rows = tx.query(OF_AGENT, &[project.into(), now.into(), agent.into()]).await?;
    rows.iter().map(Reservation::read).collect()
}

/// Which of an agent's files others work on as well. One for all recipients of a message: what it reads and compares has one
/// bound, however many they are.
pub(crate) struct SharedFiles {
    now: Time,
    project: i64,
    agent: i64,
    /// The agent's own, once they were needed.
    own: Option<Vec<Pattern>>,
    budget: Budget,
}

impl SharedFiles {
    pub(crate) fn of(now: Time, project: i64, agent: i64) -> Self {
        Self { now, project, agent, own: None, budget: Budget::default() }
    }

    /// Whether both hold active reservations that overlap. Two patterns with wildcards prove nothing: `src/**` and `**/*.rs` meet
    /// wherever two people write Rust. Neither does a budget that is used up: it would open an inbox.
    pub(crate) async fn with(&mut self, tx: &mut Tx<'_>, other: i64) -> Result<bool> {
        let own = match self.own.take() {
            Some(own) => own,
            None => self.patterns(tx, self.agent).await?,
        };
        let own = self.own.insert(own);
        if own.is_empty() || self.budget.is_used_up() {
            return Ok(false);
        }
        let theirs = self.patterns(tx, other).await?;
        let Self { own: Some(own), budget, .. } = self else { return Ok(false) };
        Ok(own.iter().any(|here| {
            let mut meets = |there: &Pattern| {
                (here.is_plain() || there.is_plain()) && here.overlaps(there, budget) && !budget.is_used_up()
            };
            theirs.iter().any(&mut meets)
        }))
    }

    async fn patterns(&mut self, tx: &mut Tx<'_>, agent: i64) -> Result<Vec<Pattern>> {
        let held = of_agent(tx, self.now, self.project, agent).await?;
        let affordable = held.iter().take_while(|held| self.budget.spend(held.path.len()));
        Ok(affordable.filter_map(|held| Pattern::read(&held.path).ok()).collect())
    }
}

/// Every call compares its paths with what is active, so that has a bound: for one agent and for the project.
async fn check_room(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    now: Time,
    project: &Project,
    agent: &Agent,
    more: usize,
) -> Result<()> {
    const OF_PROJECT: &str = "SELECT count(*) FROM mail_reservations \
        WHERE tenant = $1 AND project = $2 AND released_at IS NULL AND expires_at > $3";
    const OF_AGENT: &str = "SELECT count(*) FROM mail_reservations \
        WHERE tenant = $1 AND agent = $2 AND released_at IS NULL AND expires_at > $3";
    if more == 0 {
        return Ok(());
    }
    let settings = ctx.settings::<Settings>();
    let counts: [Statement<'_>; 2] =
        [(OF_AGENT, vec![agent.id.into(), now.into()]), (OF_PROJECT, vec![project.id.into(), now.into()])];
    let counted = tx.query_all(&counts).await?;
    let limits = [
        ("mail.reservations_of_agent_max", settings.reservations_of_agent_max, "The agent"),
        ("mail.reservations_max", settings.reservations_max, "The project"),
    ];
    for (rows, (setting, limit, whose)) in counted.iter().zip(limits) {
        let count = rows.first().map_or(Ok(0), |row| row.int(0))?;
        if count + more as i64 > limit {
            let message = format!("{whose} has {count} active reservations and may have {limit} (`{setting}`).");
            return Err(Error::new(Code::TooManyReservations, message).with("limit", limit));
        }
    }
    Ok(())
}

async fn insert<'a>(
    tx: &mut Tx<'_>,
    now: Time,
    project: &Project,
    agent: &Agent,
    wanted: &'a Wanted<'a>,
    paths: &[&'a Path],
) -> Result<Vec<Granted>> {
    const INSERT: &str = "INSERT INTO mail_reservations \
        (tenant, project, agent, path, head, exclusive, reason, created_at, expires_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING reservation";
    debug_assert!(paths.len() <= PATHS_MAX, "more paths than a call may have");
    let expires = now.after(ttl(wanted.ttl_s));
    let mut granted = Vec::with_capacity(paths.len());
    for paths in paths.chunks(STATEMENTS_MAX) {
        let row = |path: &&'a Path| -> Statement<'a> {
            (
                INSERT,
                vec![
                    project.id.into(),
                    agent.id.into(),
                    Value::from(path.text.as_str()),
                    Value::from(path.pattern.head().unwrap_or("")),
                    wanted.exclusive.into(),
                    Value::from(wanted.reason),
                    now.into(),
                    expires.into(),
                ],
            )
        };
        let statements: Vec<Statement<'_>> = paths.iter().map(row).collect();
        let written = tx.query_all(&statements).await?;
        let mut notes = Vec::with_capacity(paths.len());
        for (path, rows) in paths.iter().zip(&written) {
            let row = rows.first().ok_or_else(|| Error::internal("a reservation was written and has no number"))?;
            let id = row.int(0)?;
            notes.push(noting(tx, now, project.id, ArchiveKind::Reservation, id));
            granted.push(Granted {
                id,
                path_pattern: path.text.clone(),
                exclusive: wanted.exclusive,
                reason: wanted.reason.to_owned(),
                expires_ts: expires,
            });
        }
        tx.execute_together(&notes).await?;
    }
    Ok(granted)
}

pub fn check_seconds(field: &str, seconds: Option<i64>) -> Result<()> {
    match seconds {
        Some(seconds) if seconds < 0 => Err(Error::invalid(format!("{field} must not be negative."))),
        _ => Ok(()),
    }
}

/// Clamped, not refused: whoever asks for less than a minute or more than a year gets those.
pub fn ttl(seconds: Option<i64>) -> Duration {
    let seconds = seconds.unwrap_or(TTL_DEFAULT_S).clamp(TTL_MIN_S, TTL_MAX_S);
    Duration::from_secs(seconds.unsigned_abs())
}

pub fn check_reason(reason: &str) -> Result<()> {
    if reason.chars().count() > REASON_CHARS_MAX {
        return Err(Error::invalid(format!("reason must have at most {REASON_CHARS_MAX} characters.")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_clamped() {
        for (given, expected) in
            [(None, 3_600), (Some(0), 60), (Some(-5), 60), (Some(90), 90), (Some(i64::MAX), 31_536_000)]
        {
            assert_eq!(ttl(given).as_secs(), expected, "{given:?}");
        }
    }
}
