//! Lines: the claimable tasks that the same workers can do, best first.
//!
//! A line has one key of needs ([`crate::needs`]) and holds the tasks of one type, or of all types: a worker that names types looks
//! up the lines of those, and a worker that names none need not know which types there are. The lines are found in an index,
//! from each key to the next one that might fit, so a backlog that does not fit costs one step however long it is, and so does a
//! backlog of a thousand kinds.
//!
//! Nothing here locks or writes. Lines are merged by the positions read from each. Which of the tasks in front are free turns out
//! when a claim tries to take them.

use std::collections::{BTreeSet, VecDeque};

use waybill_kernel::{Error, Result, Time};
use waybill_store::{Row, STATEMENTS_MAX, Statement, Tx, Value};

use crate::needs::{self, Mark, Offer};
use crate::task::{Requirements, TaskId};

/// Keys read by one statement.
const KEYS_MAX: i64 = 64;
/// The same after a key that does not fit: the next step is likely to pass over many.
const KEYS_FEW: i64 = 8;
/// Statements that one claim spends on keys. A claim reaches this bound only among very many needs that begin with what the worker
/// has. Because walks also begin at a random key, every line gets its turn over several claims.
const LOOKS_MAX: usize = 512;
/// Tasks read from each line beyond those wanted, because other claims may be taking the first ones.
const AHEAD: i64 = 7;
/// The factor by which the next read is larger, when none of the tasks read before was free.
const FURTHER: i64 = 4;
/// How many tasks are offered to one statement, which takes the first free one.
pub(crate) const CANDIDATES_MAX: usize = 16;

/// The tasks of one line in order, given the parameter that holds its key and further conditions, such as its type. The ORDER BY is
/// written out in full: without it a planner may look for such a task from the beginning of the table.
macro_rules! line {
    ($needs:literal, $($further:literal),+) => {
        concat!(
            "FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 AND t.needs = ",
            $needs,
            $($further,)+
            " ORDER BY t.priority DESC, t.created_at, t.task_id"
        )
    };
}
pub(crate) use line;

/// The keys of claimable tasks from `$2` on, each once.
macro_rules! keys {
    ($of_type:literal) => {
        concat!(
            "WITH RECURSIVE found (needs) AS ( \
               SELECT (SELECT t.needs FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
                       AND t.needs >= $2",
            $of_type,
            " ORDER BY t.needs LIMIT 1) \
               UNION ALL \
               SELECT (SELECT t.needs FROM tasks t WHERE t.tenant = $1 AND t.status = 'queued' AND t.held = 0 \
                       AND t.needs > found.needs",
            $of_type,
            " ORDER BY t.needs LIMIT 1) \
               FROM found WHERE found.needs IS NOT NULL \
             ) SELECT found.needs FROM found WHERE found.needs IS NOT NULL LIMIT $3"
        )
    };
}

/// A statement for lines of any type, and one for those of a type, which is its last parameter.
pub(crate) type ByType = [&'static str; 2];

const KEYS: ByType = [keys!(""), keys!(" AND t.type = $4")];
const POSITIONS: ByType = [
    concat!("SELECT t.priority, t.created_at, t.task_id ", line!("$2", ""), " LIMIT $3"),
    concat!("SELECT t.priority, t.created_at, t.task_id ", line!("$2", " AND t.type = $4"), " LIMIT $3"),
];
const REQUIREMENTS: &str = concat!("SELECT t.requirements ", line!("$2", ""), " LIMIT 1");
const NEXT_DUE: &str = "SELECT next_eligible_at FROM tasks WHERE tenant = $1 AND status = 'queued' AND held = 1 \
                        ORDER BY next_eligible_at LIMIT 1";

fn by_type<'a>(sql: ByType, kind: Option<&'a str>, mut params: Vec<Value<'a>>) -> Statement<'a> {
    params.extend(kind.map(Value::from));
    (sql[usize::from(kind.is_some())], params)
}

#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    /// None for tasks of any type.
    kind: Option<&'a str>,
    needs: Vec<u8>,
}

impl<'a> Line<'a> {
    /// The only line that can have tasks for this worker, if that is known without reading any keys.
    pub(crate) fn only(kinds: &BTreeSet<&'a str>, offer: &Offer<'_>) -> Option<Self> {
        let is_known = kinds.len() <= 1 && offer.is_nothing();
        is_known.then(|| Self { kind: kinds.first().copied(), needs: Vec::new() })
    }

    pub(crate) fn needs(&self) -> &[u8] {
        &self.needs
    }

    pub(crate) fn statement<'b>(&'b self, sql: ByType, params: Vec<Value<'b>>) -> Statement<'b> {
        by_type(sql, self.kind, params)
    }
}

/// The lines that fit a worker.
#[derive(Debug, Default)]
pub(crate) struct Look<'a> {
    pub lines: Vec<Line<'a>>,
    /// When the first task that waits for its time becomes claimable.
    pub next_due: Option<Time>,
    /// One claim did not reach all lines.
    pub partial: bool,
}

/// The lines that fit the worker, of these types or of all when none is named. `anywhere` is a random mark.
pub(crate) async fn look<'a>(
    tx: &mut Tx<'_>,
    kinds: &BTreeSet<&'a str>,
    offer: &Offer<'_>,
    anywhere: Mark,
) -> Result<Look<'a>> {
    let mut look = Look::default();
    let any = kinds.is_empty().then_some(None);
    let mut walks: VecDeque<Walk<'a>> =
        kinds.iter().map(|kind| Some(*kind)).chain(any).map(|kind| Walk::begin(kind, offer)).collect();
    let (mut older, mut looks) = (Vec::new(), 0);
    // Sent together with the first statements for keys.
    let mut due = Some((NEXT_DUE, Vec::new()));
    while !walks.is_empty() {
        if looks >= LOOKS_MAX {
            look.partial = true;
            break;
        }
        let room = STATEMENTS_MAX - usize::from(due.is_some());
        let some: Vec<Walk<'a>> = walks.drain(..walks.len().min(room)).collect();
        let asked: Vec<Statement<'_>> = due.iter().cloned().chain(some.iter().map(Walk::statement)).collect();
        let mut answers = tx.query_all(&asked).await?.into_iter();
        if due.take().is_some() {
            look.next_due = answers.next().unwrap_or_default().first().map(|row| row.time(0)).transpose()?;
        }
        looks += some.len();
        for (walk, rows) in some.into_iter().zip(answers) {
            let keys = rows.iter().map(|row| row.bytes(0)).collect::<Result<Vec<_>>>()?;
            for key in keys.iter().filter(|key| walk.reaches(key)) {
                let line = Line { kind: walk.kind, needs: key.to_vec() };
                if needs::is_older(key) {
                    older.push(line);
                } else if offer.fits(key) {
                    look.lines.push(line);
                }
            }
            walks.extend(walk.go_on(&keys, offer, anywhere));
        }
    }
    look.lines.extend(fitting_by_their_tasks(tx, older, offer).await?);
    Ok(look)
}

/// Those of the older lines that fit. Their keys do not say what their tasks need, so one task of each is read.
async fn fitting_by_their_tasks<'a>(tx: &mut Tx<'_>, older: Vec<Line<'a>>, offer: &Offer<'_>) -> Result<Vec<Line<'a>>> {
    let mut fitting = Vec::new();
    for some in older.chunks(STATEMENTS_MAX) {
        let asked: Vec<Statement<'_>> =
            some.iter().map(|line| (REQUIREMENTS, vec![Value::from(line.needs())])).collect();
        for (line, rows) in some.iter().zip(tx.query_all(&asked).await?) {
            let Some(row) = rows.first() else { continue };
            let needed: Requirements = serde_json::from_str(row.text(0)?).map_err(Error::internal)?;
            if offer.has(&needed.capabilities) {
                fitting.push(line.clone());
            }
        }
    }
    Ok(fitting)
}

/// A walk along the keys of one type, or of all types.
#[derive(Debug)]
struct Walk<'a> {
    kind: Option<&'a str>,
    from: Vec<u8>,
    /// Where another walk began.
    until: Option<Vec<u8>>,
    keys: i64,
}

impl<'a> Walk<'a> {
    fn begin(kind: Option<&'a str>, offer: &Offer<'_>) -> Self {
        let keys = if offer.is_nothing() { 1 } else { KEYS_MAX };
        Self { kind, from: Vec::new(), until: None, keys }
    }

    fn statement(&self) -> Statement<'_> {
        by_type(KEYS, self.kind, vec![Value::from(&self.from[..]), self.keys.into()])
    }

    fn reaches(&self, key: &[u8]) -> bool {
        self.until.as_deref().is_none_or(|until| key < until)
    }

    /// The walks that remain after these keys. A first walk splits in two, and the second half begins at a random key.
    fn go_on(self, found: &[&[u8]], offer: &Offer<'_>, anywhere: Mark) -> Vec<Self> {
        let last = found.last().filter(|_| found.len() as i64 >= self.keys);
        let Some((last, next)) = last.and_then(|last| Some((last, offer.next(last)?))) else { return Vec::new() };
        if !self.reaches(&next) {
            return Vec::new();
        }
        let keys = if !needs::is_older(last) && offer.fits(last) { KEYS_MAX } else { KEYS_FEW };
        let rest = |from: Vec<u8>, until: Option<Vec<u8>>| Self { kind: self.kind, from, until, keys };
        match offer.next(&anywhere).filter(|middle| self.from.is_empty() && *middle > next) {
            Some(middle) => vec![rest(middle.clone(), None), rest(next, Some(middle))],
            None => vec![rest(next, self.until.clone())],
        }
    }
}

/// Where a task stands. Lowest first: priority turned round, then age, then id.
type Position = (i64, i64, TaskId);

fn position(row: &Row) -> Result<Position> {
    Ok((-row.int(0)?, row.int(1)?, TaskId::from_slice(row.bytes(2)?)?))
}

/// Several lines, merged into one.
#[derive(Debug)]
pub(crate) struct Merged<'a> {
    lines: Vec<Known<'a>>,
    /// In order. No unread task comes before any of these.
    ready: VecDeque<Position>,
    passed: Option<Position>,
}

/// A line, and the positions read from it so far.
#[derive(Debug)]
struct Known<'a> {
    line: Line<'a>,
    positions: Vec<Position>,
    asked: i64,
    whole: bool,
}

impl<'a> Merged<'a> {
    pub(crate) fn new(lines: Vec<Line<'a>>) -> Self {
        let lines =
            lines.into_iter().map(|line| Known { line, positions: Vec::new(), asked: 0, whole: false }).collect();
        Self { lines, ready: VecDeque::new(), passed: None }
    }

    /// The tasks in front. When there are none, more must be read.
    pub(crate) fn front(&self) -> Vec<TaskId> {
        self.ready.iter().take(CANDIDATES_MAX).map(|(.., task_id)| *task_id).collect()
    }

    /// Passes over `count` tasks in front, which this claim or others have taken.
    pub(crate) fn pass(&mut self, count: usize) {
        self.passed = self.ready.drain(..count).next_back().or(self.passed);
    }

    /// Reads more of the lines. False when there is nothing more.
    pub(crate) async fn read_on(&mut self, tx: &mut Tx<'_>, wanted: i64) -> Result<bool> {
        let mut unread: Vec<&mut Known<'_>> = self.lines.iter_mut().filter(|known| !known.whole).collect();
        if unread.is_empty() {
            return Ok(false);
        }
        for some in unread.chunks_mut(STATEMENTS_MAX) {
            for known in some.iter_mut() {
                known.asked = if known.asked == 0 { wanted + AHEAD } else { known.asked * FURTHER };
            }
            let asked: Vec<Statement<'_>> = some.iter().map(|known| known.statement()).collect();
            let answers = tx.query_all(&asked).await?;
            for (known, rows) in some.iter_mut().zip(answers) {
                known.positions = rows.iter().map(position).collect::<Result<_>>()?;
                known.whole = (rows.len() as i64) < known.asked;
            }
        }
        let unknown_after =
            self.lines.iter().filter(|known| !known.whole).filter_map(|known| known.positions.last()).min();
        let is_ready = |position: &&Position| {
            self.passed.is_none_or(|passed| **position > passed) && unknown_after.is_none_or(|last| *position <= last)
        };
        let mut ready: Vec<Position> =
            self.lines.iter().flat_map(|known| &known.positions).filter(is_ready).copied().collect();
        ready.sort_unstable();
        self.ready = ready.into();
        Ok(true)
    }
}

impl Known<'_> {
    fn statement(&self) -> Statement<'_> {
        self.line.statement(POSITIONS, vec![Value::from(self.line.needs()), self.asked.into()])
    }
}
