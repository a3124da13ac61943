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
    let Some(salvaged) = salvaged.map_err(Error::internal)?? else { return Ok(Recovered::sound()) };
    let messages = settle(&path, clock, entropy).await?;
    let damage = salvaged.incomplete().find(|table| table.table == TABLE).and_then(|table| table.damage.clone());
    let complete = salvaged.way == Way::Whole || salvaged.incomplete().next().is_none();
    Ok(Recovered {
        damaged: true,
        finding: Some(salvaged.finding.clone()),
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
        const HEADS: &str = "UPDATE outbox SET is_head = CASE WHEN id IN (SELECT min(o.id) FROM outbox o \
                             WHERE o.status IN ('pending', 'inflight') GROUP BY o.destination_kind, o.destination_ref) \
                             THEN 1 ELSE 0 END";
        const COUNT: &str = "SELECT status, count(*) FROM outbox GROUP BY status ORDER BY status";
        tx.execute(HEADS, &[]).await?;
        let rows = tx.query(COUNT, &[]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?.unsigned_abs()))).collect()
    }
}
