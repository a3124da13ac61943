//! Files: given to the broker under a key of their own, and told of in a message.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{DestinationKind, TopicName};

use super::body::decode;
use super::query::Query;
use super::reply::Reply;
use super::send::{self, SendBody};
use super::{Local, ulid};
use crate::metrics;
use crate::outbox::Verdict;
use crate::seal::Draft;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareBody {
    /// Absolute: the daemon has a working folder of its own.
    path: PathBuf,
    /// A member's name or key. Without it and without a topic nobody is told of the file.
    to: Option<String>,
    topic: Option<TopicName>,
    message: Option<String>,
    #[serde(default)]
    persistent: bool,
}

/// The recipient is looked for first: a file of some size would be uploaded for nobody.
pub async fn share(local: &Local, body: &Bytes) -> Result<Reply> {
    let request: ShareBody = decode(body)?;
    local.refuse_if_revoked()?;
    send::look_up(local, request.to.as_deref()).await;
    let draft = draft(local, &request)?;
    let whom = draft.as_ref().map(Draft::destination);
    let shared = local.link.parts().files.share(&request.path, whom.as_ref(), request.persistent).await?;
    let mut answer = serde_json::to_value(&shared).map_err(Error::internal)?;
    if let Some(mut draft) = draft {
        if draft.body.is_empty() {
            draft.body.clone_from(&shared.name);
        }
        draft.meta = Some(shared.note.meta(None)?);
        let id = ulid::mint(&local.clock, local.entropy.as_ref());
        match send::take(local, id.clone(), &draft).await? {
            Verdict::Conflict(conflict) => return Err(Error::new(Code::IdempotencyKeyReused, conflict.name)),
            _ => metrics::accepted(),
        }
        answer["client_message_id"] = json!(id);
    }
    Reply::ok(&answer)
}

/// The message that tells of the file, as far as it is known before the file is.
fn draft(local: &Local, request: &ShareBody) -> Result<Option<Draft>> {
    let message = request.message.clone().unwrap_or_default();
    match (&request.to, &request.topic) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid("Give either to or topic.")),
        (Some(to), None) => {
            local.directory.resolve(to)?;
            let body = SendBody {
                to: Some(to.clone()),
                queue: None,
                message,
                priority: None,
                meta: None,
                reply_to_id: None,
                client_message_id: None,
            };
            send::direct(local, body).map(Some)
        }
        (None, Some(topic)) => {
            local.directory.posting_key(topic.as_str())?;
            Ok(Some(Draft {
                destination_kind: DestinationKind::Topic,
                destination_ref: topic.to_string(),
                reply_to: None,
                priority: Default::default(),
                meta: None,
                body: message,
                mentions: Vec::new(),
            }))
        }
    }
}

pub async fn get(local: &Local, query: Option<&str>) -> Result<Reply> {
    let mut query = Query::read(query, &["id", "out"])?;
    let (id, out) = (query.required("id")?, query.required("out")?);
    Reply::ok(&local.link.parts().files.get(&id, Path::new(&out)).await?)
}

pub async fn list(local: &Local, query: Option<&str>) -> Result<Reply> {
    Query::read(query, &[])?;
    Reply::ok(&json!({ "files": local.link.parts().files.list().await? }))
}
