//! What the files of an archive are called and what is in them: a writer and a reader for each kind. The readers also read what the Python
//! server of Agent Mail has written.
//!
//! ```text
//! project.json
//! agents/{Name}/profile.json
//! agents/{Name}/state.json                                        policy, contacts
//! agents/{Name}/state/{id / 1000}.json                            what was read and acknowledged
//! agents/{Name}/inbox|outbox/{YYYY}/{MM}/{DD}/{id / 1000}/{file}.md
//! messages/{YYYY}/{MM}/{DD}/{id / 1000}/{file}.md                 canonical
//! messages/threads/{aa}/{thread}/{id / 100000}/{from}-{to}.md     digests
//! file_reservations/{id / 1000}/id-{id}.json
//! build_slots/{slot}/{Name}.json
//! attachments/{aa}/{sha256}
//! ```
//! What is the tenant's and no project's is in an archive of its own, beside those of the projects (`_tenant`, which no slug is):
//! ```text
//! products/{id / 1000}/id-{id}.json
//! ```
//! `{file}` is `{YYYY-MM-DDTHH-MM-SSZ}__{subject}__{id}`. Every folder that grows is split, so that none has many more than a thousand
//! entries and a commit rewrites kilobytes.

mod agent;
mod json;
mod legacy;
mod message;
mod ours;
mod product;
mod project;
mod reservation;
mod scan;
mod slot;
mod thread;

pub use agent::{Contact, Delivered, Profile, Seen, State};
pub use legacy::{Legacy, LegacyFile, LegacyMessage, read_message as read_legacy_message};
pub use message::{AttachmentRef, Message};
pub use ours::{Ours, TenantArchive, read_attachment, read_message};
pub use product::{LinkedProject, Product};
pub use project::{ProjectFile, TenantRef};
pub use reservation::Reservation;
pub use scan::{ATTACHED_MAX, ATTACHMENT_MAX, MESSAGE_MAX, Refusals, Room, Scanned};
pub use slot::BuildSlot;
pub use thread::{Digest, DigestEntry};
use waybill_kernel::Time;

use crate::error::{Error, Result};
use crate::names::{self, ArchivePath};

/// In the place of a project's slug: the archive of what belongs to no project. A slug begins with a letter or a digit.
pub const TENANT: &str = "_tenant";
/// Ids of one folder.
const FOLDER_IDS: i64 = 1_000;
/// Ids of one page of a thread's digest.
const PAGE_IDS: i64 = 100;
/// Ids of one folder of such pages.
const PAGES_IDS: i64 = 100_000;
/// Characters of a subject in a file's name.
const SUBJECT_MAX: usize = 60;

/// Year, month, day, and the second in the form that file names have.
pub fn dated(at: Time) -> Result<(String, String)> {
    let at = jiff::Timestamp::from_microsecond(at.micros()).map_err(|error| Error::Format(error.to_string()))?;
    Ok((at.strftime("%Y/%m/%d").to_string(), at.strftime("%Y-%m-%dT%H-%M-%SZ").to_string()))
}

/// A subject in a file's name is for people and says nothing else: the id does. So it may be cleaned.
fn subject_part(subject: &str) -> String {
    let mut part = String::new();
    for c in subject.chars() {
        if part.len() >= SUBJECT_MAX {
            break;
        }
        if c.is_ascii_alphanumeric() {
            part.push(c.to_ascii_lowercase());
        } else if !part.is_empty() && !part.ends_with('-') {
            part.push('-');
        }
    }
    let part = part.trim_end_matches('-');
    if part.is_empty() { "message".to_owned() } else { part.to_owned() }
}

/// `messages/…`, `agents/{Name}/inbox/…`: one file in a dated folder.
fn dated_path(folder: &str, id: i64, at: Time, subject: &str) -> Result<ArchivePath> {
    let (day, second) = dated(at)?;
    let bucket = id.div_euclid(FOLDER_IDS);
    ArchivePath::new(format!("{folder}/{day}/{bucket}/{second}__{}__{id}.md", subject_part(subject)))
}

pub fn canonical_path(id: i64, at: Time, subject: &str) -> Result<ArchivePath> {
    dated_path("messages", id, at, subject)
}

pub fn inbox_path(agent: &str, id: i64, at: Time, subject: &str) -> Result<ArchivePath> {
    dated_path(&format!("agents/{}/inbox", names::part(agent)), id, at, subject)
}

pub fn outbox_path(agent: &str, id: i64, at: Time, subject: &str) -> Result<ArchivePath> {
    dated_path(&format!("agents/{}/outbox", names::part(agent)), id, at, subject)
}

pub fn project_path() -> Result<ArchivePath> {
    ArchivePath::new("project.json")
}

pub fn profile_path(agent: &str) -> Result<ArchivePath> {
    ArchivePath::new(format!("agents/{}/profile.json", names::part(agent)))
}

pub fn state_path(agent: &str) -> Result<ArchivePath> {
    ArchivePath::new(format!("agents/{}/state.json", names::part(agent)))
}

/// Of the deliveries whose messages are in the same thousand as `message`.
pub fn seen_path(agent: &str, message: i64) -> Result<ArchivePath> {
    ArchivePath::new(format!("agents/{}/state/{}.json", names::part(agent), message.div_euclid(FOLDER_IDS)))
}

/// The ids that one file of [`seen_path`] is about.
pub fn seen_range(message: i64) -> std::ops::Range<i64> {
    let from = message.div_euclid(FOLDER_IDS) * FOLDER_IDS;
    from..from + FOLDER_IDS
}

pub fn reservation_path(id: i64) -> Result<ArchivePath> {
    ArchivePath::new(format!("file_reservations/{}/id-{id}.json", id.div_euclid(FOLDER_IDS)))
}

pub fn build_slot_path(slot: &str, agent: &str) -> Result<ArchivePath> {
    ArchivePath::new(format!("build_slots/{}/{}.json", names::part(slot), names::part(agent)))
}

/// In the tenant's own archive.
pub fn product_path(id: i64) -> Result<ArchivePath> {
    ArchivePath::new(format!("products/{}/id-{id}.json", id.div_euclid(FOLDER_IDS)))
}

/// `sha256` in hexadecimal.
pub fn attachment_path(sha256: &str) -> Result<ArchivePath> {
    if sha256.len() != 64 || !sha256.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(Error::Path(sha256.to_owned()));
    }
    ArchivePath::new(format!("attachments/{}/{sha256}", &sha256[..2]))
}

/// The page of a thread's digest that has the message.
pub fn digest_path(thread: &str, message: i64) -> Result<ArchivePath> {
    use sha2::Digest;
    let first = sha2::Sha256::digest(thread.as_bytes())[0];
    let from = message.div_euclid(PAGE_IDS) * PAGE_IDS;
    let (pages, to) = (message.div_euclid(PAGES_IDS), from + PAGE_IDS - 1);
    ArchivePath::new(format!("messages/threads/{first:02x}/{}/{pages}/{from}-{to}.md", names::part(thread)))
}

/// What a path holds, as far as it is one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Project,
    Profile,
    State,
    Seen,
    Canonical(i64),
    /// Inbox or outbox.
    Copy(i64),
    Digest,
    Reservation(i64),
    BuildSlot,
    Product(i64),
    Attachment,
}

pub fn kind_of(path: &str) -> Option<Kind> {
    let parts: Vec<&str> = path.split('/').collect();
    let id = || parts.last()?.strip_suffix(".md")?.rsplit_once("__")?.1.parse().ok();
    match parts.as_slice() {
        ["project.json"] => Some(Kind::Project),
        ["agents", _, "profile.json"] => Some(Kind::Profile),
        ["agents", _, "state.json"] => Some(Kind::State),
        ["agents", _, "state", _] => Some(Kind::Seen),
        ["agents", _, "inbox" | "outbox", .., _] => id().map(Kind::Copy),
        ["messages", "threads", ..] => Some(Kind::Digest),
        ["messages", .., _] => id().map(Kind::Canonical),
        ["file_reservations", .., file] => numbered(file).map(Kind::Reservation),
        ["build_slots", _, _] => Some(Kind::BuildSlot),
        ["products", _, file] => numbered(file).map(Kind::Product),
        ["attachments", _, _] => Some(Kind::Attachment),
        _ => None,
    }
}

/// `id-{id}.json`, or with the generation that existing tools write behind the id.
fn numbered(file: &str) -> Option<i64> {
    file.strip_prefix("id-")?.strip_suffix(".json")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_existing_tools_with_folders_split() {
        let at = Time::from_micros(1_794_854_601_001_411);
        let path = canonical_path(12_345, at, "Plan: tests & docs").unwrap();
        assert_eq!(path.as_str(), "messages/2026/11/16/12/2026-11-16T18-43-21Z__plan-tests-docs__12345.md");
        assert_eq!(kind_of(path.as_str()), Some(Kind::Canonical(12_345)));
        let path = inbox_path("a/b", 7, at, "???").unwrap();
        assert_eq!(path.as_str(), "agents/a%2Fb/inbox/2026/11/16/0/2026-11-16T18-43-21Z__message__7.md");
        assert_eq!(kind_of(path.as_str()), Some(Kind::Copy(7)));
        assert_eq!(digest_path("PLAN-1", 250).unwrap().as_str().split('/').next_back(), Some("200-299.md"));
        assert_eq!(reservation_path(1_002).unwrap().as_str(), "file_reservations/1/id-1002.json");
        assert!(attachment_path("../../../etc/passwd").is_err());
        assert_eq!(kind_of("file_reservations/id-3.json"), Some(Kind::Reservation(3)));
        assert_eq!(kind_of(product_path(7).unwrap().as_str()), Some(Kind::Product(7)));
        let slot = build_slot_path("frontend/dev", "BlueLake").unwrap();
        assert_eq!(slot.as_str(), "build_slots/frontend%2Fdev/BlueLake.json");
        assert_eq!(kind_of(slot.as_str()), Some(Kind::BuildSlot));
        assert_eq!(kind_of("somebody/elses.md"), None);
        assert_eq!(seen_range(1_999), 1_000..2_000);
    }
}
