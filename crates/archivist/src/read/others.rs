//! Reservations, build slots and products.

use waybill_archive::layout::{BuildSlot, LinkedProject, Product, Reservation};
use waybill_kernel::{Result, Time};
use waybill_store::{Row, Statement, Tx};

use crate::{Item, Owner};

/// The columns that [`read`] reads, in its order.
macro_rules! reservations {
    ($which:literal) => {
        concat!(
            "SELECT r.reservation, a.name, r.path, r.exclusive, r.reason, r.created_at, r.expires_at, r.released_at \
             FROM mail_reservations r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
             WHERE r.tenant = $1 AND ",
            $which
        )
    };
}

/// None for one that is gone.
pub(crate) async fn reservation(tx: &mut Tx<'_>, owner: &Owner, id: i64) -> Result<Option<Reservation>> {
    const ONE: &str = reservations!("r.reservation = $2");
    let row = tx.as_tenant(owner.tenant).query_opt(ONE, &[id.into()]).await?;
    row.as_ref().map(|row| read(row, owner)).transpose()
}

/// Those of an agent that may have changed since then: what was released, and what was active, which may have been renewed.
pub(crate) async fn agent_reservations(tx: &mut Tx<'_>, owner: &Owner, agent: i64, since: Time) -> Result<Vec<Item>> {
    const ACTIVE: &str =
        reservations!("r.agent = $2 AND r.released_at IS NULL AND r.expires_at >= $3 ORDER BY r.reservation");
    const RELEASED: &str =
        reservations!("r.agent = $2 AND r.released_at IS NOT NULL AND r.released_at >= $3 ORDER BY r.reservation");
    let of = |sql| -> Statement<'_> { (sql, vec![agent.into(), since.into()]) };
    let found = tx.as_tenant(owner.tenant).query_all(&[of(ACTIVE), of(RELEASED)]).await?;
    found.iter().flatten().map(|row| read(row, owner).map(Item::Reservation)).collect()
}

fn read(row: &Row, owner: &Owner) -> Result<Reservation> {
    Ok(Reservation {
        id: row.int(0)?,
        agent: row.text(1)?.to_owned(),
        path_pattern: row.text(2)?.to_owned(),
        exclusive: row.bool(3)?,
        reason: row.text(4)?.to_owned(),
        created_ts: row.time(5)?,
        expires_ts: row.time(6)?,
        released_ts: row.time_opt(7)?,
        project: owner.human_key.clone(),
    })
}

pub(crate) async fn agent_slots(tx: &mut Tx<'_>, owner: &Owner, agent: i64, name: &str) -> Result<Vec<Item>> {
    const SLOTS: &str = "SELECT slot, exclusive, acquired_at, expires_at, released_at FROM mail_build_slots \
        WHERE tenant = $1 AND agent = $2 ORDER BY slot";
    let rows = tx.as_tenant(owner.tenant).query(SLOTS, &[agent.into()]).await?;
    let read = |row: &Row| {
        Ok(Item::BuildSlot(BuildSlot {
            slot: row.text(0)?.to_owned(),
            agent: name.to_owned(),
            exclusive: row.bool(1)?,
            acquired_ts: row.time(2)?,
            expires_ts: row.time(3)?,
            released_ts: row.time_opt(4)?,
        }))
    };
    rows.iter().map(read).collect()
}

/// None for one that is gone.
pub(crate) async fn product(tx: &mut Tx<'_>, owner: &Owner, id: i64) -> Result<Option<Product>> {
    const PRODUCT: &str = "SELECT key, name, created_at FROM mail_products WHERE tenant = $1 AND product = $2";
    const PROJECTS: &str = "SELECT p.slug, l.linked_at FROM mail_product_projects l \
        JOIN mail_projects p ON p.tenant = $1 AND p.project = l.project \
        WHERE l.tenant = $1 AND l.product = $2 ORDER BY p.slug";
    let mut tx = tx.as_tenant(owner.tenant);
    let found = tx.query_all(&[(PRODUCT, vec![id.into()]), (PROJECTS, vec![id.into()])]).await?;
    let Some(row) = found[0].first() else { return Ok(None) };
    let linked = |row: &Row| Ok(LinkedProject { slug: row.text(0)?.to_owned(), linked_ts: row.time(1)? });
    Ok(Some(Product {
        id,
        key: row.text(0)?.to_owned(),
        name: row.text(1)?.to_owned(),
        created_ts: row.time(2)?,
        projects: found[1].iter().map(linked).collect::<Result<_>>()?,
    }))
}
