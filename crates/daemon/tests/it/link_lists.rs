//! The lists of the small broker: members, topics, keys of topics. What is in them, and how often they were read.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use waybill_mesh_protocol::EpochKey;
use waybill_mesh_protocol::rotation::Rotation;

use super::link_broker::{FakeBroker, Http, PATIENCE};
use super::support::member;

pub const MEMBERS: &str = "/mesh/v1/members";
pub const TOPICS: &str = "/mesh/v1/topics";
pub const KEYS: &str = "/mesh/v1/epochs";

/// What is in the lists beside alice, bob and their topic.
#[derive(Default)]
pub struct Lists {
    /// By the member's number: how it has come to its present keys.
    pub steps: HashMap<u8, Vec<Rotation>>,
    /// Numbers of members that are named no more.
    pub gone: HashSet<u8>,
    /// Boxes for alice.
    pub keys: Vec<EpochKey>,
    /// Who has made some of them and has left.
    pub departed: Vec<Value>,
    /// Lists of members are made at once and leave with a permit.
    pub hold: Option<Arc<Semaphore>>,
    /// Paths of the lists that were read, in their order.
    pub read: Vec<String>,
}

pub fn listed(path: &str, http: &mut Http) -> Value {
    http.lists.read.push(path.to_owned());
    match path {
        MEMBERS => json!({ "members": members(http) }),
        TOPICS => json!({ "topics": [{ "topic": "ops", "subscribed": true, "epoch": 0, "subscribers": 2 }] }),
        _ => json!({ "keys": http.lists.keys, "more": false, "departed": http.lists.departed }),
    }
}

fn members(http: &Http) -> Vec<Value> {
    let Lists { steps, gone, .. } = &http.lists;
    let both = [(1, "alice", http.alice), (2, "bob", http.bob)];
    let named = both.into_iter().filter(|(number, ..)| !gone.contains(number)).map(|(number, name, keys)| {
        let rotations = steps.get(&number).cloned().unwrap_or_default();
        json!({ "member_id": member(number), "name": name, "is_owner": number == 1, "keys": keys, "online": true,
                "rotations": rotations, "joined_at": "2023-11-14T22:13:20Z" })
    });
    named.chain(http.others.iter().cloned()).collect()
}

/// A list that is held is on its way for as long.
pub async fn hold_back(head: &str, http: &Mutex<Http>) {
    let hold = http.lock().unwrap().lists.hold.clone();
    if let Some(hold) = hold.filter(|_| head.contains(MEMBERS)) {
        let _permit = hold.acquire().await.unwrap();
    }
}

impl FakeBroker {
    /// How often a list was read.
    pub fn count(&self, path: &str) -> usize {
        self.http.lock().unwrap().lists.read.iter().filter(|read| *read == path).count()
    }

    /// Waits until it was read so often.
    pub async fn asked(&self, path: &str, times: usize) {
        let reached = async {
            while self.count(path) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{path} is not read {times} times"));
    }
}
