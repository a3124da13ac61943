//! Requests as clients of the Query protocol write them, and answers as a reader of XML sees them.

mod answers;
mod errors;
mod requests;
mod round_trip;

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};
use waybill_kernel::Result;
use waybill_queues::MessageAttribute;

use super::{Params, read};

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendMessageBatch {
    #[serde(default)]
    pub(super) queue_url: String,
    #[serde(default)]
    pub(super) entries: Vec<SendEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendEntry {
    #[serde(default)]
    pub(super) id: String,
    #[serde(default)]
    pub(super) message_body: String,
    pub(super) delay_seconds: Option<i64>,
    #[serde(default)]
    pub(super) message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(default)]
    pub(super) message_system_attributes: BTreeMap<String, MessageAttribute>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct BatchDone<T> {
    successful: Vec<T>,
    failed: Vec<BatchFailed>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct BatchFailed {
    id: String,
    code: String,
    message: String,
    sender_fault: bool,
}

/// A form with what its writer puts into it.
#[derive(Clone, Debug, Default)]
struct Form(Vec<(String, String)>);

impl Form {
    fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    fn text(&self) -> String {
        let coded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string().replace("%20", "+");
        let pairs: Vec<_> = self.0.iter().map(|(name, value)| format!("{}={}", coded(name), coded(value))).collect();
        pairs.join("&")
    }
}

fn request<T: serde::de::DeserializeOwned>(body: &str) -> Result<T> {
    let params = Params::read(None, body.as_bytes())?;
    read(params.action().unwrap_or_default(), &params)
}

fn refusal<T: serde::de::DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
    let error = request::<T>(body).unwrap_err();
    format!("{}: {}", error.code().entry().sqs.shape, error.message())
}

/// `Name(child child …)` or `Name=text`, for an element and what is in it.
fn shown(xml: &[u8]) -> String {
    fn show(node: Node<'_, '_>) -> String {
        assert_eq!(node.tag_name().namespace(), Some("http://queue.amazonaws.com/doc/2012-11-05/"));
        let children: Vec<_> = node.children().filter(Node::is_element).map(show).collect();
        let name = node.tag_name().name();
        match (children.is_empty(), node.text()) {
            (true, Some(text)) => format!("{name}={text}"),
            (true, None) => name.to_owned(),
            (false, _) => format!("{name}({})", children.join(" ")),
        }
    }
    let text = std::str::from_utf8(xml).unwrap();
    show(Document::parse(text).unwrap().root_element())
}
