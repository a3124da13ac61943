//! Changes of a queue's row in the catalog, each from what was read: whoever changes it at the same moment is not
//! overwritten.

use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Tx, Value};

use crate::Settings;
use crate::dead_letters::check_policy;
use crate::rules::attributes::Attributes;
use crate::rules::names::{queue_name, unknown_queue};
use crate::rules::redrive::REDRIVE_POLICY;
use crate::rules::throttle::{self, Throttle, is_throttle};
use crate::shards::{note_change, read_shards};
use crate::throttle::Truth;

/// Times that a change is made anew because another came before it.
const TRIES_MAX: usize = 16;

/// What a queue is, beside its messages.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub generation: i64,
    pub incarnation: i64,
    pub spread: i64,
    /// The store of each partition, where some are in others than home.
    pub shards: Option<Vec<String>>,
    /// As [`crate::queue::Queue`] has it.
    pub here: Option<i64>,
    pub version: i64,
    pub attributes: Attributes,
    pub tags: String,
    pub created_at: Time,
    pub modified_at: Time,
    pub purged_at: Option<Time>,
    stored: String,
}

impl Entry {
    /// By the URL that a request names it by.
    pub(crate) async fn load(tx: &mut Tx<'_>, url: &str) -> Result<Self> {
        let name = queue_name(url)?;
        Self::find(tx, name).await?.ok_or_else(|| unknown_queue(name))
    }

    pub(crate) async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Self>> {
        const FIND: &str = "SELECT generation, attributes, tags, created_at, modified_at, purged_at, incarnation, \
                            spread, shards, here, version FROM queues WHERE tenant = $1 AND name = $2";
        let row = tx.query_opt(FIND, &[Value::from(name)]).await?;
        let read = |row: waybill_store::Row| {
            Ok(Self {
                name: name.to_owned(),
                generation: row.int(0)?,
                attributes: Attributes::from_stored(row.text(1)?)?,
                tags: row.text(2)?.to_owned(),
                created_at: row.time(3)?,
                modified_at: row.time(4)?,
                purged_at: row.time_opt(5)?,
                incarnation: row.int(6)?,
                spread: row.int(7)?,
                shards: read_shards(row.text_opt(8)?)?,
                here: row.int_opt(9)?,
                version: row.int(10)?,
                stored: row.text(1)?.to_owned(),
            })
        };
        row.map(read).transpose()
    }

    /// As it is stored.
    pub(crate) fn stored_attributes(&self) -> &str {
        &self.stored
    }

    pub(crate) fn read_tags(&self) -> Result<std::collections::BTreeMap<String, String>> {
        serde_json::from_str(&self.tags).map_err(Error::internal)
    }
}

/// Sets the attributes that `change` makes of those that are there. Answers with how the queue is throttled now, if that is
/// otherwise than before.
pub(crate) async fn change_attributes(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    url: &str,
    change: impl Fn(&Entry) -> Result<Attributes>,
) -> Result<Option<Truth>> {
    const SET: &str = "UPDATE queues SET attributes = $3, dead_letter = $4, modified_at = $5, version = version + 1 \
                       WHERE tenant = $1 AND name = $2 AND attributes = $6";
    for _ in 0..TRIES_MAX {
        let entry = Entry::load(tx, url).await?;
        let named = change(&entry)?;
        let attributes = entry.attributes.changed_by(&named);
        if named.names().any(is_throttle) {
            throttle::check(&attributes)?;
        }
        let dead_letter = dead_letter_of(ctx, tx, &entry.name, &attributes, named.is_named(REDRIVE_POLICY)).await?;
        let stored = attributes.to_stored()?;
        if stored == entry.stored {
            return Ok(None);
        }
        let params = [
            Value::from(&entry.name),
            Value::from(&stored),
            Value::from(dead_letter.as_deref()),
            ctx.now.into(),
            Value::from(&entry.stored),
        ];
        if tx.execute(SET, &params).await? == 1 {
            let version = entry.version + 1;
            note_change(tx, &entry.name, entry.shards.as_deref(), (entry.generation, version)).await?;
            let is_other = Throttle::of(&entry.attributes)? != Throttle::of(&attributes)?;
            let truth = Truth::new((entry.incarnation, version), &attributes, ctx.now)?;
            return Ok(is_other.then_some(truth));
        }
    }
    Err(too_busy())
}

/// The name of the queue that the attributes send dead letters to. Whether it may is asked when that is new.
pub(crate) async fn dead_letter_of(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    name: &str,
    attributes: &Attributes,
    is_new: bool,
) -> Result<Option<String>> {
    let Some(policy) = attributes.redrive() else { return Ok(None) };
    let arns = Settings::arns(ctx);
    if is_new {
        return check_policy(tx, &arns, name, &policy).await.map(Some);
    }
    Ok(arns.name(&policy.target_arn).map(str::to_owned))
}

/// Sets the tags that `change` makes of those that are there.
pub(crate) async fn change_tags(
    tx: &mut Tx<'_>,
    url: &str,
    change: impl Fn(&mut std::collections::BTreeMap<String, String>) -> Result<()>,
) -> Result<()> {
    const SET: &str = "UPDATE queues SET tags = $3 WHERE tenant = $1 AND name = $2 AND tags = $4";
    for _ in 0..TRIES_MAX {
        let entry = Entry::load(tx, url).await?;
        let mut tags = entry.read_tags()?;
        change(&mut tags)?;
        let stored = serde_json::to_string(&tags).map_err(Error::internal)?;
        if stored == entry.tags {
            return Ok(());
        }
        let params = [Value::from(&entry.name), Value::from(&stored), Value::from(&entry.tags)];
        if tx.execute(SET, &params).await? == 1 {
            return Ok(());
        }
    }
    Err(too_busy())
}

pub(crate) fn too_busy() -> Error {
    Error::new(Code::Overloaded, "Others change this queue at the same moment.")
}
