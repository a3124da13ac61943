//! The words of all messages once more, where the index of a salvaged database cannot be trusted.

use waybill_kernel::{Mode, Result, Tenant};
use waybill_store::{Ctx, Row, Sql, Tx, Work};

use super::BATCH_MAX;
use crate::search::index::{Words, index};

/// Empties the index. Nobody finds anything until [`IndexAgain`] has come to its end.
pub struct ForgetWords;

impl Work for ForgetWords {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const FORGET: Sql = Sql {
            sqlite: "INSERT INTO mail_fts (mail_fts) VALUES ('delete-all')",
            postgres: "DELETE FROM mail_search",
        };
        let sql = tx.text(FORGET);
        tx.execute(sql, &[]).await.map(drop)
    }
}

/// The messages behind this number, at most [`BATCH_MAX`] of them.
pub struct IndexAgain(pub i64);

impl Work for IndexAgain {
    /// The number of the last one; None at the end.
    type Output = Option<i64>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<i64>> {
        const NEXT: &str = "SELECT m.message, m.tenant, m.project, m.sender, a.principal, m.thread, m.importance, m.subject, \
            m.body, m.created_at FROM mail_messages m JOIN mail_agents a ON a.tenant = m.tenant AND a.agent = m.sender \
            WHERE m.message > $1 ORDER BY m.message LIMIT $2";
        let rows = tx.query(NEXT, &[self.0.into(), (BATCH_MAX as i64).into()]).await?;
        for row in &rows {
            again(tx, row).await?;
        }
        rows.last().map(|row| row.int(0)).transpose()
    }
}

async fn again(tx: &mut Tx<'_>, row: &Row) -> Result<()> {
    const PARTIES: &str = "SELECT a.project, a.principal FROM mail_recipients r \
        JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent WHERE r.tenant = $1 AND r.message = $2";
    let (id, tenant) = (row.int(0)?, Tenant(row.int(1)?));
    let tx = &mut *tx.as_tenant(tenant);
    let parties = tx.query(PARTIES, &[id.into()]).await?;
    let recipients = parties.iter().map(|row| Ok((row.int(0)?, row.text(1)?))).collect::<Result<Vec<_>>>()?;
    let words = Words {
        tenant,
        project: row.int(2)?,
        sender: row.int(3)?,
        principal: row.text(4)?,
        recipients,
        thread: row.text_opt(5)?,
        importance: row.text(6)?,
        subject: row.text(7)?,
        body: row.text(8)?,
    };
    index(tx, &words, id, row.time(9)?).await
}
