//! Build slots and products of an archive.

use std::collections::BTreeSet;

use waybill_kernel::{Mode, Result, Tenant, Time};
use waybill_store::{Ctx, Tx, Value, Work};

use super::state::tell_archive;
use super::{BATCH_MAX, Put, check_number, check_text, numbered};
use crate::archive_rows::{self, ArchiveKind, NO_PROJECT};

const NAME_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug)]
pub struct SlotRecord {
    pub project: i64,
    pub slot: String,
    pub agent: i64,
    pub exclusive: bool,
    pub acquired_at: Time,
    pub expires_at: Time,
    pub released_at: Option<Time>,
}

/// Slots that are there already stay. At most [`BATCH_MAX`] of them.
pub struct PutSlots {
    pub tenant: Tenant,
    pub records: Vec<SlotRecord>,
    pub archived: bool,
}

impl Work for PutSlots {
    /// In the order of the records.
    type Output = Vec<Put>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Put>> {
        const INSERT: &str = "INSERT INTO mail_build_slots (tenant, project, slot, agent, exclusive, acquired_at, expires_at, \
            released_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
        assert!(self.records.len() <= BATCH_MAX, "more than {BATCH_MAX} slots at once");
        let tx = &mut *tx.as_tenant(self.tenant);
        let (mut outcomes, mut agents) = (Vec::with_capacity(self.records.len()), BTreeSet::new());
        for record in &self.records {
            if let Err(why) = check_text("its name", &record.slot, NAME_BYTES_MAX) {
                outcomes.push(Put::Refused(why));
                continue;
            }
            let params = [
                record.project.into(),
                Value::from(&record.slot),
                record.agent.into(),
                record.exclusive.into(),
                record.acquired_at.into(),
                record.expires_at.into(),
                record.released_at.into(),
            ];
            let written = tx.execute(INSERT, &params).await? == 1;
            agents.extend(written.then_some(record.agent));
            outcomes.push(if written { Put::Written } else { Put::Known });
        }
        if self.archived {
            tell_archive(tx, ctx.now, agents).await?;
        }
        Ok(outcomes)
    }
}

#[derive(Clone, Debug)]
pub struct ProductRecord {
    pub number: i64,
    pub key: String,
    pub name: String,
    pub created_at: Time,
    /// Projects, and since when they belong to it.
    pub projects: Vec<(i64, Time)>,
}

/// One product. One that is there already keeps its name, and gets the projects that it lacks.
pub struct PutProduct {
    pub tenant: Tenant,
    pub record: ProductRecord,
    pub archived: bool,
}

impl Work for PutProduct {
    type Output = Put;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Put> {
        const INSERT: waybill_store::Sql =
            numbered!("mail_products", "tenant, key, name, created_at, product", "$1, $2, $3, $4, $5");
        const LINK: &str = "INSERT INTO mail_product_projects (tenant, product, project, linked_at) VALUES ($1, $2, $3, $4) \
                            ON CONFLICT DO NOTHING";
        let tx = &mut *tx.as_tenant(self.tenant);
        let record = &self.record;
        let checked = check_number(record.number)
            .and_then(|()| check_text("its key", &record.key, NAME_BYTES_MAX))
            .and_then(|()| check_text("its name", &record.name, NAME_BYTES_MAX));
        if let Err(why) = checked {
            return Ok(Put::Refused(why));
        }
        let known = find(tx, &record.key).await?;
        let put = if known.is_some() { Put::Known } else { Put::Written };
        if known.is_none() {
            let params =
                [Value::from(&record.key), Value::from(&record.name), record.created_at.into(), record.number.into()];
            let sql = tx.text(INSERT);
            tx.execute(sql, &params).await?;
        }
        let Some(product) = find(tx, &record.key).await? else {
            return Ok(Put::Refused("its number is taken by another product".to_owned()));
        };
        let mut linked = 0;
        for (project, linked_at) in &record.projects {
            linked += tx.execute(LINK, &[product.into(), (*project).into(), (*linked_at).into()]).await?;
        }
        if self.archived && (known.is_none() || linked > 0) {
            archive_rows::note(tx, ctx.now, NO_PROJECT, ArchiveKind::Product, product).await?;
        }
        Ok(put)
    }
}

async fn find(tx: &mut Tx<'_>, key: &str) -> Result<Option<i64>> {
    const FIND: &str = "SELECT product FROM mail_products WHERE tenant = $1 AND key = $2";
    tx.query_opt(FIND, &[Value::from(key)]).await?.map(|row| row.int(0)).transpose()
}
