//! What the rest of the daemon sees of the link, and asks of the broker through it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::TopicName;

use super::{Parts, sync};
use crate::directory::{Change, Standing, Topic};

/// How long a new subscriber waits for its topic's key before it is told that the key will come.
const KEY_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Status {
    pub connected: bool,
    /// When the present connection came up. None while there is none.
    pub up_since: Option<Instant>,
    /// In this run of the daemon.
    pub connections: u64,
    /// Between acceptance by the broker and arrival, of the last message.
    pub lag_ms: u64,
    pub broker_version: Option<String>,
    /// Features with their parameters, as the broker has last said.
    pub features: Option<Value>,
    /// As the broker calls this member.
    pub name: Option<String>,
    /// The link has ended for good, and the daemon is about to.
    pub ended: Option<Code>,
}

impl Status {
    /// Nothing may be accepted any more: it could never be sent.
    pub fn is_revoked(&self) -> bool {
        self.ended == Some(Code::MemberRevoked)
    }
}

#[derive(Debug, Serialize)]
pub struct PeerView {
    pub name: String,
    pub pubkey: String,
    pub member_id: String,
    pub is_owner: bool,
    pub online: bool,
    pub state: Standing,
}

#[derive(Debug, Serialize)]
pub struct TopicView {
    pub topic: String,
    pub subscribed: bool,
    /// Whether a post can be accepted now: the topic's key is here.
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
}

#[derive(Clone)]
pub struct LinkHandle {
    parts: Arc<Parts>,
    status: watch::Receiver<Status>,
    renew: Arc<Notify>,
}

impl LinkHandle {
    pub(super) fn new(parts: Arc<Parts>, status: watch::Receiver<Status>, renew: Arc<Notify>) -> Self {
        Self { parts, status, renew }
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Changes whenever the link does.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    pub fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    /// # Errors
    /// `member_revoked`: what is accepted now could never be sent.
    pub fn refuse_if_revoked(&self) -> Result<()> {
        if self.status.borrow().is_revoked() {
            return Err(Error::new(Code::MemberRevoked, Code::MemberRevoked.entry().title));
        }
        Ok(())
    }

    /// Connects anew: the keys have changed.
    pub fn reconnect(&self) {
        self.renew.notify_one();
    }

    /// Everybody but this member, as far as it knows.
    pub fn peers(&self) -> Vec<PeerView> {
        let members = self.parts.directory.members();
        let others = members.into_iter().filter(|member| member.id != self.parts.member);
        others
            .filter(|member| member.state == Standing::Active)
            .map(|member| PeerView {
                online: self.parts.presence.is_online(&member.id),
                name: member.name,
                pubkey: member.keys.ed25519.to_string(),
                member_id: member.id.to_string(),
                is_owner: member.is_owner,
                state: member.state,
            })
            .collect()
    }

    /// The mesh's topics, as the broker has them now or, without it, as it last had them.
    pub async fn topics(&self) -> Vec<TopicView> {
        if let Err(error) = sync::topics(&self.parts).await {
            tracing::debug!(%error, "topics are shown as they were last known");
        }
        let topics = self.parts.directory.topics();
        topics.into_iter().map(|topic| self.view(topic)).collect()
    }

    fn view(&self, topic: Topic) -> TopicView {
        let ready = self.parts.directory.posting_key(&topic.name).is_ok();
        TopicView { topic: topic.name, subscribed: topic.subscribed, ready, epoch: topic.epoch }
    }

    /// # Errors
    /// Those of the broker, and `server_unreachable` without it: only the broker knows who is subscribed.
    pub async fn subscribe(&self, topic: &str) -> Result<TopicView> {
        let name: TopicName = topic.parse()?;
        let _: Value = self.parts.broker.post(&format!("mesh/v1/topics/{name}/subscribe"), &json!({})).await?;
        self.note(&name, true).await?;
        self.parts.refresh.notify_one();
        let mut changes = self.parts.directory.changes();
        let _ = tokio::time::timeout(KEY_WAIT, async {
            while self.parts.directory.posting_key(topic).is_err() && changes.changed().await.is_ok() {}
        })
        .await;
        let known = self.parts.directory.topic(topic);
        known.map(|topic| self.view(topic)).ok_or_else(|| Error::internal("a topic that was noted is not known"))
    }

    pub async fn unsubscribe(&self, topic: &str) -> Result<()> {
        let name: TopicName = topic.parse()?;
        let _: Value = self.parts.broker.post(&format!("mesh/v1/topics/{name}/unsubscribe"), &json!({})).await?;
        self.note(&name, false).await?;
        // A list that was on its way meanwhile may have said otherwise.
        self.parts.refresh.notify_one();
        Ok(())
    }

    async fn note(&self, name: &TopicName, subscribed: bool) -> Result<()> {
        let epoch = self.parts.directory.topic(name.as_str()).and_then(|topic| topic.epoch);
        let topic = Topic { name: name.to_string(), subscribed, epoch };
        self.parts.directory.learn(vec![Change::Topic(topic)]).await
    }

    /// What this member shows of itself.
    pub async fn set_profile(&self, profile: &Value) -> Result<Value> {
        self.parts.broker.post("mesh/v1/profile", profile).await
    }
}
