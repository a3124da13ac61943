//! Reservations of an archive, also those that are over.

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Tx, Value, Work};

use super::{BATCH_MAX, Put, check_number, check_text, numbered};
use crate::archive_rows::{self, ArchiveKind};
use crate::reservations::REASON_CHARS_MAX;
use crate::rules::paths::Path;

/// A character has up to four bytes.
const UTF8_MAX: usize = 4;

#[derive(Clone, Debug)]
pub struct ReservationRecord {
    pub number: i64,
    pub project: i64,
    pub agent: i64,
    pub path: String,
    pub exclusive: bool,
    pub reason: String,
    pub created_at: Time,
    pub expires_at: Time,
    pub released_at: Option<Time>,
}

/// At most [`BATCH_MAX`] of them.
pub struct PutReservations {
    pub tenant: Tenant,
    pub records: Vec<ReservationRecord>,
    pub archived: bool,
}

impl Work for PutReservations {
    /// In the order of the records.
    type Output = Vec<Put>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Put>> {
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} reservations at once");
        let tx = &mut *tx.as_tenant(self.tenant);
        let mut outcomes = Vec::with_capacity(self.records.len());
        for record in &self.records {
            let checked = check_number(record.number)
                .and_then(|()| check_text("its reason", &record.reason, REASON_CHARS_MAX * UTF8_MAX))
                .and_then(|()| Path::read(&record.path).map_err(|error| error.message().to_owned()));
            outcomes.push(match checked {
                Err(why) => Put::Refused(why),
                Ok(path) => self.put(ctx, tx, record, &path).await?,
            });
        }
        Ok(outcomes)
    }
}

impl PutReservations {
    async fn put(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, record: &ReservationRecord, path: &Path) -> Result<Put> {
        const INSERT: waybill_store::Sql = numbered!(
            "mail_reservations",
            "tenant, project, agent, path, head, exclusive, reason, created_at, expires_at, released_at, reservation",
            "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11"
        );
        if let Some(put) = there(tx, record, path).await? {
            return Ok(put);
        }
        let params = [
            record.project.into(),
            record.agent.into(),
            Value::from(path.text.as_str()),
            Value::from(path.pattern.head().unwrap_or("")),
            record.exclusive.into(),
            Value::from(&record.reason),
            record.created_at.into(),
            record.expires_at.into(),
            record.released_at.into(),
            record.number.into(),
        ];
        let sql = tx.text(INSERT);
        if tx.execute(sql, &params).await? == 0 {
            return Ok(there(tx, record, path).await?.unwrap_or_else(taken));
        }
        if self.archived {
            archive_rows::note(tx, ctx.now, record.project, ArchiveKind::Reservation, record.number).await?;
        }
        Ok(Put::Written)
    }
}

fn taken() -> Put {
    Put::Refused("its number is taken by another reservation".to_owned())
}

/// It may have been renewed or released since: then the database knows better.
async fn there(tx: &mut Tx<'_>, record: &ReservationRecord, path: &Path) -> Result<Option<Put>> {
    const STORED: &str =
        "SELECT project, agent, path, created_at FROM mail_reservations WHERE tenant = $1 AND reservation = $2";
    let Some(row) = tx.query_opt(STORED, &[record.number.into()]).await? else { return Ok(None) };
    let same = row.int(0)? == record.project
        && row.int(1)? == record.agent
        && row.text(2)? == path.text
        && row.time(3)? == record.created_at;
    Ok(Some(if same { Put::Known } else { taken() }))
}
