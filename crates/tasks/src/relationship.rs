//! Who a principal is to this server: since when it comes, when it last came, and how often it has begun anew.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Code, Error, PrincipalKind, Result, Time};
use waybill_store::{Ctx, Tx, Value};

use crate::process::Seen;
use crate::receipts::Party;
use crate::settings::seconds_of;
use crate::{Process, Settings};

const NOTES_PER_SILENCE: i64 = 10;
/// Instances of one principal that are told apart. With more, the ones that came longest ago count as new when they come.
const INSTANCES_MAX: usize = 64;
/// Contacts of one principal at the same moment, of which each makes the others look again.
const LOOKS_MAX: usize = 8;

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

impl Relationship {
    /// One that has never been here is here for the first time now, or since this process has first heard of it.
    pub(crate) async fn find(ctx: &Ctx<'_>, tx: &mut Tx<'_>, principal: &str) -> Result<Self> {
        let Known { seen, sessions, .. } = match Known::stored(tx, principal).await? {
            Some(known) => known,
            None => Known::unwritten(ctx, principal),
        };
        Self::new(principal, seen, sessions)
    }

    /// A contact that counts: it may begin a session.
    pub(crate) async fn contact(
        ctx: &Ctx<'_>,
        tx: &mut Tx<'_>,
        principal: &str,
        instance: Option<&str>,
    ) -> Result<Self> {
        let pace = Pace::of(ctx.settings());
        for _ in 0..LOOKS_MAX {
            let before = Known::stored(tx, principal).await?;
            let mut known = before.clone().unwrap_or_else(|| Known::unwritten(ctx, principal));
            if !known.meet(instance, ctx.now, pace) || known.write(tx, principal, before.as_ref()).await? {
                return Self::new(principal, known.seen, known.sessions);
            }
        }
        Err(Error::new(Code::Overloaded, "The same principal came too often at once."))
    }

    fn new(principal: &str, seen: Seen, sessions_count: i64) -> Result<Self> {
        let Party { kind, id } = Party::read(principal)?;
        let Seen { first: first_seen_at, last: last_seen_at } = seen;
        Ok(Self { principal_kind: kind, principal_id: id, first_seen_at, last_seen_at, sessions_count })
    }
}

/// What is told apart: how long a silence ends a session, and how soon after one contact another need not be written down.
#[derive(Clone, Copy, Debug)]
struct Pace {
    silence: Duration,
    note_every: Duration,
}

impl Pace {
    fn of(settings: &Settings) -> Self {
        let Settings { session_silence_s, contact_note_s, .. } = *settings;
        // Within a small part of the silence that counts, or contacts that nobody wrote down would pass for one.
        let note_every = seconds_of(contact_note_s.min(session_silence_s / NOTES_PER_SILENCE));
        Self { silence: seconds_of(session_silence_s), note_every }
    }
}

/// A row of `relationships`, or what one would be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    seen: Seen,
    sessions: i64,
    /// The latest contact of each instance, in microseconds.
    instances: BTreeMap<String, i64>,
}

impl Known {
    /// Takes note of a contact, and says whether there is anything new to write down. A session begins with the first
    /// contact, with the first of an instance, and when the instance was silent for long; a contact that names no instance
    /// begins one when nobody was heard for long.
    fn meet(&mut self, instance: Option<&str>, now: Time, pace: Pace) -> bool {
        let last = match instance {
            Some(instance) => self.instances.get(instance).copied().map(Time::from_micros),
            None => (self.sessions > 0).then_some(self.seen.last),
        };
        let silent = last.map(|last| now.since(last));
        if silent.is_some_and(|silent| silent < pace.note_every) {
            return false;
        }
        self.sessions += i64::from(silent.is_none_or(|silent| silent > pace.silence));
        self.seen.last = self.seen.last.max(now);
        if let Some(instance) = instance {
            self.instances.insert(instance.to_owned(), now.micros());
        }
        // Whoever was silent for so long begins a session like one that has never been here.
        self.instances.retain(|_, last| now.since(Time::from_micros(*last)) <= pace.silence);
        while self.instances.len() > INSTANCES_MAX {
            let oldest = self.instances.iter().min_by_key(|(_, last)| **last).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| self.instances.remove(&oldest));
        }
        true
    }

    /// What this process alone knows of somebody who has no row yet.
    fn unwritten(ctx: &Ctx<'_>, principal: &str) -> Self {
        let seen = ctx.settings::<Process>().seen(ctx.caller.tenant, principal);
        let seen = seen.unwrap_or(Seen { first: ctx.now, last: ctx.now });
        Self { seen, sessions: 0, instances: BTreeMap::new() }
    }

    async fn stored(tx: &mut Tx<'_>, principal: &str) -> Result<Option<Self>> {
        const FIND: &str = "SELECT first_seen_at, last_seen_at, sessions_count, instances FROM relationships \
                            WHERE tenant = $1 AND principal = $2";
        let Some(row) = tx.query_opt(FIND, &[principal.into()]).await? else { return Ok(None) };
        let instances = serde_json::from_str(row.text(3)?).map_err(Error::internal)?;
        let seen = Seen { first: row.time(0)?, last: row.time(1)? };
        Ok(Some(Self { seen, sessions: row.int(2)?, instances }))
    }

    /// False when the row is not as it was found: then nothing was written.
    async fn write(&self, tx: &mut Tx<'_>, principal: &str, before: Option<&Self>) -> Result<bool> {
        const WRITE: &str = "INSERT INTO relationships (tenant, principal, first_seen_at, last_seen_at, sessions_count, \
            instances) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, principal) DO UPDATE SET \
            last_seen_at = excluded.last_seen_at, sessions_count = excluded.sessions_count, \
            instances = excluded.instances WHERE relationships.last_seen_at = $7 AND relationships.sessions_count = $8 \
            AND relationships.instances = $9";
        let text = |known: &Self| serde_json::to_string(&known.instances).map_err(Error::internal);
        let (instances, found) = (text(self)?, before.map(text).transpose()?);
        let params = [
            Value::from(principal),
            Value::from(self.seen.first),
            Value::from(self.seen.last),
            Value::from(self.sessions),
            Value::from(&instances),
            Value::from(before.map(|before| before.seen.last)),
            Value::from(before.map(|before| before.sessions)),
            Value::from(found.as_deref()),
        ];
        Ok(tx.execute(WRITE, &params).await? == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { silence: Duration::from_secs(1800), note_every: Duration::from_secs(60) };

    fn at(seconds: u64) -> Time {
        Time::EPOCH.after(Duration::from_secs(1_000_000 + seconds))
    }

    fn new() -> Known {
        Known { seen: Seen { first: at(0), last: at(0) }, sessions: 0, instances: BTreeMap::new() }
    }

    #[test]
    fn a_session_is_an_instances_and_ends_with_its_silence() {
        let mut known = new();
        for (seconds, instance, sessions, written) in [
            (0, None, 1, true),
            (1, None, 1, false),
            (2, Some("one"), 2, true),
            (3, Some("two"), 3, true),
            (4, Some("one"), 3, false),
            (62, Some("one"), 3, true),
            (63, None, 3, false),
            (1862, Some("one"), 3, true),
            (1863, Some("two"), 4, true),
            (1864, None, 4, false),
            (3663, Some("one"), 5, true),
            (5464, None, 6, true),
            (5465, Some("one"), 7, true),
        ] {
            assert_eq!(known.meet(instance, at(seconds), PACE), written, "{seconds} s");
            assert_eq!(known.sessions, sessions, "{seconds} s");
            assert_eq!(known.seen.first, at(0));
        }
    }

    #[test]
    fn instances_are_remembered_for_as_long_as_they_matter_and_no_more_than_so_many() {
        let mut known = new();
        for nth in 0..200 {
            known.meet(Some(&format!("run {nth}")), at(nth), PACE);
        }
        assert_eq!((known.sessions, known.instances.len()), (200, INSTANCES_MAX));
        assert!(known.instances.contains_key("run 199") && known.instances.contains_key("run 136"));
        known.meet(Some("later"), at(199 + 1801), PACE);
        assert_eq!(known.instances.keys().collect::<Vec<_>>(), ["later"]);
    }
}
