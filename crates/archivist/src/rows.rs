//! The rows that say what is to be archived: found, read as a window, marked, and removed once they are written.
//!
//! Rows of a project are taken in the order of their commits and below the horizon, as feeds are read: no row can appear among those that a
//! window has taken, so one statement removes them all.

use std::collections::HashSet;
use std::time::Duration;

use waybill_kernel::{Error, Mode, Result, Tenant, Time};
use waybill_mail::archive_rows::ArchiveKind;
use waybill_store::{Ctx, STATEMENTS_MAX, Statement, Tx, Value, Work};

use crate::draft::Line;
use crate::read::{self, Messages};
use crate::{Draft, Item};

/// Projects found in one look, those that rest excepted.
const PROJECTS_MAX: usize = 256;
/// Projects looked at for that.
const STEPS_MAX: usize = 512;
/// Projects whose agents' changes are found in one look.
const CHANGED_PROJECTS_MAX: usize = 64;
/// Agents of one project whose changes are found in one look.
const AGENTS_MAX: i64 = 256;
/// Unwritten rows are counted no further than this, of each state.
const COUNTED_MAX: i64 = 100_000;
/// Rows that are marked in one transaction.
const MARKED_MAX: i64 = 1_000;

/// Whose rows.
pub(crate) type Whose = (Tenant, i64);
/// No project comes before it.
pub(crate) const BEFORE_ALL: Whose = (Tenant(i64::MIN), i64::MIN);

/// What there is to do.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// With rows, whatever their state; also those that rest, whose rows are passed over.
    pub projects: Vec<Whose>,
    /// Where the next look for them begins; None when this one has seen all of them.
    pub projects_from: Option<Whose>,
    /// Projects with the agents that have changes, the longest unwritten first.
    pub agents: Vec<(Whose, Vec<i64>)>,
    pub agents_from: Option<Whose>,
    /// Projects that rest have changes as well.
    pub more_changes: bool,
}

/// Finds projects with something to write, from one place on and once around: whoever comes first in the order of numbers does not come
/// first every time.
pub(crate) struct Look {
    pub projects_from: Whose,
    /// None where changes are not looked for.
    pub agents_from: Option<Whose>,
    /// Projects that are written now, or rest. They take no places.
    pub busy: HashSet<Whose>,
}

impl Work for Look {
    type Output = Due;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Due> {
        // From project to project by the index, however many rows each has.
        const WITH_ROWS: &str = "SELECT tenant, project FROM mail_archive_rows WHERE (tenant, project) > ($1, $2) \
                                 AND state <> 'failed' ORDER BY tenant, project LIMIT 1";
        const WITH_CHANGES: &str = "SELECT tenant, project FROM mail_changes WHERE (tenant, project) > ($1, $2) \
                                    AND changes > archived ORDER BY tenant, project LIMIT 1";
        const CHANGED: &str = "SELECT agent FROM mail_changes WHERE tenant = $1 AND project = $2 AND changes > archived \
                               ORDER BY changed_at LIMIT $3";
        let mut due = Due::default();
        (due.projects, due.projects_from) = self.around(tx, WITH_ROWS, self.projects_from, PROJECTS_MAX).await?;
        let Some(from) = self.agents_from else { return Ok(due) };
        let (found, agents_from) = self.around(tx, WITH_CHANGES, from, CHANGED_PROJECTS_MAX).await?;
        due.agents_from = agents_from;
        let (busy, free): (Vec<Whose>, Vec<Whose>) = found.into_iter().partition(|whose| self.busy.contains(whose));
        due.more_changes = !busy.is_empty();
        for some in free.chunks(STATEMENTS_MAX) {
            let of = |(Tenant(tenant), project): &Whose| -> Statement<'_> {
                (CHANGED, vec![(*tenant).into(), (*project).into(), AGENTS_MAX.into()])
            };
            let rows = tx.query_all(&some.iter().map(of).collect::<Vec<_>>()).await?;
            for (whose, rows) in some.iter().zip(rows) {
                due.agents.push((*whose, rows.iter().map(|row| row.int(0)).collect::<Result<_>>()?));
            }
        }
        Ok(due)
    }
}

impl Look {
    /// The projects behind `from`, then those up to it. Answers with where to go on, if there were too many.
    async fn around(
        &self,
        tx: &mut Tx<'_>,
        next: &'static str,
        from: Whose,
        max: usize,
    ) -> Result<(Vec<Whose>, Option<Whose>)> {
        let (mut found, mut free, mut at, mut is_behind) = (Vec::new(), 0, from, true);
        loop {
            let row = tx.query_opt(next, &[at.0.0.into(), at.1.into()]).await?;
            let whose = row.map(|row| Ok::<Whose, Error>((Tenant(row.int(0)?), row.int(1)?))).transpose()?;
            match whose {
                None if is_behind && from > BEFORE_ALL => (at, is_behind) = (BEFORE_ALL, false),
                None => return Ok((found, None)),
                Some(whose) if !is_behind && whose > from => return Ok((found, None)),
                Some(_) if free >= max || found.len() >= STEPS_MAX => return Ok((found, Some(at))),
                Some(whose) => {
                    at = whose;
                    free += usize::from(!self.busy.contains(&whose));
                    found.push(whose);
                }
            }
        }
    }
}

/// A window's rows, and what they are about.
#[derive(Debug)]
pub(crate) struct Batch {
    pub draft: Draft,
    pub taken: Taken,
    /// There may be more at once.
    pub more: bool,
}

/// Rows up to and with the last one.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub whose: Whose,
    pub xact: i64,
    pub row: i64,
    /// When each was committed.
    pub at: Vec<Time>,
}

/// Reads the next rows of a project and what they are about. None when there are none.
pub(crate) struct ReadBatch {
    pub whose: Whose,
    pub rows_max: usize,
    pub bytes_max: usize,
}

struct Found {
    xact: i64,
    row: i64,
    kind: String,
    about: i64,
    at: Time,
    bytes: usize,
}

impl Work for ReadBatch {
    type Output = Option<Batch>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<Batch>> {
        let (tenant, project) = self.whose;
        let (found, full) = self.rows(tx).await?;
        let Some(last) = found.last() else { return Ok(None) };
        let taken =
            Taken { whose: self.whose, xact: last.xact, row: last.row, at: found.iter().map(|row| row.at).collect() };
        let Some(owner) = read::owner(tx, tenant, project).await? else {
            // Of a project that is gone: there is nothing to write.
            return Ok(Some(Batch { draft: Draft::new(gone(self.whose), ctx.now), taken, more: full }));
        };
        let mut draft = Draft::new(owner, ctx.now);
        fill(tx, &mut draft, &found).await?;
        Ok(Some(Batch { draft, taken, more: full }))
    }
}

fn gone((tenant, project): Whose) -> crate::Owner {
    crate::Owner {
        tenant,
        tenant_name: String::new(),
        project,
        slug: String::new(),
        human_key: String::new(),
        created_at: Time::from_micros(0),
    }
}

impl ReadBatch {
    /// As many as fit, one at least; and whether there are more.
    async fn rows(&self, tx: &mut Tx<'_>) -> Result<(Vec<Found>, bool)> {
        const ROWS: &str = "SELECT a.xact, a.row, a.kind, a.ref, a.at, octet_length(m.body), m.attachments \
            FROM mail_archive_rows a LEFT JOIN mail_messages m ON m.tenant = $1 AND m.message = a.ref AND a.kind = 'message' \
            WHERE a.tenant = $1 AND a.project = $2 AND a.xact < $3 AND a.state <> 'failed' ORDER BY a.xact, a.row LIMIT $4";
        let (tenant, project) = self.whose;
        let horizon = tx.horizon().await?;
        let limit = i64::try_from(self.rows_max).unwrap_or(i64::MAX);
        let rows = tx.as_tenant(tenant).query(ROWS, &[project.into(), horizon.into(), limit.into()]).await?;
        let (mut found, mut bytes) = (Vec::with_capacity(rows.len()), 0_usize);
        for row in &rows {
            let one = Found {
                xact: row.int(0)?,
                row: row.int(1)?,
                kind: row.text(2)?.to_owned(),
                about: row.int(3)?,
                at: row.time(4)?,
                bytes: read::size_of(row, 5)?,
            };
            bytes = bytes.saturating_add(one.bytes);
            if bytes > self.bytes_max && !found.is_empty() {
                return Ok((found, true));
            }
            found.push(one);
        }
        let full = found.len() >= self.rows_max;
        Ok((found, full))
    }
}

/// What the rows are about, each thing once.
async fn fill(tx: &mut Tx<'_>, draft: &mut Draft, rows: &[Found]) -> Result<()> {
    let owner = draft.owner.clone();
    let about = |kind: ArchiveKind| {
        let mut ids: Vec<i64> = rows.iter().filter(|row| row.kind == kind.as_str()).map(|row| row.about).collect();
        ids.dedup();
        ids
    };
    if !about(ArchiveKind::Project).is_empty() {
        draft.items.push(read::project(&owner));
        draft.lines.push(Line::project(&owner.slug));
    }
    let mut agents = about(ArchiveKind::Agent);
    agents.sort_unstable();
    agents.dedup();
    for agent in agents {
        if let Some(item) = read::agent(tx, &owner, agent).await? {
            if let Item::Agent { profile, .. } = &item {
                draft.lines.push(Line::agent(&profile.name));
            }
            draft.items.push(item);
        }
    }
    let ids = about(ArchiveKind::Message);
    Messages { owner: &owner, ids: &ids }.file(tx, draft).await?;
    for id in about(ArchiveKind::Reservation) {
        match read::reservation(tx, &owner, id).await? {
            Some(held) => {
                draft.lines.push(Line::reservation(&held));
                draft.items.push(Item::Reservation(held));
            }
            None => {
                draft.lines.push(Line::forgotten_reservation(id));
                draft.items.push(Item::ForgottenReservation(id));
            }
        }
    }
    for id in about(ArchiveKind::Product) {
        if let Some(product) = read::product(tx, &owner, id).await? {
            draft.lines.push(Line::product(&product.key));
            draft.items.push(Item::Product(product));
        }
    }
    Ok(())
}

/// An agent's changes as they were when its state was read.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub whose: Whose,
    pub agent: i64,
    pub changes: i64,
    /// From where on its state was looked at, and until when.
    pub since: Time,
    pub until: Time,
    pub at: Time,
}

/// An agent's state, but for what it has seen, of which only the places are told: there may be much of it.
pub(crate) struct ReadChanges {
    pub whose: Whose,
    pub agent: i64,
}

pub(crate) struct AgentState {
    pub changed: Changed,
    pub owner: Option<crate::Owner>,
    pub name: String,
    pub items: Vec<Item>,
    /// A message of each thousand.
    pub seen: Vec<i64>,
}

impl Work for ReadChanges {
    type Output = Option<AgentState>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<AgentState>> {
        // First of all: what changes after it is found by the next look.
        const COUNT: &str = "SELECT changes, archived_until FROM mail_changes \
                             WHERE tenant = $1 AND project = $2 AND agent = $3";
        let (tenant, project) = self.whose;
        let row = tx.as_tenant(tenant).query_opt(COUNT, &[project.into(), self.agent.into()]).await?;
        let Some(row) = row else { return Ok(None) };
        let since = row.time(1)?;
        let until = read::looked_until(ctx.now);
        let changed = Changed { whose: self.whose, agent: self.agent, changes: row.int(0)?, since, until, at: ctx.now };
        let mut state = AgentState { changed, owner: None, name: String::new(), items: Vec::new(), seen: Vec::new() };
        let Some(owner) = read::owner(tx, tenant, project).await? else { return Ok(Some(state)) };
        if let Some(item) = read::agent(tx, &owner, self.agent).await? {
            if let Item::Agent { profile, .. } = &item {
                state.name.clone_from(&profile.name);
            }
            state.items.push(item);
            state.items.extend(read::agent_reservations(tx, &owner, self.agent, since).await?);
            state.items.extend(read::agent_slots(tx, &owner, self.agent, &state.name).await?);
            state.seen = read::seen_buckets(tx, &owner, self.agent, since).await?;
        }
        state.owner = Some(owner);
        Ok(Some(state))
    }
}

/// What an agent has seen in some thousands of messages.
pub(crate) struct ReadSeen {
    pub owner: crate::Owner,
    pub agent: i64,
    pub name: String,
    pub messages: Vec<i64>,
}

impl Work for ReadSeen {
    type Output = Vec<Item>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for message in &self.messages {
            items.extend(read::seen(tx, &self.owner, self.agent, &self.name, *message).await?);
        }
        Ok(items)
    }
}

/// Once they are written: the rows go, and the changes count as archived.
pub(crate) struct Record {
    pub taken: Option<Taken>,
    pub changed: Vec<Changed>,
}

impl Work for Record {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const REMOVE: &str = "DELETE FROM mail_archive_rows WHERE tenant = $1 AND project = $2 \
                              AND (xact, row) <= ($3, $4) AND state <> 'failed'";
        // What has come since is younger than the look. Where an import wants everything to be looked at again, it stays so.
        const ARCHIVED: &str = "UPDATE mail_changes SET archived = $4, \
            archived_until = CASE WHEN archived_until = $6 THEN $5 ELSE archived_until END, \
            changed_at = CASE WHEN changed_at < $7 THEN $7 ELSE changed_at END \
            WHERE tenant = $1 AND project = $2 AND agent = $3 AND archived < $4";
        if let Some(Taken { whose: (tenant, project), xact, row, .. }) = &self.taken {
            tx.as_tenant(*tenant).execute(REMOVE, &[(*project).into(), (*xact).into(), (*row).into()]).await?;
        }
        for some in self.changed.chunks(STATEMENTS_MAX) {
            // In the program's own work statements name the tenant themselves.
            let archived = |changed: &Changed| -> Statement<'_> {
                let (Tenant(tenant), project) = changed.whose;
                let params: Vec<Value<'_>> = vec![
                    tenant.into(),
                    project.into(),
                    changed.agent.into(),
                    changed.changes.into(),
                    changed.until.into(),
                    changed.since.into(),
                    changed.at.into(),
                ];
                (ARCHIVED, params)
            };
            tx.execute_all(&some.iter().map(archived).collect::<Vec<_>>()).await?;
        }
        Ok(())
    }
}

/// Marks the rows of a project that cannot be written now, at most a thousand at a time. Answers with their number.
pub(crate) struct PassOver(pub Whose);

impl Work for PassOver {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const MARK: &str = "UPDATE mail_archive_rows SET state = 'skipped', attempts = attempts + 1 WHERE tenant = $1 \
            AND project = $2 AND state = 'waiting' AND row IN (SELECT row FROM mail_archive_rows \
            WHERE tenant = $1 AND project = $2 AND state = 'waiting' ORDER BY xact, row LIMIT $3)";
        let (tenant, project) = self.0;
        tx.as_tenant(tenant).execute(MARK, &[project.into(), MARKED_MAX.into()]).await
    }
}

/// Rows that cannot be filed at all: they stay, and stand in nobody's way.
pub(crate) struct SetAside(pub Taken);

impl Work for SetAside {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const MARK: &str = "UPDATE mail_archive_rows SET state = 'failed', attempts = attempts + 1 WHERE tenant = $1 \
                            AND project = $2 AND (xact, row) <= ($3, $4) AND state <> 'failed'";
        let Taken { whose: (tenant, project), xact, row, .. } = &self.0;
        tx.as_tenant(*tenant).execute(MARK, &[(*project).into(), (*xact).into(), (*row).into()]).await
    }
}

/// How much is not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub rows: i64,
    /// Of them, those that were passed over.
    pub passed_over: i64,
    pub lag: Duration,
}

pub(crate) struct Measure;

impl Work for Measure {
    type Output = Backlog;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Backlog> {
        // The oldest of each state, by the index: of an answer of bounded cost the lag is exact.
        const OF_STATE: &str = "SELECT count(*), min(next_at) FROM \
            (SELECT next_at FROM mail_archive_rows WHERE state = $1 ORDER BY next_at LIMIT $2) AS found";
        const CHANGED: &str = "SELECT min(changed_at) FROM (SELECT changed_at FROM mail_changes WHERE changes > archived LIMIT $1) AS found";
        let of = |state: &'static str| -> Statement<'_> { (OF_STATE, vec![state.into(), COUNTED_MAX.into()]) };
        let looks = [of("waiting"), of("skipped"), of("failed"), (CHANGED, vec![COUNTED_MAX.into()])];
        let found = tx.query_all(&looks).await?;
        let count = |at: usize| found[at].first().map_or(Ok(0), |row| row.int(0));
        let oldest = |at: usize, column| found[at].first().map_or(Ok(None), |row| row.time_opt(column));
        let passed_over = count(1)? + count(2)?;
        let mut backlog = Backlog { rows: count(0)? + passed_over, passed_over, lag: Duration::ZERO };
        // What was set aside waits for a person, and says nothing about how far the archive is behind.
        let oldest = [oldest(0, 1)?, oldest(1, 1)?, oldest(3, 0)?].into_iter().flatten().min();
        backlog.lag = oldest.map(|oldest| ctx.now.since(oldest)).unwrap_or_default();
        Ok(backlog)
    }
}
