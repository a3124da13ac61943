//! What a message may hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result};

use crate::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Importance {
    Low,
    Normal,
    High,
    Urgent,
}

impl Importance {
    pub const ALL: &'static [Importance] = &[Importance::Low, Importance::Normal, Importance::High, Importance::Urgent];

    pub const fn as_str(self) -> &'static str {
        match self {
            Importance::Low => "low",
            Importance::Normal => "normal",
            Importance::High => "high",
            Importance::Urgent => "urgent",
        }
    }

    pub fn stored(text: &str) -> Self {
        Self::ALL.iter().copied().find(|importance| importance.as_str() == text).unwrap_or(Importance::Normal)
    }

    /// What filters for urgent mail show.
    pub const fn is_urgent(self) -> bool {
        matches!(self, Importance::High | Importance::Urgent)
    }
}

/// Subject and body within their bounds.
pub fn check(settings: &Settings, subject: &str, body: &str) -> Result<()> {
    let bounds = [("subject", subject, settings.subject_bytes_max), ("body_md", body, settings.body_bytes_max)];
    for (field, text, max) in bounds {
        if text.len() > max {
            return Err(too_large(&format!("{field} has {} bytes; at most {max} are allowed.", text.len()), max));
        }
    }
    Ok(())
}

pub fn too_large(message: &str, max: usize) -> Error {
    Error::new(Code::PayloadTooLarge, message).with("limit_bytes", max)
}

/// Messages per page. None at all is a mistake.
pub fn page(limit: Option<i64>, usual: i64, most: i64) -> Result<i64> {
    match limit {
        Some(limit) if limit < 1 => Err(Error::invalid("limit must be at least 1.")),
        limit => Ok(limit.unwrap_or(usual).min(most)),
    }
}

/// Numbers of messages begin at 1: another is no message of anybody.
pub fn check_id(id: i64) -> Result<()> {
    if id >= 1 { Ok(()) } else { Err(Error::invalid("message_id must be at least 1.")) }
}
/// By the end of a file's name.
pub fn media_type_of(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match end.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("svg") => "image/svg+xml",
        Some("pdf") => "application/pdf",
        Some("json") => "application/json",
        Some("md") => "text/markdown",
        Some("html" | "htm") => "text/html",
        Some("csv") => "text/csv",
        Some("txt" | "log" | "diff" | "patch" | "rs" | "py" | "ts" | "js" | "toml" | "yaml" | "yml") => "text/plain",
        _ => "application/octet-stream",
    }
}
