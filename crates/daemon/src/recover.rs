//! Makes a damaged outbox.db usable: what can be read comes into a fresh file, the damaged one is kept aside.
//!
//! A lost row is a message that is perhaps never sent, so nothing of this happens by itself: the daemon refuses to start, and a
//! person decides. An id whose row is lost is free again to this daemon; should the broker have taken it, it still knows the id.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use waybill_kernel::{Clock, Code, Entropy, Error, Mode, Result};
use waybill_store::safety::{self, Salvage, SalvagedTable, Watch, Way};
use waybill_store::{Backend, Ctx, Settings, SqliteOptions, Store, Tx, Work};

use crate::folder::{self, Folder};
use crate::{Lock, outbox};

const TABLE: &str = "outbox";

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recovered {
    pub damaged: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// All rows came out.
    pub complete: bool,
    /// Messages in the new file, by what has become of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<(String, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// Where the damaged files lie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_in: Option<PathBuf>,
}

impl Recovered {
    fn sound() -> Self {
        Self { damaged: false, finding: None, complete: true, messages: Vec::new(), damage: None, kept_in: None }
    }
}

/// # Errors
/// `daemon_running` while a daemon has the folder; `not_found` where there is no outbox.
pub async fn recover(folder: &Folder, clock: &Arc<Clock>, entropy: &Arc<dyn Entropy>) -> Result<Recovered> {
    let _lock = Lock::take(folder)?;
    let path = folder.file(folder::OUTBOX);
    if !path.try_exists().unwrap_or(true) {
        return Err(Error::new(Code::NotFound, format!("There is no {}.", path.display()))
            .with_cure("The first start of a daemon makes one."));
    }
    let salvaged = {
        let (path, entropy, now) = (path.clone(), Arc::clone(entropy), clock.now());
        let aside = folder.file(&format!("{}.damaged-{}", folder::OUTBOX, now.micros() / 1_000_000));
        tokio::task::spawn_blocking(move || salvage(&path, &aside, entropy.as_ref(), now)).await
    };
    let salvaged = salvaged.map_err(Error::internal)??;
    // Also of a sound file: a run before may have been killed when the file was in its place and its lines were not.
    let messages = settle(&path, clock, entropy).await?;
    let Some(salvaged) = salvaged else { return Ok(Recovered::sound()) };
    let damage = salvaged.incomplete().find(|table| table.table == TABLE).and_then(|table| table.damage.clone());
    let complete = salvaged.way == Way::Whole || salvaged.incomplete().next().is_none();
    Ok(Recovered {
        damaged: true,
        // What follows is advice about the server's database.
        finding: salvaged.finding.split(". ").next().map(str::to_owned),
        complete,
        messages,
        damage: damage.or_else(|| salvaged.incomplete().find_map(|SalvagedTable { damage, .. }| damage.clone())),
        kept_in: Some(salvaged.quarantine.clone()),
    })
}

fn salvage(
    path: &Path,
    aside: &Path,
    entropy: &dyn Entropy,
    now: waybill_kernel::Time,
) -> Result<Option<safety::Salvaged>> {
    let Some(finding) = safety::finding(path)? else { return Ok(None) };
    let salvage = Salvage { database: path, quarantine: aside, finding, migrations: outbox::MIGRATIONS, entropy, now };
    // Whatever can be read is better than nothing, and what was found is kept.
    salvage.run(|_| Ok(()), &Watch::none()).map(Some)
}

/// The lines are made anew: a head that was lost would hold its destination for ever.
async fn settle(path: &Path, clock: &Arc<Clock>, entropy: &Arc<dyn Entropy>) -> Result<Vec<(String, u64)>> {
    let options = SqliteOptions { name: "outbox".to_owned(), ..SqliteOptions::at(path) };
    let (clock, entropy) = (Arc::clone(clock), Arc::clone(entropy));
    let store = Store::open(Backend::Sqlite(options), outbox::MIGRATIONS, Settings::default(), clock, entropy).await?;
    let counted = store.system().run(Settle).await;
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
    counted
}

struct Settle;

impl Work for Settle {
    type Output = Vec<(String, u64)>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const HEADS: &str = "UPDATE outbox SET is_head = 1 - is_head WHERE is_head <> CASE WHEN id IN (SELECT min(o.id) \
                             FROM outbox o WHERE o.status IN ('pending', 'inflight') \
                             GROUP BY o.destination_kind, o.destination_ref) THEN 1 ELSE 0 END";
        const COUNT: &str = "SELECT status, count(*) FROM outbox GROUP BY status ORDER BY status";
        tx.execute(HEADS, &[]).await?;
        let rows = tx.query(COUNT, &[]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?.unsigned_abs()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt;

    use waybill_kernel::entropy::OsEntropy;

    use super::*;
    use crate::outbox::{Accept, Outbox, Outcome, Parcel, Query, Status};

    const LINES: usize = 10;
    const MESSAGES: usize = 400;
    const PAGE: usize = 4_096;

    struct Stage {
        _home: tempfile::TempDir,
        folder: Folder,
        clock: Arc<Clock>,
        entropy: Arc<dyn Entropy>,
    }

    impl Stage {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let folder = Folder::open(home.path(), "acme").unwrap();
            Self { _home: home, folder, clock: Arc::new(Clock::system()), entropy: Arc::new(OsEntropy) }
        }

        async fn open(&self) -> Result<Outbox> {
            let settings = crate::config::Outbox { restart_pause_ms: 0, ..crate::config::Outbox::default() };
            Outbox::open(&self.folder.file(folder::OUTBOX), settings, &self.clock, &self.entropy).await
        }

        /// Messages in turn for every destination, the first half of them delivered: so the heads are where the damage will be.
        async fn fill(&self) {
            let outbox = self.open().await.unwrap();
            for number in 0..MESSAGES {
                let parcel = Parcel {
                    envelope: "e".repeat(500),
                    wire_fingerprint: [7; 32],
                    destination_kind: "topic".to_owned(),
                    destination_ref: format!("line-{}", number % LINES),
                    key_id: None,
                    epoch: None,
                };
                let accept = Accept {
                    client_message_id: format!("m-{number}"),
                    request_fingerprint: [3; 32],
                    request: "{}".to_owned(),
                    parcel,
                };
                outbox.accept(accept).await.unwrap();
            }
            for _ in 0..MESSAGES / LINES / 2 {
                for flight in outbox.claim(LINES).await.unwrap().flights {
                    let done = Outcome::Delivered { broker_message_id: "b".to_owned(), history_id: None };
                    outbox.settle(flight.id, done).await.unwrap();
                }
            }
            close(outbox).await;
        }
    }

    async fn close(outbox: Outbox) {
        tokio::task::spawn_blocking(move || outbox.store().close()).await.unwrap();
    }

    /// Spoils the page of the table that has this row; an index has the id as well, but no envelope.
    fn damage(path: &Path, id: &str) {
        let bytes = std::fs::read(path).unwrap();
        let has = |page: &[u8], text: &[u8]| page.windows(text.len()).any(|bytes| bytes == text);
        let page = bytes.chunks(PAGE).position(|page| has(page, id.as_bytes()) && has(page, b"eeeeeeee")).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&[0xa5; PAGE], (page * PAGE) as u64).unwrap();
    }

    #[tokio::test]
    async fn what_can_be_read_of_a_damaged_outbox_is_sent_and_the_rest_is_kept() {
        let stage = Stage::new();
        stage.fill().await;
        let path = stage.folder.file(folder::OUTBOX);
        damage(&path, &format!("m-{}", MESSAGES / 2 + LINES / 2));
        assert_eq!(stage.open().await.err().unwrap().code(), Code::OutboxDamaged);

        let recovered = recover(&stage.folder, &stage.clock, &stage.entropy).await.unwrap();
        assert!(recovered.damaged && !recovered.complete, "{recovered:?}");
        let kept = recovered.kept_in.unwrap().join(folder::OUTBOX);
        assert!(kept.is_file(), "the damaged file is kept");
        let saved: u64 = recovered.messages.iter().map(|(_, count)| *count).sum();
        assert!(saved > 0 && saved < MESSAGES as u64, "{:?}", recovered.messages);

        // Every line that has something left has a head, and can be sent.
        let outbox = stage.open().await.unwrap();
        let listed = outbox.list(Query { limit: Some(1_000), ..Query::default() }).await.unwrap();
        assert_eq!(listed.messages.len() as u64, saved);
        let waiting: BTreeSet<String> = listed
            .messages
            .into_iter()
            .filter(|message| message.status == Status::Pending)
            .map(|message| message.destination_ref)
            .collect();
        let claimed = outbox.claim(1_000).await.unwrap();
        let heads: BTreeSet<String> = claimed.flights.into_iter().map(|flight| flight.destination_ref).collect();
        assert_eq!(heads, waiting);
        close(outbox).await;
    }

    /// As a row that was lost leaves its line.
    struct Behead;

    impl Work for Behead {
        type Output = u64;

        fn mode(&self) -> Mode {
            Mode::Write
        }

        async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
            tx.execute("UPDATE outbox SET is_head = 0 WHERE is_head = 1", &[]).await
        }
    }

    #[tokio::test]
    async fn a_run_that_was_killed_before_the_lines_had_heads_is_made_up_for_by_another() {
        let stage = Stage::new();
        stage.fill().await;
        let outbox = stage.open().await.unwrap();
        assert_eq!(outbox.store().system().run(Behead).await.unwrap(), LINES as u64);
        close(outbox).await;
        assert_eq!(recover(&stage.folder, &stage.clock, &stage.entropy).await.unwrap(), Recovered::sound());
        let outbox = stage.open().await.unwrap();
        assert_eq!(outbox.claim(1_000).await.unwrap().flights.len(), LINES);
        close(outbox).await;
    }

    #[tokio::test]
    async fn a_sound_outbox_is_left_alone_and_one_in_use_is_refused() {
        let stage = Stage::new();
        let absent = recover(&stage.folder, &stage.clock, &stage.entropy).await.unwrap_err();
        assert_eq!(absent.code(), Code::NotFound);
        stage.fill().await;
        assert_eq!(recover(&stage.folder, &stage.clock, &stage.entropy).await.unwrap(), Recovered::sound());
        let _lock = Lock::take(&stage.folder).unwrap();
        let held = recover(&stage.folder, &stage.clock, &stage.entropy).await.unwrap_err();
        assert_eq!(held.code(), Code::DaemonRunning);
    }
}
