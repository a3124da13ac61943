//! For the user's own commands, over the socket alone: the outbox, the keys, the end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use waybill_kernel::{Error, Json, Result};
use waybill_mesh_protocol::{Base64, ClientMessageId};
use zeroize::Zeroizing;

use super::body::{decode, decode_or_default};
use super::query::Query;
use super::reply::Reply;
use super::{Local, send, ulid};
use crate::backup;
use crate::outbox::{Accept, Query as ListQuery, Requeue, Status};
use crate::seal::Draft;

pub async fn list(local: &Local, query: Option<&str>) -> Result<Reply> {
    let mut query = Query::read(query, &["status", "failed", "limit", "cursor"])?;
    let named = query.text("status");
    let status = match (named, query.flag("failed")?) {
        (Some(_), true) => return Err(Error::invalid("Give either status or failed.")),
        (None, true) => Some(Status::Dead),
        (None, false) => None,
        (Some(name), false) => Some(
            Status::named(&name)
                .ok_or_else(|| Error::invalid("status is pending, inflight, done, dead or aborted."))?,
        ),
    };
    let asked = ListQuery { status, limit: query.number("limit")?, cursor: query.text("cursor") };
    Reply::ok(&local.outbox.list(asked).await?)
}

pub async fn inspect(local: &Local, query: Option<&str>) -> Result<Reply> {
    let id = Query::read(query, &["id"])?.required("id")?;
    Reply::ok(&local.outbox.inspect(&id).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequeueBody {
    /// The client_message_id of the message to replace.
    id: String,
    #[serde(default)]
    auto: bool,
    new_client_id: Option<ClientMessageId>,
    /// Fields of the payload, as `inspect` shows it, that are to be others; null takes one away.
    patch: Option<Map<String, Value>>,
    #[serde(default)]
    operator: Option<String>,
}

/// The payload is sealed anew: what was dead because of an old key would be dead again.
pub async fn requeue(local: &Local, body: &Bytes) -> Result<Reply> {
    let request: RequeueBody = decode(body)?;
    let new_id = match (request.auto, request.new_client_id) {
        (true, None) => ulid::mint(&local.clock, local.entropy.as_ref()),
        (false, Some(id)) => id.into_string(),
        _ => return Err(Error::invalid("Give either auto or new_client_id.")),
    };
    let message = local.outbox.inspect(&request.id).await?.message;
    // Without a payload it is done, and the operation itself says why that cannot be requeued.
    let payload = message.payload.as_ref().map_or("{}", Json::as_str);
    let draft = match (message.payload.is_some(), request.patch) {
        (false, _) => return Err(crate::outbox::not_requeueable(message.summary.status)),
        (true, patch) => patched(payload, patch.unwrap_or_default())?,
    };
    let (draft, _turn) = send::in_line(local, &draft).await?;
    let parcel = local.sealer.seal(&new_id, &draft)?;
    let replacement = Accept {
        client_message_id: new_id,
        request_fingerprint: *draft.request_fingerprint()?.as_bytes(),
        request: serde_json::to_string(&draft).map_err(Error::internal)?,
        parcel,
    };
    let operator = request.operator.unwrap_or_else(|| "operator".to_owned());
    Reply::ok(&local.outbox.requeue(Requeue { client_message_id: request.id, replacement, operator }).await?)
}

fn patched(payload: &str, patch: Map<String, Value>) -> Result<Draft> {
    let mut fields: Map<String, Value> = serde_json::from_str(payload).map_err(Error::internal)?;
    for (name, value) in patch {
        // As callers of /v1/send know these fields.
        let name = match name.as_str() {
            "message" => "body".to_owned(),
            "replyToId" => "reply_to".to_owned(),
            _ => name,
        };
        match value {
            Value::Null => fields.shift_remove(&name),
            value => fields.insert(name, value),
        };
    }
    let draft = serde_json::from_value(Value::Object(fields));
    draft.map_err(|error| Error::invalid(format!("The patched payload cannot be sent: {error}.")))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PruneBody {
    confirm: bool,
    older_than_seconds: Option<u64>,
}

pub async fn prune(local: &Local, body: &Bytes) -> Result<Reply> {
    let request: PruneBody = decode_or_default(body)?;
    let age = request.older_than_seconds.map_or_else(|| local.outbox.prune_age(), Duration::from_secs);
    Reply::ok(&local.outbox.prune(age, request.confirm).await?)
}

pub fn rotate_token(local: &Local) -> Result<Reply> {
    let grace = Duration::from_millis(local.settings.ipc.token_grace_ms);
    local.tokens.rotate(&local.folder, local.entropy.as_ref(), local.clock.now(), grace)?;
    Reply::ok(&json!({ "ok": true, "old_token_ms": local.settings.ipc.token_grace_ms }))
}

/// The link connects anew, with the new keys.
pub async fn rotate_keypair(local: &Local) -> Result<Reply> {
    let rotated = local.link.parts().rotator.rotate().await?;
    local.link.reconnect();
    Reply::ok(&rotated)
}

pub async fn archive_cleanup(local: &Local) -> Result<Reply> {
    let removed = local.link.parts().rotator.clean_up().await?;
    Reply::ok(&json!({ "removed": removed, "archived": local.keyring.archive().keys().len() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupBody {
    passphrase: Zeroizing<String>,
}

/// Sealed here, because the topic keys are in a file that this process has open; written by whoever asks.
pub async fn backup(local: &Local, body: &Bytes) -> Result<Reply> {
    let BackupBody { passphrase } = decode(body)?;
    let (folder, directory) = (local.folder.clone(), local.directory.clone());
    let (now, entropy) = (local.clock.now(), Arc::clone(&local.entropy));
    let sealing = move || backup::seal(&folder, &directory, &passphrase, now, entropy.as_ref());
    let (sealed, summary) = tokio::task::spawn_blocking(sealing).await.map_err(Error::internal)??;
    Reply::ok(&json!({ "backup": Base64(sealed), "summary": summary }))
}

pub fn reload(local: &Local) -> Result<Reply> {
    local.hooks.reload()?;
    Reply::ok(&json!({ "ok": true }))
}

/// Answered before the end begins.
pub fn shutdown(local: &Local) -> Result<Reply> {
    local.stop.cancel();
    Reply::ok(&json!({ "ok": true }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let payload = r#"{"destination_kind":"topic","destination_ref":"ops","body":"a","meta":{"x":1}}"#;
        let patch = |value: Value| patched(payload, value.as_object().unwrap().clone());
        let draft = patch(json!({ "message": "b", "meta": null })).unwrap();
        assert_eq!((draft.body.as_str(), draft.meta, draft.destination_ref.as_str()), ("b", None, "ops"));
        assert_eq!(patch(json!({})).unwrap().body, "a");
        assert!(patch(json!({ "nonsense": 1 })).is_err());
        assert!(patch(json!({ "body": null })).is_err());
    }
}
