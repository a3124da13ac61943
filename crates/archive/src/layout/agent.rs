//! An agent: its profile, and the state that its own calls change (policy, contacts, what it has read and acknowledged).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub id: i64,
    pub name: String,
    pub program: String,
    pub model: String,
    #[serde(default)]
    pub task_description: String,
    #[serde(default)]
    pub attachments_policy: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reaper_exempt: bool,
    /// Who registered it, and the digest of the token that it was given. Absent in archives of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_sha256: Option<String>,
    #[serde(with = "json::timestamp")]
    pub inception_ts: Time,
    #[serde(with = "json::timestamp")]
    pub last_active_ts: Time,
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub retired_ts: Option<Time>,
    pub project_id: i64,
}

impl Profile {
    pub fn write(&self) -> Result<Vec<u8>> {
        json::write(self)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        json::read(text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub contact_policy: String,
    /// Whom it asked for contact, and who asked it: a contact stands with both of its agents.
    pub contacts: Vec<Contact>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    pub from: String,
    /// The path of the project of whoever asked, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_project: Option<String>,
    pub to: String,
    /// The path of the other's project, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_project: Option<String>,
    pub status: String,
    pub reason: String,
    #[serde(with = "json::timestamp")]
    pub created_ts: Time,
    #[serde(with = "json::timestamp")]
    pub updated_ts: Time,
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub expires_ts: Option<Time>,
}

impl State {
    pub fn write(&self) -> Result<Vec<u8>> {
        json::write(self)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        json::read(text)
    }
}

/// What an agent has read and acknowledged among a thousand messages; those that it has not touched are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(pub BTreeMap<i64, Delivered>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub read_ts: Option<Time>,
    #[serde(default, with = "json::timestamp_opt", skip_serializing_if = "Option::is_none")]
    pub ack_ts: Option<Time>,
}

impl Seen {
    /// In the order of the ids, which as texts would sort otherwise.
    pub fn write(&self) -> Result<Vec<u8>> {
        let rows: Vec<Row> = self.0.iter().map(|(id, delivered)| Row { id: *id, delivered: *delivered }).collect();
        json::write(&rows)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        let rows: Vec<Row> = json::read(text)?;
        Ok(Self(rows.into_iter().map(|row| (row.id, row.delivered)).collect()))
    }
}

#[derive(Serialize, Deserialize)]
struct Row {
    id: i64,
    #[serde(flatten)]
    delivered: Delivered,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = Time> {
        (0..4_000_000_000_000_000_i64).prop_map(Time::from_micros)
    }

    proptest! {
        #[test]
        fn what_was_seen_comes_back(rows in proptest::collection::btree_map(0..i64::MAX, (proptest::option::of(time()), proptest::option::of(time())), 0..20)) {
            let seen = Seen(rows.into_iter().map(|(id, (read_ts, ack_ts))| (id, Delivered { read_ts, ack_ts })).collect());
            prop_assert_eq!(Seen::read(&seen.write().unwrap()).unwrap(), seen);
        }

        #[test]
        fn state_and_profile_come_back(name in "\\PC{1,20}", at in time(), expires in proptest::option::of(time()), flag: bool) {
            let contact = Contact { from: "A".to_owned(), from_project: None, to: name.clone(), to_project: flag.then(|| "/q".to_owned()), status: "approved".to_owned(), reason: String::new(), created_ts: at, updated_ts: at, expires_ts: expires };
            let state = State { contact_policy: "auto".to_owned(), contacts: vec![contact] };
            prop_assert_eq!(State::read(&state.write().unwrap()).unwrap(), state);
            let profile = Profile {
                id: 1, name, program: "codex-cli".to_owned(), model: "m".to_owned(), task_description: "t".to_owned(), attachments_policy: "auto".to_owned(),
                reaper_exempt: flag, principal: flag.then(|| "agent:x".to_owned()), token_sha256: None, inception_ts: at, last_active_ts: at, retired_ts: expires, project_id: 1,
            };
            prop_assert_eq!(Profile::read(&profile.write().unwrap()).unwrap(), profile);
        }
    }
}
