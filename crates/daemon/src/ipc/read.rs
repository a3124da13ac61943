//! The inbox, the peers, the topics, and what this member shows of itself.

use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waybill_kernel::{Error, Result};

use super::Local;
use super::body::decode;
use super::query::Query;
use super::reply::Reply;
use crate::inbox::{LIMIT_MAX, Query as PageQuery, Since};

/// This member's profile as it last set it: the broker shows it to the others.
const PROFILE: &str = "profile.json";

pub async fn inbox(local: &Local, query: Option<&str>) -> Result<Reply> {
    let mut query = Query::read(query, &["since", "topic", "from", "limit", "cursor"])?;
    let (since, cursor) = (query.text("since"), query.text("cursor"));
    if since.is_some() && cursor.is_some() {
        return Err(Error::invalid("Give either since or cursor."));
    }
    let mut asked = PageQuery {
        since: since.or(cursor).as_deref().map(Since::parse).transpose()?,
        topic: query.text("topic"),
        from: query.text("from"),
        limit: query.number("limit")?,
    };
    loop {
        let page = local.inbox.page(asked.clone()).await?;
        let reply = Reply::ok(&page)?;
        if reply.body.len() > local.settings.ipc.answer_bytes_max && page.messages.len() > 1 {
            asked.limit = Some(page.messages.len() / 2);
            continue;
        }
        let next = page.next_cursor.as_ref().map(|cursor| rest_of(&asked, cursor));
        return Ok(reply.with_next(next));
    }
}

/// Where the rest of a page is, with the same filters.
fn rest_of(asked: &PageQuery, cursor: &str) -> String {
    let mut target = format!("/v1/inbox?cursor={cursor}");
    let limit = asked.limit.map(|limit| limit.to_string());
    for (name, value) in [("topic", &asked.topic), ("from", &asked.from), ("limit", &limit)] {
        if let Some(value) = value {
            target.push_str(&format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
        }
    }
    target
}

pub async fn search(local: &Local, query: Option<&str>) -> Result<Reply> {
    let mut query = Query::read(query, &["q", "limit", "cursor"])?;
    let (words, cursor) = (query.required("q")?, query.text("cursor"));
    let mut limit = query.number("limit")?.unwrap_or(100);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
    }
    loop {
        let page = local.inbox.search(&words, limit, cursor.as_deref()).await?;
        let reply = Reply::ok(&page)?;
        if reply.body.len() > local.settings.ipc.answer_bytes_max && page.messages.len() > 1 {
            limit = page.messages.len() / 2;
            continue;
        }
        let words = utf8_percent_encode(&words, NON_ALPHANUMERIC);
        let next = page.next_cursor.map(|cursor| format!("/v1/inbox/search?q={words}&cursor={cursor}&limit={limit}"));
        return Ok(reply.with_next(next));
    }
}

pub fn peers(local: &Local) -> Result<Reply> {
    Reply::ok(&json!({ "peers": local.link.peers() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicBody {
    topic: String,
}

pub async fn subscribe(local: &Local, body: &Bytes) -> Result<Reply> {
    let request: TopicBody = decode(body)?;
    Reply::ok(&local.link.subscribe(&request.topic).await?)
}

pub async fn unsubscribe(local: &Local, body: &Bytes) -> Result<Reply> {
    let request: TopicBody = decode(body)?;
    local.link.unsubscribe(&request.topic).await?;
    Reply::ok(&json!({ "topic": request.topic, "subscribed": false }))
}

pub async fn topics(local: &Local) -> Result<Reply> {
    Reply::ok(&json!({ "topics": local.link.topics().await }))
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Profile {
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    visible: Option<bool>,
}

/// What is given changes, and the rest stays. The broker has it first: what the file says was shown to the others.
pub async fn profile(local: &Local, method: &Method, body: &Bytes) -> Result<Reply> {
    // Of two changes at the same moment the second adds to what the first has written.
    let _turn = if method == Method::POST { Some(local.profiling.lock().await) } else { None };
    let text = local.folder.read_text(PROFILE)?;
    let mut profile: Profile = text.map_or_else(|| Ok(Profile::default()), |text| decode(text.as_bytes()))?;
    if method == Method::POST {
        let given: Profile = decode(body)?;
        let asked = serde_json::to_value(&given).map_err(Error::internal)?;
        let _: Value = local.link.set_profile(&asked).await?;
        profile.summary = given.summary.or(profile.summary);
        profile.status = given.status.or(profile.status);
        profile.visible = given.visible.or(profile.visible);
        local.folder.write(PROFILE, serde_json::to_string(&profile).map_err(Error::internal)?.as_bytes())?;
    }
    let name = local.link_status.borrow().name.clone().unwrap_or_else(|| local.membership.name.clone());
    Reply::ok(&json!({
        "name": name,
        "pubkey": local.keyring.public_key(),
        "summary": profile.summary,
        "status": profile.status,
        "visible": profile.visible.unwrap_or(true),
    }))
}
