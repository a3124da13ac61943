//! How a message tells of a file: one field of its meta, which nobody but its recipients can read.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waybill_kernel::{Error, Result, Time};
use waybill_mesh_protocol::{FileId, FileKey, Meta};

use crate::inbox::NewMessage;

/// The name of the field.
const FIELD: &str = "waybill_file";
const NAME_CHARS_MAX: usize = 255;

#[derive(Clone, Debug)]
pub struct FileNote {
    pub id: FileId,
    pub name: String,
    pub bytes: u64,
    /// Of the file itself, in hexadecimal digits.
    pub sha256: String,
    pub key: FileKey,
    pub expires_at: Option<Time>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: FileId,
    name: String,
    bytes: u64,
    sha256: String,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
}

impl FileNote {
    /// The sender's own meta with the note in it.
    pub fn meta(&self, own: Option<Meta>) -> Result<Meta> {
        let written = Written {
            id: self.id,
            name: self.name.clone(),
            bytes: self.bytes,
            sha256: self.sha256.clone(),
            key: self.key.to_hex().to_string(),
            expires_at: self.expires_at,
        };
        let mut fields = match own.map(|meta| meta.value().clone()) {
            None => serde_json::Map::new(),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(Error::invalid("The meta of a file must be an object.")),
        };
        fields.insert(FIELD.to_owned(), serde_json::to_value(written).map_err(Error::internal)?);
        Meta::from_value(Value::Object(fields))
    }

    /// None for a message that tells of no file, or not as a daemon does.
    pub fn read(meta: &Meta) -> Option<Self> {
        let written: Written = serde_json::from_value(meta.value().get(FIELD)?.clone()).ok()?;
        let is_digest = written.sha256.len() == 64 && written.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        let chars = written.name.chars().count();
        if !is_digest || chars == 0 || chars > NAME_CHARS_MAX {
            return None;
        }
        Some(Self {
            key: FileKey::from_hex(&written.key)?,
            id: written.id,
            name: written.name,
            bytes: written.bytes,
            sha256: written.sha256,
            expires_at: written.expires_at,
        })
    }

    /// What local programs are told: everything but the key.
    pub fn event(&self, message: &NewMessage) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "expires_at": self.expires_at,
            "client_message_id": message.client_message_id,
            "topic": message.topic,
            "sender_pubkey": message.sender_pubkey,
            "sender_name": message.sender_name,
            "message": String::from_utf8_lossy(&message.body),
        })
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;

    use super::*;

    #[test]
    fn a_note_comes_back_from_its_meta_and_nonsense_is_none() {
        let note = FileNote {
            id: FileId(Uuid::from_u128(5)),
            name: "report.pdf".to_owned(),
            bytes: 7,
            sha256: "ab".repeat(32),
            key: FileKey::from_bytes([7; 32]),
            expires_at: None,
        };
        let own = Meta::parse(r#"{"mine": 1}"#).unwrap();
        let meta = note.meta(Some(own)).unwrap();
        assert_eq!(meta.value()["mine"], 1);
        let back = FileNote::read(&meta).unwrap();
        assert_eq!((back.id, back.name, back.bytes, back.key), (note.id, note.name.clone(), 7, note.key.clone()));
        for text in ["{}", "[]", r#"{"waybill_file": 1}"#, r#"{"waybill_file": {"id": "x"}}"#] {
            assert!(FileNote::read(&Meta::parse(text).unwrap()).is_none(), "{text}");
        }
        let mut bent = meta.value().clone();
        bent["waybill_file"]["key"] = json!("zz");
        assert!(FileNote::read(&Meta::from_value(bent).unwrap()).is_none());
        assert!(note.meta(Some(Meta::parse("[1]").unwrap())).is_err());
    }
}
