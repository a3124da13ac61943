//! The database and the archive compared with each other, and the archive made what the database says.
//!
//! Both walk over everything that the archive has to hold ([`Walk`]). A check reads the archive beside it and changes nothing; a rebuild
//! writes what is missing or different, removes what no row stands for (the history keeps it), and makes the plain files the same.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use waybill_archive::layout::kind_of;
use waybill_archive::names::ArchivePath;
use waybill_archive::repo::{Archive, Author, COMMITTER_NAME, Change, Oid, ProjectKey, Window};
use waybill_kernel::{Code, Error, Mode, Result, Tenant};
use waybill_store::{Ctx, Store, Tx, Work};

use crate::rows::Whose;
use crate::turn::blocking;
use crate::walk::{Piece, Step, Walk};
use crate::{Draft, Owner, probe};

/// Findings that are listed; all of them are counted.
const FINDINGS_MAX: usize = 1_000;
/// Files removed in one commit.
const REMOVED_AT_ONCE: usize = 1_000;
/// Memory of one piece.
const PIECE_BYTES: usize = 8 << 20;

/// What a check or a rebuild came to, for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Nothing is missing, different, too much, damaged or unfileable.
    pub consistent: bool,
    pub projects: u64,
    /// Files that the database stands for.
    pub files: u64,
    /// In the database and not in the archive.
    pub missing: u64,
    /// In both, with another content.
    pub different: u64,
    /// In the archive and not in the database.
    pub extra: u64,
    /// Plain files that are not what the repository has.
    pub files_apart: u64,
    /// Repositories that cannot be read.
    pub damaged: u64,
    /// In the database, and nothing that could be written as a file.
    pub unfileable: u64,
    /// Archives of projects that the database does not have: `reconcile --reindex` takes them in.
    pub unknown_projects: Vec<String>,
    /// Rows that wait to be archived.
    pub waiting_rows: u64,
    /// What a rebuild has written or removed.
    pub written: u64,
    pub removed: u64,
    /// At most a thousand of them.
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub project: String,
    pub what: What,
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Missing,
    Different,
    Extra,
    FileApart,
    Damaged,
    /// `path` says what it is: it has none.
    Unfileable,
    UnknownProject,
}

impl Report {
    fn find(&mut self, owner: &Owner, what: What, path: &str) {
        self.found(&format!("{}/{}", owner.tenant_name, owner.slug), what, path);
    }

    fn found(&mut self, project: &str, what: What, path: &str) {
        match what {
            What::Missing => self.missing += 1,
            What::Different => self.different += 1,
            What::Extra => self.extra += 1,
            What::FileApart => self.files_apart += 1,
            What::Damaged => self.damaged += 1,
            What::Unfileable => self.unfileable += 1,
            What::UnknownProject => self.unknown_projects.push(project.to_owned()),
        }
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { project: project.to_owned(), what, path: path.to_owned() });
        }
    }

    fn conclude(mut self) -> Self {
        let apart = self.missing + self.different + self.extra + self.files_apart + self.damaged + self.unfileable;
        self.consistent = apart == 0 && self.unknown_projects.is_empty();
        self
    }
}

/// How far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub projects: usize,
    pub projects_done: usize,
    pub messages: i64,
    pub messages_done: i64,
}

/// Compares, and changes nothing.
pub async fn check(store: &Store, archive: &Arc<Archive>, told: impl FnMut(&Progress)) -> Result<Report> {
    Reconcile::new(store, archive, told).check().await
}

/// Makes the archive what the database says. Afterwards a check finds nothing, and a second rebuild writes nothing.
pub async fn rebuild(store: &Store, archive: &Arc<Archive>, told: impl FnMut(&Progress)) -> Result<Report> {
    Reconcile::new(store, archive, told).rebuild().await
}

struct Reconcile<'a, F> {
    store: &'a Store,
    archive: &'a Arc<Archive>,
    told: F,
    progress: Progress,
    report: Report,
}

impl<'a, F: FnMut(&Progress)> Reconcile<'a, F> {
    fn new(store: &'a Store, archive: &'a Arc<Archive>, told: F) -> Self {
        Self { store, archive, told, progress: Progress::default(), report: Report::default() }
    }

    async fn check(mut self) -> Result<Report> {
        let owners = self.begin().await?;
        for owner in &owners {
            self.check_one(owner).await?;
            self.next_project();
        }
        self.unknown(&owners).await?;
        Ok(self.report.conclude())
    }

    async fn rebuild(mut self) -> Result<Report> {
        let owners = self.begin().await?;
        for owner in &owners {
            self.rebuild_one(owner).await?;
            self.next_project();
        }
        self.unknown(&owners).await?;
        Ok(self.report.conclude())
    }

    /// All archives that there should be.
    async fn begin(&mut self) -> Result<Vec<Owner>> {
        let mut owners = self.store.system().run(probe::Tenants).await?;
        let mut after = (Tenant(0), 0);
        loop {
            let some = self.store.system().run(probe::Projects(after)).await?;
            let Some(last) = some.last() else { break };
            after = last.whose();
            owners.extend(some);
        }
        let counts = self.store.system().run(Count).await?;
        self.progress = Progress { projects: owners.len(), messages: counts.0, ..Progress::default() };
        self.report.waiting_rows = counts.1.unsigned_abs();
        (self.told)(&self.progress);
        Ok(owners)
    }

    fn next_project(&mut self) {
        self.report.projects += 1;
        self.progress.projects_done += 1;
        (self.told)(&self.progress);
    }

    async fn check_one(&mut self, owner: &Owner) -> Result<()> {
        let (archive, key) = (Arc::clone(self.archive), owner.key());
        let look = blocking(move || archive.look(&key)).await?.map_err(unreadable)?.unwrap_or_default();
        if let Some(why) = &look.damage {
            self.report.find(owner, What::Damaged, why);
        }
        // A page of a thread, or what came with several messages, may belong to two pieces.
        let mut seen = HashSet::new();
        let mut walk = owner.walk(PIECE_BYTES);
        while let Some(draft) = self.next_piece(&mut walk).await? {
            for (path, id) in expected(draft).await? {
                match look.tree.get(&path) {
                    _ if seen.contains(&path) => continue,
                    None => self.report.find(owner, What::Missing, &path),
                    Some(there) if *there != id => self.report.find(owner, What::Different, &path),
                    Some(_) => {}
                }
                self.report.files += 1;
                seen.insert(path);
            }
        }
        for path in look.tree.keys().filter(|path| !seen.contains(*path) && kind_of(path).is_some()) {
            self.report.find(owner, What::Extra, path);
        }
        let files = look.files;
        for path in files.only_in_tree.iter().chain(&files.only_in_files).chain(&files.different) {
            self.report.find(owner, What::FileApart, path);
        }
        Ok(())
    }

    async fn rebuild_one(&mut self, owner: &Owner) -> Result<()> {
        let covered = self.store.system().run(Covered(owner.whose())).await?;
        let unfileable = self.report.unfileable;
        self.replace_damaged(owner).await?;
        let mut left = self.listing(owner).await?;
        let mut begun = String::new();
        let mut walk = owner.walk(PIECE_BYTES);
        while let Some(draft) = self.next_piece(&mut walk).await? {
            let draft = Arc::new(draft);
            for (path, _) in expected(Draft::clone(&draft)).await? {
                self.report.files += 1;
                left.remove(&path);
            }
            let (archive, of) = (Arc::clone(self.archive), Arc::clone(&draft));
            let apply = move || archive.apply(&of.owner.key(), &of.window()?);
            let applied = blocking(apply).await?.map_err(unwritable)?;
            self.report.written += applied.written as u64;
            begun = applied.begun;
        }
        let extra: Vec<String> = left.into_keys().filter(|path| kind_of(path).is_some()).collect();
        self.remove(owner, extra).await?;
        let (archive, key, now) = (Arc::clone(self.archive), owner.key(), self.store.now());
        if archive.exists(&key) {
            let settle = move || {
                let restored = archive.restore_files(&key, now)?;
                archive.settled(&key, &begun, now).map(|_| restored)
            };
            self.report.written += blocking(settle).await?.map_err(unwritable)? as u64;
        }
        // What could not be written stays known, by the rows that were set aside for it.
        let all = self.report.unfileable == unfileable;
        self.store.system().run(Clear { whose: owner.whose(), covered, all }).await
    }

    /// A repository that lacks what its tree names begins again with the files: it would not be given that a second time.
    async fn replace_damaged(&self, owner: &Owner) -> Result<()> {
        let (archive, key, now) = (Arc::clone(self.archive), owner.key(), self.store.now());
        let replace = move || -> waybill_archive::Result<()> {
            let damage = || archive.look(&key).map(|look| look.and_then(|look| look.damage));
            if !archive.exists(&key) || damage()?.is_none() {
                return Ok(());
            }
            // Opening it heals what the newest commit tells.
            archive.listing(&key, now)?;
            match damage()? {
                Some(why) => archive.begin_again(&key, &why, now),
                None => Ok(()),
            }
        };
        blocking(replace).await?.map_err(unwritable)
    }

    /// Empty where there is no archive yet: none is made before there is something to write.
    async fn listing(&self, owner: &Owner) -> Result<BTreeMap<String, Oid>> {
        let (archive, key, now) = (Arc::clone(self.archive), owner.key(), self.store.now());
        if !archive.exists(&key) && !archive.has_files(&key) {
            return Ok(BTreeMap::new());
        }
        blocking(move || archive.listing(&key, now)).await?.map_err(unwritable)
    }

    async fn remove(&mut self, owner: &Owner, extra: Vec<String>) -> Result<()> {
        for some in extra.chunks(REMOVED_AT_ONCE) {
            let changes =
                some.iter().filter_map(|path| ArchivePath::new(path.clone()).ok()).map(Change::remove).collect();
            let window = Window {
                changes,
                subject: format!("archive: {} files without a row removed", some.len()),
                body: String::new(),
                author: Author { name: COMMITTER_NAME.to_owned(), email: "archive@waybill.invalid".to_owned() },
                at: self.store.now(),
            };
            let (archive, key) = (Arc::clone(self.archive), owner.key());
            blocking(move || archive.apply(&key, &window)).await?.map_err(unwritable)?;
            self.report.removed += some.len() as u64;
        }
        Ok(())
    }

    /// The next piece that has something in it; None at the end.
    async fn next_piece(&mut self, walk: &mut Walk) -> Result<Option<Draft>> {
        while walk.step != Step::Done {
            let is_message = matches!(walk.step, Step::Messages(_));
            let Piece { draft, next } = self.store.system().run(walk.clone()).await?;
            walk.step = next;
            let Some(mut draft) = draft else { continue };
            for what in draft.leave_out() {
                self.report.find(&draft.owner, What::Unfileable, &what);
            }
            if draft.items.is_empty() {
                continue;
            }
            if is_message {
                let count = draft.items.iter().filter(|item| matches!(item, crate::Item::Message(_))).count();
                self.progress.messages_done += i64::try_from(count).unwrap_or_default();
                (self.told)(&self.progress);
            }
            return Ok(Some(draft));
        }
        Ok(None)
    }

    async fn unknown(&mut self, owners: &[Owner]) -> Result<()> {
        let archive = Arc::clone(self.archive);
        let there = blocking(move || archive.projects()).await?.map_err(unreadable)?;
        let known: Vec<ProjectKey> = owners.iter().map(Owner::key).collect();
        for key in there.iter().filter(|key| !known.contains(key)) {
            let name = format!("{}/{}", key.tenant_folder(), key.project_folder());
            self.report.found(&name, What::UnknownProject, "");
        }
        Ok(())
    }
}

/// Every path with the id that its content has in a repository.
async fn expected(draft: Draft) -> Result<Vec<(String, Oid)>> {
    let ids = move || -> waybill_archive::Result<Vec<(String, Oid)>> {
        let mut ids = Vec::new();
        for change in draft.changes()? {
            if let Some(id) = change.id()? {
                ids.push((change.path.as_str().to_owned(), id));
            }
        }
        // Of two in one piece the later one counts, as in a window.
        let last: BTreeMap<String, Oid> = ids.into_iter().collect();
        Ok(last.into_iter().collect())
    };
    blocking(ids).await?.map_err(Error::internal)
}

fn unreadable(error: waybill_archive::Error) -> Error {
    Error::new(Code::PathUnusable, format!("The archive cannot be read: {error}."))
}

fn unwritable(error: waybill_archive::Error) -> Error {
    Error::new(Code::PathUnusable, format!("The archive cannot be written: {error}."))
}

/// Messages, and rows that wait.
struct Count;

impl Work for Count {
    type Output = (i64, i64);

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<(i64, i64)> {
        const MESSAGES: &str = "SELECT count(*) FROM mail_messages";
        const ROWS: &str = "SELECT count(*) FROM mail_archive_rows";
        let found = tx.query_all(&[(MESSAGES, Vec::new()), (ROWS, Vec::new())]).await?;
        let count = |at: usize| found[at].first().map_or(Ok(0), |row| row.int(0));
        Ok((count(0)?, count(1)?))
    }
}

/// The last row that a walk which begins now covers.
struct Covered(Whose);

impl Work for Covered {
    type Output = Option<(i64, i64)>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<(i64, i64)>> {
        const LAST: &str = "SELECT xact, row FROM mail_archive_rows WHERE tenant = $1 AND project = $2 AND xact < $3 \
                            ORDER BY xact DESC, row DESC LIMIT 1";
        let horizon = tx.horizon().await?;
        let row = tx.as_tenant(self.0.0).query_opt(LAST, &[self.0.1.into(), horizon.into()]).await?;
        row.map(|row| Ok((row.int(0)?, row.int(1)?))).transpose()
    }
}

/// Rows whose things the walk has written; where those are all that there are, also rows that were set aside.
struct Clear {
    whose: Whose,
    covered: Option<(i64, i64)>,
    all: bool,
}

impl Work for Clear {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const WRITTEN: &str = "DELETE FROM mail_archive_rows WHERE tenant = $1 AND project = $2 AND (xact, row) <= ($3, $4) \
                               AND state <> 'failed'";
        const ALL: &str =
            "DELETE FROM mail_archive_rows WHERE tenant = $1 AND project = $2 AND (xact, row) <= ($3, $4)";
        let Clear { whose: (tenant, project), covered: Some((xact, row)), all } = self else { return Ok(()) };
        let sql = if *all { ALL } else { WRITTEN };
        tx.as_tenant(*tenant).execute(sql, &[(*project).into(), (*xact).into(), (*row).into()]).await.map(drop)
    }
}
