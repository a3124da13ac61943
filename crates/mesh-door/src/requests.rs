//! Requests that members sign: which path is which operation. Bodies are JSON objects with the operation's fields, but for who is
//! asking, which the signature says.

use http::request::Parts;
use http::{Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value as Json};
use waybill_doors::{Answers, Body, Checked, json_response};
use waybill_kernel::{Code, Error, Result};
use waybill_mesh::Membership;
use waybill_mesh::ops::files::ListFiles;
use waybill_mesh::ops::members::{
    IssueInvite, LeaveMesh, ListMembers, RenameMember, RevokeMember, RotateKeys, SetProfile,
};
use waybill_mesh::ops::messages::{AcceptMessage, ReadHistory};
use waybill_mesh::ops::queues::{AllowQueue, DisallowQueue, ListAllowedQueues};
use waybill_mesh::ops::topics::{
    CreateTopic, FindEpochWork, ListEpochKeys, ListTopics, Subscribe, Unsubscribe, UploadEpoch,
};
use waybill_store::{Procedure, Reply};

use crate::door::Door;

/// What stands before every path of members.
pub(crate) const PREFIX: &str = "/mesh/v1/";
/// Names that only the signature says.
const SAID_BY_SIGNATURE: [&str; 2] = ["mesh", "member"];

/// A request whose signer is known.
pub(crate) struct Request<'r> {
    pub(crate) door: &'r Door,
    pub(crate) member: &'r Membership,
    pub(crate) parts: &'r Parts,
    pub(crate) body: &'r [u8],
}

/// How a field of a query is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Text,
    Number,
    Flag,
}

use Field::{Flag, Number, Text};

impl Request<'_> {
    pub(crate) async fn answer(&self) -> Result<Response<Body>> {
        let path = self.parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        let path: Vec<&str> = path.split('/').collect();
        match (&self.parts.method, &path[..]) {
            (&Method::POST, ["messages"]) => self.run::<AcceptMessage>(self.with_key(self.body()?)).await,
            (&Method::GET, ["history"]) => {
                self.run::<ReadHistory>(self.query(&[("after", Number), ("limit", Number), ("mentions", Flag)])?).await
            }
            (&Method::POST, ["invites"]) => self.run::<IssueInvite>(self.body()?).await,
            (&Method::GET, ["members"]) => {
                self.run::<ListMembers>(self.query(&[("after", Text), ("limit", Number)])?).await
            }
            (&Method::POST, ["members", key, "revoke"]) => {
                self.run::<RevokeMember>(named(self.body()?, "key", key)?).await
            }
            (&Method::POST, ["rename"]) => self.run::<RenameMember>(self.body()?).await,
            (&Method::POST, ["rotate"]) => self.run::<RotateKeys>(self.body()?).await,
            (&Method::POST, ["profile"]) => self.run::<SetProfile>(self.body()?).await,
            (&Method::POST, ["leave"]) => self.run::<LeaveMesh>(self.body()?).await,
            (&Method::GET, ["topics"]) => {
                self.run::<ListTopics>(self.query(&[("after", Text), ("limit", Number)])?).await
            }
            (&Method::POST, ["topics"]) => self.run::<CreateTopic>(self.body()?).await,
            (&Method::POST, ["topics", topic, "subscribe"]) => {
                self.run::<Subscribe>(named(self.body()?, "topic", topic)?).await
            }
            (&Method::POST, ["topics", topic, "unsubscribe"]) => {
                self.run::<Unsubscribe>(named(self.body()?, "topic", topic)?).await
            }
            (&Method::GET, ["queues"]) => self.run::<ListAllowedQueues>(self.query(&[])?).await,
            (&Method::POST, ["queues", queue, "allow"]) => {
                self.run::<AllowQueue>(named(self.body()?, "queue", queue)?).await
            }
            (&Method::POST, ["queues", queue, "disallow"]) => {
                self.run::<DisallowQueue>(named(self.body()?, "queue", queue)?).await
            }
            (&Method::GET, ["epochs"]) => {
                let fields = [("topic", Text), ("after_topic", Text), ("after_epoch", Number)];
                self.run::<ListEpochKeys>(self.query(&fields)?).await
            }
            (&Method::GET, ["epochs", "work"]) => self.run::<FindEpochWork>(self.query(&[("after", Text)])?).await,
            (&Method::POST, ["epochs"]) => self.run::<UploadEpoch>(self.with_key(self.body()?)).await,
            (&Method::GET, ["files"]) => {
                self.run::<ListFiles>(self.query(&[("before", Text), ("limit", Number)])?).await
            }
            (_, path) => Err(unknown(path)),
        }
    }

    async fn run<P: Procedure>(&self, mut fields: Map<String, Json>) -> Result<Response<Body>> {
        if let Some(name) = SAID_BY_SIGNATURE.iter().find(|name| fields.contains_key(**name)) {
            return Err(Error::invalid(format!("`{name}` is said by the signature, and by nothing else.")));
        }
        let Membership { mesh, member, caller, .. } = self.member;
        fields.insert("mesh".to_owned(), Json::String(mesh.to_string()));
        fields.insert("member".to_owned(), Json::String(member.to_string()));
        let procedure: P = serde_json::from_value(Json::Object(fields))
            .map_err(|error| Error::invalid(format!("The request cannot be read: {error}.")))?;
        let (reply, _turn) = self.door.driver.admit(const { &P::SPEC }, caller)?.run(procedure).await?;
        let (status, output) = match reply {
            Reply::Done(output) => (P::SPEC.status, output),
            Reply::Replay(output) | Reply::Empty { answer: output, .. } => (200, output),
        };
        let status = StatusCode::from_u16(status).map_err(Error::internal)?;
        let text = serde_json::to_string(&output).map_err(Error::internal)?;
        let mut response = json_response(status, text);
        response.extensions_mut().insert(Answers(P::SPEC.name.into()));
        Ok(response)
    }

    /// An empty body is an object without fields.
    fn body(&self) -> Result<Map<String, Json>> {
        object(self.body)
    }

    /// The key that has signed.
    fn with_key(&self, mut fields: Map<String, Json>) -> Map<String, Json> {
        fields.insert("key".to_owned(), Json::String(self.member.key.to_string()));
        fields
    }

    fn query(&self, known: &[(&'static str, Field)]) -> Result<Map<String, Json>> {
        fields(self.parts.uri.query().unwrap_or(""), known)
    }
}

/// What the address of an upload says about the file.
pub(crate) fn file_fields(parts: &Parts) -> Result<Map<String, Json>> {
    let known = [("meta", Text), ("topic", Text), ("to", Text), ("persistent", Flag)];
    fields(parts.uri.query().unwrap_or(""), &known)
}

pub(crate) fn object(body: &[u8]) -> Result<Map<String, Json>> {
    if body.is_empty() {
        return Ok(Map::new());
    }
    let Checked { text, .. } = Checked::of(body)?;
    serde_json::from_str(text).map_err(|_| Error::invalid("The body is not a JSON object."))
}

fn named(mut fields: Map<String, Json>, name: &str, text: &str) -> Result<Map<String, Json>> {
    let text = decoded(text)?;
    match fields.insert(name.to_owned(), Json::String(text)) {
        None => Ok(fields),
        Some(_) => Err(Error::invalid(format!("`{name}` is in the path, and may not be in the body as well."))),
    }
}

/// Each name once.
fn fields(query: &str, known: &[(&'static str, Field)]) -> Result<Map<String, Json>> {
    let mut found = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, text) = (decoded(name)?, decoded(text)?);
        let Some((_, field)) = known.iter().find(|(known, _)| *known == name) else {
            return Err(Error::invalid(format!("The query has a field `{name:.100}` that is not known here.")));
        };
        let value = match field {
            Text => Some(Json::String(text)),
            Number => text.parse::<u64>().ok().map(Json::from),
            Flag => text.parse::<bool>().ok().map(Json::from),
        };
        let value = value.ok_or_else(|| Error::invalid(format!("`{name}` of the query is not what it must be.")))?;
        if found.insert(name.clone(), value).is_some() {
            return Err(Error::invalid(format!("The query has `{name}` twice.")));
        }
    }
    Ok(found)
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| Error::invalid("The address is not UTF-8."))
}

fn unknown(path: &[&str]) -> Error {
    const KNOWN: &[&str] = &[
        "messages", "history", "invites", "members", "rename", "rotate", "profile", "leave", "topics", "queues",
        "epochs", "files", "join", "compat",
    ];
    if path.len() == 1 && path.first().is_some_and(|first| KNOWN.contains(first)) {
        return Error::new(Code::MethodNotAllowed, Code::MethodNotAllowed.entry().title);
    }
    Error::new(Code::NotFound, "There is nothing at this path.").with_cure("docs/mesh.md has every path there is.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_known_fields_once_and_of_their_kind() {
        let known = [("after", Number), ("topic", Text), ("mentions", Flag)];
        let read = |query: &str| fields(query, &known).map(|found| Json::Object(found).to_string());
        assert_eq!(read("after=7&topic=a%2Fb&mentions=true").unwrap(), r#"{"after":7,"topic":"a/b","mentions":true}"#);
        assert_eq!(read("").unwrap(), "{}");
        for wrong in ["after=x", "after=-1", "mentions=1", "other=1", "after=1&after=2", "topic=%ff"] {
            assert_eq!(read(wrong).unwrap_err().code(), Code::InvalidRequest, "{wrong}");
        }
    }

    #[test]
    fn what_the_path_says_the_body_may_not() {
        let body = object(br#"{"topic":"b"}"#).unwrap();
        assert!(named(body, "topic", "a").is_err());
        assert_eq!(Json::Object(named(Map::new(), "topic", "a%20b").unwrap()).to_string(), r#"{"topic":"a b"}"#);
        for wrong in [&b"[]"[..], b"1", b"{", b"{\"a\":1,\"a\":2}"] {
            assert!(object(wrong).is_err());
        }
    }
}
