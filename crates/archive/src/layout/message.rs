//! A message: a head in JSON, then the body as it was sent.
//!
//! ```text
//! ---json
//! { "ack_required": …, "to": […] }
//! ---
//!
//! the body, and one newline that is not its own
//! ```
//! The head has no line that is just `---`, since JSON escapes newlines, so a body may look like whatever it likes.

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::{Error, Result};

const OPEN: &str = "---json\n";
const CLOSE: &str = "\n---\n\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub id: i64,
    pub from: String,
    /// In another project than the message: the Python server files a message with its recipient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_project: Option<String>,
    pub to: Vec<String>,
    pub cc: Vec<String>,
    pub bcc: Vec<String>,
    pub subject: String,
    pub thread_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<i64>,
    pub importance: String,
    pub ack_required: bool,
    /// A request for contact, which opens nothing by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub intro: bool,
    #[serde(with = "json::timestamp")]
    pub created: Time,
    /// Its project's path as people know it, and what it is called in paths.
    pub project: String,
    pub project_slug: String,
    #[serde(default)]
    pub attachments: Vec<AttachmentRef>,
    #[serde(skip)]
    pub body: String,
}

/// What came with a message; the bytes are in a file of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentRef {
    pub name: String,
    pub media_type: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Message {
    pub fn write(&self) -> Result<Vec<u8>> {
        let head = json::write(self)?;
        let mut text = Vec::with_capacity(OPEN.len() + head.len() + CLOSE.len() + self.body.len() + 1);
        text.extend_from_slice(OPEN.as_bytes());
        // The newline that ends the head opens CLOSE.
        text.extend_from_slice(head.strip_suffix(b"\n").unwrap_or(&head));
        text.extend_from_slice(CLOSE.as_bytes());
        text.extend_from_slice(self.body.as_bytes());
        text.push(b'\n');
        Ok(text)
    }

    /// As a recipient has it: nobody learns who else was written to in secret.
    pub fn write_for_inbox(&self) -> Result<Vec<u8>> {
        if self.bcc.is_empty() {
            return self.write();
        }
        Message { bcc: Vec::new(), ..self.clone() }.write()
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        let (head, body) = split(text)?;
        let mut message: Message = json::read(head.as_bytes())?;
        message.body = body.to_owned();
        Ok(message)
    }

    /// Who it is to, for a line that everybody may read.
    pub fn shown_recipients(&self) -> String {
        let names: Vec<&str> = self.to.iter().chain(&self.cc).map(String::as_str).collect();
        if names.is_empty() { "(hidden recipients)".to_owned() } else { names.join(", ") }
    }
}

/// Head and body.
pub(super) fn split(text: &[u8]) -> Result<(&str, &str)> {
    let text = std::str::from_utf8(text).map_err(|error| Error::Format(error.to_string()))?;
    let wrong = || Error::Format("a message without its head".to_owned());
    let (head, body) = text.strip_prefix(OPEN).and_then(|rest| rest.split_once(CLOSE)).ok_or_else(wrong)?;
    Ok((head, body.strip_suffix('\n').unwrap_or(body)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn any_message() -> impl Strategy<Value = Message> {
        let names = || proptest::collection::vec("[A-Z][a-z]{1,8}", 0..3);
        let text = || "(\\PC|[\\r\\n\\t\"-]){0,60}";
        let attachment = ("\\PC{1,20}", 0..u64::MAX / 2).prop_map(|(name, bytes)| AttachmentRef {
            name,
            media_type: "image/png".to_owned(),
            bytes,
            sha256: "ab".repeat(32),
        });
        let parties = (1..i64::MAX, names(), names(), names(), text(), text());
        let rest = (
            proptest::option::of("[a-z0-9.-]{1,20}"),
            proptest::option::of(1..i64::MAX),
            any::<[bool; 2]>(),
            0..4_000_000_000_000_000_i64,
            proptest::collection::vec(attachment, 0..3),
        );
        (parties, rest).prop_map(
            |((id, to, cc, bcc, subject, body), (thread_id, reply_to, [ack_required, intro], created, attachments))| {
                Message {
                    id,
                    from: "GreenCastle".to_owned(),
                    from_project: None,
                    to,
                    cc,
                    bcc,
                    subject,
                    thread_id,
                    reply_to,
                    importance: "normal".to_owned(),
                    ack_required,
                    intro,
                    created: Time::from_micros(created),
                    project: "/data/projects/backend".to_owned(),
                    project_slug: "data-projects-backend".to_owned(),
                    attachments,
                    body,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_message_comes_back(message in any_message()) {
            let written = message.write().unwrap();
            prop_assert_eq!(&Message::read(&written).unwrap(), &message);
            let inbox = Message::read(&message.write_for_inbox().unwrap()).unwrap();
            prop_assert!(inbox.bcc.is_empty());
            prop_assert_eq!(inbox.body, message.body);
        }

        #[test]
        fn whatever_is_read_does_not_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&text);
            let _ = Message::read(&[OPEN.as_bytes(), &text].concat());
        }
    }

    #[test]
    fn a_body_that_looks_like_a_head_stays_a_body() {
        let mut message = Message::read(b"---json\n{\"id\":1,\"from\":\"A\",\"to\":[],\"cc\":[],\"bcc\":[],\"subject\":\"\",\"thread_id\":null,\"importance\":\"low\",\"ack_required\":false,\"created\":\"2026-11-16T18:43:21.001411+00:00\",\"project\":\"/p\",\"project_slug\":\"p\"}\n---\n\nx\n").unwrap();
        message.body = "---\n\n---json\n{}\n---\n\n\r\n\n".to_owned();
        assert_eq!(Message::read(&message.write().unwrap()).unwrap(), message);
    }
}
