//! Reads an archive of the Python server: one repository for all projects, `projects/{slug}/…`, folders by month and without buckets.
//!
//! Recipients are taken from the canonical file alone: inbox copies of that server show secret ones. A project's path stands in its messages and
//! reservations, since many archives have no `project.json`.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::FileType;
use serde_json::{Value, json};

use super::message::split;
use super::scan::{From, Refusals, Room, Scanned, root, settle_numbers};
use super::{Message, json};
use crate::error::{Error, Result};

/// So many messages of a project are looked at for its path.
const KEY_LOOK_MAX: usize = 20;
/// Files that came with one message.
const ATTACHMENTS_MAX: usize = 200;

#[derive(Debug, Default)]
pub struct Legacy {
    pub projects: Vec<Scanned>,
    pub refused: Refusals,
}

/// A message, and the bytes of what came with it.
#[derive(Debug)]
pub struct LegacyMessage {
    pub message: Message,
    pub files: Vec<LegacyFile>,
    /// What came with it and is not there any more.
    pub lost: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyFile {
    pub name: String,
    pub media_type: String,
    pub content: Vec<u8>,
}

impl Legacy {
    /// `path` is the folder that has `projects` in it.
    pub fn open(path: &Path) -> Result<Self> {
        let missing = || Error::Format(format!("{} has no folder `projects`", path.display()));
        let folder = root(path)?.find("projects")?.ok_or_else(missing)?;
        let mut found = Self::default();
        for (name, kind) in folder.list()? {
            match kind {
                FileType::Directory if !name.starts_with('.') => {
                    let Some(below) = folder.find(&name)? else { continue };
                    let label = format!("projects/{name}");
                    found.projects.push(Scanned::of(From::Folder(below), label, name, false, &mut found.refused)?);
                }
                FileType::Symlink => found.refused.add(format!("projects/{name}"), "is a link, which is not followed"),
                _ => {}
            }
        }
        settle_numbers(&mut found.projects, &mut found.refused);
        for project in &mut found.projects {
            if project.human_key.is_none() {
                project.human_key = told_key(project);
            }
        }
        Ok(found)
    }
}

/// What its reservations and messages say.
fn told_key(project: &Scanned) -> Option<String> {
    let reserved = project.reservations.iter().map(|reservation| reservation.project.clone());
    let written = project.messages.iter().take(KEY_LOOK_MAX);
    let written =
        written.filter_map(|(id, path)| read_message(project, *id, path).ok().map(|read| read.message.project));
    reserved.chain(written).find(|key| !key.is_empty())
}

/// The message of this number in this file.
pub fn read_message(project: &Scanned, id: i64, path: &str) -> Result<LegacyMessage> {
    let text = project.message(path)?;
    let (head, body) = split(&text)?;
    let mut head: Value = json::read(head.as_bytes())?;
    // Read apart: that server has other facts about them.
    let attached = head.as_object_mut().and_then(|head| head.remove("attachments")).unwrap_or_default();
    fill(&mut head, project);
    let mut message: Message = serde_json::from_value(head).map_err(|error| Error::Format(error.to_string()))?;
    if message.id != id {
        return Err(Error::Format(format!("it says that it is message {}", message.id)));
    }
    message.body = body.to_owned();
    // That server has no mark for a request for contact; taken for a message it would let its sender write.
    message.intro = message.ack_required
        && message.thread_id.is_none()
        && message.subject == format!("Contact request from {}", message.from);
    let mut read = LegacyMessage { message, files: Vec::new(), lost: Vec::new() };
    let mut room = Room::default();
    for (nth, file) in attached.as_array().into_iter().flatten().take(ATTACHMENTS_MAX).enumerate() {
        let file = attachment(project, nth, file);
        match file.and_then(|file| room.take(file.content.len()).map(|()| file)) {
            Ok(file) => read.files.push(file),
            Err(error) => read.lost.push(error.to_string()),
        }
    }
    Ok(read)
}

/// Older servers left out what they had nothing for, and wrote a name alone where there was one.
fn fill(head: &mut Value, project: &Scanned) {
    let Some(head) = head.as_object_mut() else { return };
    for list in ["to", "cc", "bcc"] {
        let names = match head.get_mut(list).map(Value::take) {
            Some(Value::Array(names)) => Value::Array(names),
            Some(Value::String(name)) => json!([name]),
            _ => json!([]),
        };
        head.insert(list.to_owned(), names);
    }
    let fallbacks = [
        ("thread_id", Value::Null),
        ("importance", json!("normal")),
        ("ack_required", json!(false)),
        ("project", json!(project.human_key.clone().unwrap_or_default())),
        ("project_slug", json!(project.slug)),
    ];
    for (field, fallback) in fallbacks {
        head.entry(field).or_insert(fallback);
    }
    // Ours, which that server never wrote: whoever put them there meant something else.
    head.remove("intro");
    head.remove("reply_to");
}

/// In the head itself, or in a file beneath the project's `attachments`.
fn attachment(project: &Scanned, nth: usize, file: &Value) -> Result<LegacyFile> {
    let media_type = json::field(file, "media_type").unwrap_or("application/octet-stream").to_owned();
    let ending = media_type.rsplit_once('/').map_or("bin", |(_, ending)| ending);
    let ending: String = ending.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    let unnamed = format!("attachment-{}.{ending}", nth + 1);
    if let Some(encoded) = json::field(file, "data_base64") {
        let content = STANDARD.decode(encoded).map_err(|_| Error::Format("an attachment is not base64".to_owned()))?;
        return Ok(LegacyFile { name: unnamed, media_type, content });
    }
    let path = json::field(file, "path").ok_or_else(|| Error::Format("an attachment without a path".to_owned()))?;
    let inside = path.strip_prefix(&format!("{}/", project.label)).unwrap_or(path);
    if !inside.starts_with("attachments/") {
        return Err(Error::Path(path.to_owned()));
    }
    let name = json::field(file, "name").or_else(|| inside.rsplit('/').next()).unwrap_or(&unnamed).to_owned();
    Ok(LegacyFile { name, media_type, content: project.attachment(inside)? })
}
