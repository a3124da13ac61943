//! Capabilities of hooks: a token that allows a few requests about one event, and is worth nothing once the hook has ended.
//!
//! On the socket the user's own programs need no token. One that comes with a capability is held to it all the same, so a hook
//! that hands the socket and its token to something else hands on no more than the token allows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Entropy, Error, Result, Time, hex};

/// What tokens begin with, so that nobody takes one for the daemon's own.
pub const PREFIX: &str = "wbh_";
const SECRET_BYTES: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An answer to the event's message, to its sender.
    Reply,
    /// Direct messages to the event's sender, or to the member named.
    Dm(Option<String>),
    TopicPost(String),
}

impl Scope {
    pub fn parse(text: &str) -> Option<Self> {
        if text == "reply:event" {
            return Some(Self::Reply);
        }
        match text.strip_prefix("dm:send:") {
            Some("<sender>" | "sender") => return Some(Self::Dm(None)),
            Some(member) if !member.is_empty() => return Some(Self::Dm(Some(member.to_owned()))),
            _ => {}
        }
        let topic = text.strip_prefix("topic:")?.strip_suffix(":post")?;
        (!topic.is_empty()).then(|| Self::TopicPost(topic.to_owned()))
    }
}

/// What a token allows, and about which event.
#[derive(Clone, Debug)]
pub struct Grant {
    pub hook: String,
    pub event_id: String,
    /// Of the message that the event tells of.
    pub message_id: Option<String>,
    pub sender_key: Option<String>,
    pub sender_name: Option<String>,
    pub scopes: Vec<Scope>,
    pub ends_at: Time,
}

impl Grant {
    /// May this request be made with it? `body` is as the caller sent it.
    pub fn permits(&self, path: &str, body: &Json) -> Result<()> {
        let text = |name: &str| body[name].as_str();
        let is_sender =
            |to: Option<&str>| to.is_some() && (to == self.sender_key.as_deref() || to == self.sender_name.as_deref());
        let allowed = self.scopes.iter().any(|scope| match (scope, path) {
            (Scope::Reply, "/v1/send") => {
                let answers = text("replyToId");
                is_sender(text("to")) && answers.is_some() && answers == self.message_id.as_deref()
            }
            (Scope::Dm(None), "/v1/send") => is_sender(text("to")),
            (Scope::Dm(Some(member)), "/v1/send") => text("to") == Some(member),
            (Scope::TopicPost(topic), "/v1/topic/post") => text("topic") == Some(topic),
            _ => false,
        });
        if allowed {
            return Ok(());
        }
        let message = format!("The capability of {} for event {} does not allow this.", self.hook, self.event_id);
        Err(Error::new(Code::Forbidden, message).with_cure("Add the scope to the hook's entry in hooks.toml."))
    }
}

/// The tokens that are alive.
#[derive(Clone, Default)]
pub struct Capabilities(Arc<Mutex<HashMap<[u8; 32], Grant>>>);

/// A token for as long as this is kept.
pub struct Capability {
    pub token: String,
    digest: [u8; 32],
    all: Capabilities,
}

impl Drop for Capability {
    fn drop(&mut self) {
        self.all.lock().remove(&self.digest);
    }
}

impl Capabilities {
    /// As many live at once as hooks run at once.
    pub fn issue(&self, grant: Grant, entropy: &dyn Entropy) -> Capability {
        let mut secret = [0; SECRET_BYTES];
        entropy.fill(&mut secret);
        let token = format!("{PREFIX}{}", hex::encode(&secret));
        let digest = digest(&token);
        self.lock().insert(digest, grant);
        Capability { token, digest, all: self.clone() }
    }

    /// What a token allows. It was looked up by its digest, so the time this takes tells nothing of it.
    pub fn grant(&self, token: &str, now: Time) -> Result<Grant> {
        let grant = self.lock().get(&digest(token)).filter(|grant| now < grant.ends_at).cloned();
        grant.ok_or_else(|| {
            Error::new(Code::Unauthorized, "The capability has ended.")
                .with_cure("A hook's token is good until the hook ends, and for 5 minutes at most.")
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Grant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    fn grant(scopes: &[&str]) -> Grant {
        Grant {
            hook: "on-dm".to_owned(),
            event_id: "7".to_owned(),
            message_id: Some("m-1".to_owned()),
            sender_key: Some("ab".repeat(32)),
            sender_name: Some("bob".to_owned()),
            scopes: scopes.iter().map(|scope| Scope::parse(scope).unwrap()).collect(),
            ends_at: Time::from_micros(10),
        }
    }

    #[test]
    fn scopes_allow_what_they_say_and_nothing_else() {
        let key = "ab".repeat(32);
        let reply = json!({"to": "bob", "message": "x", "replyToId": "m-1"});
        let other = json!({"to": "bob", "message": "x", "replyToId": "m-2"});
        let plain = json!({"to": key, "message": "x"});
        let stranger = json!({"to": "eve", "message": "x", "replyToId": "m-1"});
        let post = json!({"topic": "builds", "message": "x"});
        for (scope, path, body, allowed) in [
            ("reply:event", "/v1/send", &reply, true),
            ("reply:event", "/v1/send", &other, false),
            ("reply:event", "/v1/send", &plain, false),
            ("reply:event", "/v1/send", &stranger, false),
            ("reply:event", "/v1/topic/post", &post, false),
            ("dm:send:<sender>", "/v1/send", &plain, true),
            ("dm:send:<sender>", "/v1/send", &stranger, false),
            ("dm:send:eve", "/v1/send", &stranger, true),
            ("topic:builds:post", "/v1/topic/post", &post, true),
            ("topic:other:post", "/v1/topic/post", &post, false),
            ("topic:builds:post", "/v1/send", &plain, false),
            ("topic:builds:post", "/v1/inbox", &json!({}), false),
        ] {
            let answer = grant(&[scope]).permits(path, body);
            assert_eq!(answer.is_ok(), allowed, "{scope} {path} {body}");
        }
        let nobody = Grant { sender_key: None, sender_name: None, message_id: None, ..grant(&["reply:event"]) };
        assert!(nobody.permits("/v1/send", &json!({"message": "x"})).is_err());
    }

    #[test]
    fn a_token_is_dead_when_the_hook_has_ended_or_its_time_is_up() {
        let all = Capabilities::default();
        let entropy = SeededEntropy::new(3);
        let capability = all.issue(grant(&["reply:event"]), &entropy);
        let token = capability.token.clone();
        assert!(token.starts_with(PREFIX) && all.issue(grant(&[]), &entropy).token != token);
        assert_eq!(all.grant(&token, Time::from_micros(9)).unwrap().event_id, "7");
        assert_eq!(all.grant(&token, Time::from_micros(10)).unwrap_err().code(), Code::Unauthorized);
        assert!(all.grant("wbh_", Time::EPOCH).is_err());
        drop(capability);
        assert_eq!(all.grant(&token, Time::from_micros(9)).unwrap_err().code(), Code::Unauthorized);
        assert!(all.lock().is_empty());
    }
}
