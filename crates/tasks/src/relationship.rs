//! Who a principal is to this server: since when it comes, when it last came, and how often it has begun anew.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Error, PrincipalKind, Result, Time};
use waybill_store::{Ctx, Row, Tx, Value};

use crate::Settings;
use crate::receipts::Party;
use crate::settings::seconds_of;

const NOTES_PER_SILENCE: i64 = 10;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Relationship {
    pub principal_kind: PrincipalKind,
    pub principal_id: String,
    pub first_seen_at: Time,
    /// Written down at most once a minute.
    pub last_seen_at: Time,
    pub sessions_count: i64,
}

macro_rules! columns {
    () => {
        "first_seen_at, last_seen_at, sessions_count, instance"
    };
}

impl Relationship {
    /// One that has never been here is here for the first time now.
    pub(crate) async fn find(ctx: &Ctx<'_>, tx: &mut Tx<'_>, principal: &str) -> Result<Self> {
        let row = stored(tx, principal).await?;
        row.as_ref().map_or_else(|| Self::new(principal, ctx.now, ctx.now, 0), |row| Self::read(principal, row))
    }

    /// A contact that counts: the first, one after a long silence, or one of another instance begins a session.
    pub(crate) async fn contact(
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        principal: &str,
        instance: Option<&str>,
    ) -> Result<Self> {
        const CONTACT: &str = concat!(
            "INSERT INTO relationships (tenant, principal, instance, first_seen_at, last_seen_at, sessions_count) \
             VALUES ($1, $2, $3, $4, $4, 1) ON CONFLICT (tenant, principal) DO UPDATE SET \
             sessions_count = relationships.sessions_count + CASE WHEN relationships.sessions_count = 0 \
               OR relationships.last_seen_at < $5 OR coalesce(relationships.instance, $3) <> $3 \
               OR (relationships.instance IS NULL AND $3 IS NOT NULL) THEN 1 ELSE 0 END, \
             instance = coalesce($3, relationships.instance), \
             last_seen_at = CASE WHEN relationships.last_seen_at > $4 THEN relationships.last_seen_at ELSE $4 END \
             RETURNING ",
            columns!()
        );
        let Settings { session_silence_s, contact_note_s, .. } = *ctx.settings::<Settings>();
        if let Some(row) = stored(tx, principal).await? {
            let known = Self::read(principal, &row)?;
            let same_instance = instance.is_none() || row.text_opt(3)? == instance;
            // Within a small part of the silence that counts, or contacts that nobody wrote down would pass for one.
            let note_every = seconds_of(contact_note_s.min(session_silence_s / NOTES_PER_SILENCE));
            if same_instance && known.sessions_count > 0 && ctx.now.since(known.last_seen_at) < note_every {
                return Ok(known);
            }
        }
        let silent_since = Time::from_micros(ctx.now.micros() - seconds_of(session_silence_s).as_micros() as i64);
        let params = [Value::from(principal), Value::from(instance), Value::from(ctx.now), Value::from(silent_since)];
        let row = tx.query_opt(CONTACT, &params).await?;
        Self::read(principal, &row.ok_or_else(|| Error::internal("a contact left no row"))?)
    }

    fn read(principal: &str, row: &Row) -> Result<Self> {
        Self::new(principal, row.time(0)?, row.time(1)?, row.int(2)?)
    }

    fn new(principal: &str, first_seen_at: Time, last_seen_at: Time, sessions_count: i64) -> Result<Self> {
        let Party { kind, id } = Party::read(principal)?;
        Ok(Self { principal_kind: kind, principal_id: id, first_seen_at, last_seen_at, sessions_count })
    }
}

async fn stored(tx: &mut Tx<'_>, principal: &str) -> Result<Option<Row>> {
    const FIND: &str = concat!("SELECT ", columns!(), " FROM relationships WHERE tenant = $1 AND principal = $2");
    tx.query_opt(FIND, &[principal.into()]).await
}
