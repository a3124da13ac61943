//! What counts as stored, over all domains: the columns that the sums of `stored_bytes` are made of, compared with the sums.

use waybill_kernel::{Error, Mode, Result, Tenant};
use waybill_store::{Ctx, Migration, StoreRole, Stored, Tx, Work};

/// The migration of home that spans domains: it comes after all of theirs.
pub(crate) const AT_HOME: Migration =
    Migration { version: 74, name: "stored_at_home", sql: include_str!("../schema/V0074__stored_at_home.sql") };

/// One statement, so that all of it is of the same moment on PostgreSQL too.
macro_rules! compare {
    ($more:expr) => {
        concat!(
            "SELECT tenant, kind, CAST(sum(counted) AS BIGINT), CAST(sum(stored) AS BIGINT) FROM (\
             SELECT tenant, kind, bytes AS counted, 0 AS stored FROM stored_bytes UNION ALL SELECT tenant, 'rows', 0, \
             octet_length(body) + coalesce(octet_length(attributes), 0) FROM messages",
            $more,
            ") AS every GROUP BY tenant, kind HAVING sum(counted) <> sum(stored) ORDER BY tenant, kind"
        )
    };
}

const OF_SHARD: &str = compare!("");
const OF_HOME: &str = compare!(
    " UNION ALL SELECT tenant, 'rows', 0, octet_length(payload) FROM tasks \
     UNION ALL SELECT tenant, 'rows', 0, octet_length(result) FROM results WHERE result IS NOT NULL \
     UNION ALL SELECT tenant, 'rows', 0, octet_length(body) FROM receipts \
     UNION ALL SELECT tenant, 'rows', 0, octet_length(body) FROM archived_receipts \
     UNION ALL SELECT tenant, 'rows', 0, octet_length(subject) + octet_length(body) FROM mail_messages \
     UNION ALL SELECT tenant, 'rows', 0, octet_length(envelope) FROM mesh_messages \
     UNION ALL SELECT tenant, 'blobs', 0, octet_length(content) FROM mail_attachments \
     UNION ALL SELECT tenant, 'blobs', 0, size_bytes FROM mesh_files"
);

/// A tenant's sum that is not what its rows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscounted {
    pub tenant: Tenant,
    pub kind: Stored,
    pub counted: i64,
    pub stored: i64,
}

/// Adds up everything that one store has and answers with the sums that differ. Looks at every row.
pub struct CompareStored(pub StoreRole);

impl Work for CompareStored {
    type Output = Vec<Miscounted>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Miscounted>> {
        let sql = match self.0 {
            StoreRole::Home => OF_HOME,
            StoreRole::Shard => OF_SHARD,
        };
        let mut found = Vec::new();
        for row in &tx.query(sql, &[]).await? {
            let name = row.text(1)?;
            let kind = Stored::ALL.into_iter().find(|kind| kind.as_str() == name);
            let kind = kind.ok_or_else(|| Error::internal(format!("bytes of the kind {name} are counted")))?;
            let (tenant, counted, stored) = (Tenant(row.int(0)?), row.int(2)?, row.int(3)?);
            found.push(Miscounted { tenant, kind, counted, stored });
        }
        Ok(found)
    }
}
