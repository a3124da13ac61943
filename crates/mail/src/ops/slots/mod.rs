//! Build slots: who builds where, so that two do not share a target folder without knowing.
//!
//! Advisory throughout: a slot is always given, and whoever takes it is told who else has it.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Error, Result, Time};
use waybill_store::{Registry, Row, Tx, Value};

pub mod acquire_build_slot;
pub mod release_build_slot;
pub mod renew_build_slot;

pub(crate) use super::files::WRITE;

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<acquire_build_slot::AcquireBuildSlot>()
        .with::<renew_build_slot::RenewBuildSlot>()
        .with::<release_build_slot::ReleaseBuildSlot>()
}

const SLOT_CHARS_MAX: usize = 128;
/// Others who have the slot that an answer names.
const HOLDERS_MAX: i64 = 50;

/// Who has a slot.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct SlotHolder {
    pub slot: String,
    pub agent: String,
    pub exclusive: bool,
    pub acquired_ts: Time,
    pub expires_ts: Time,
}

/// The others that have it at this time.
async fn others(tx: &mut Tx<'_>, now: Time, project: i64, slot: &str, but: i64) -> Result<Vec<SlotHolder>> {
    const OTHERS: &str = "SELECT s.slot, a.name, s.exclusive, s.acquired_at, s.expires_at FROM mail_build_slots s \
        JOIN mail_agents a ON a.tenant = $1 AND a.agent = s.agent \
        WHERE s.tenant = $1 AND s.project = $2 AND s.slot = $3 AND s.released_at IS NULL AND s.expires_at > $4 AND s.agent <> $5 \
        ORDER BY s.expires_at DESC, s.agent LIMIT $6";
    let params = [project.into(), Value::from(slot), now.into(), but.into(), HOLDERS_MAX.into()];
    tx.query(OTHERS, &params).await?.iter().map(holder).collect()
}

fn holder(row: &Row) -> Result<SlotHolder> {
    Ok(SlotHolder {
        slot: row.text(0)?.to_owned(),
        agent: row.text(1)?.to_owned(),
        exclusive: row.bool(2)?,
        acquired_ts: row.time(3)?,
        expires_ts: row.time(4)?,
    })
}

fn check_slot(slot: &str) -> Result<()> {
    let length = slot.chars().count();
    if length == 0 || length > SLOT_CHARS_MAX || slot.chars().any(char::is_control) {
        return Err(Error::invalid(format!("slot must have 1 to {SLOT_CHARS_MAX} characters that can be seen.")));
    }
    Ok(())
}
