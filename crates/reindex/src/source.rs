//! An archive as both kinds of it are read.

use std::path::Path;

use waybill_archive::layout::{
    self, Legacy, LegacyFile, Message, Ours, Refusals, Room, Scanned, TenantArchive, read_attachment,
    read_legacy_message, read_message,
};
use waybill_kernel::Result;
use waybill_kernel::ranges::BYTES;
use waybill_mail::rules::contact::Policy;
use waybill_mail::{ATTACHMENT_BYTES_MAX, BODY_BYTES_MAX, SUBJECT_BYTES_MAX};

use crate::unreadable;

/// Of the head of a message beside its subject: names, of which there are a hundred, and facts about attachments.
const HEAD_MAX: u64 = 4 << 20;
/// JSON writes a control character with six.
const ESCAPED: u64 = 6;

// Whatever a server of ours may be allowed to archive is read back from there.
const _: () = assert!(BODY_BYTES_MAX as u64 + SUBJECT_BYTES_MAX as u64 * ESCAPED + HEAD_MAX <= layout::MESSAGE_MAX);
const _: () = assert!(ATTACHMENT_BYTES_MAX as u64 <= layout::ATTACHMENT_MAX);
const _: () = assert!(*BYTES.end() as u64 <= layout::ATTACHED_MAX);

/// What one tenant gets.
#[derive(Debug)]
pub struct Source {
    pub(crate) projects: Vec<Scanned>,
    /// What belongs to no project.
    pub(crate) common: Option<Scanned>,
    pub(crate) refused: Refusals,
    pub(crate) is_legacy: bool,
}

/// A message, and what came with it.
pub(crate) struct Read {
    pub message: Message,
    pub files: Vec<LegacyFile>,
    pub lost: Vec<String>,
}

impl Source {
    /// An archive of the Python server: the folder that has `projects` in it.
    pub fn legacy(root: &Path) -> Result<Self> {
        let Legacy { projects, refused } = Legacy::open(root).map_err(|error| unreadable(&error))?;
        Ok(Self { projects, common: None, refused, is_legacy: true })
    }

    /// Is it an archive of the Python server? A tenant of ours may be called `projects` as well: what is in its folder has files or a
    /// repository of its own, which no project of that server has.
    pub fn is_legacy_at(root: &Path) -> bool {
        let Ok(projects) = std::fs::read_dir(root.join("projects")) else { return false };
        let is_ours = |project: &Path| ["files", "archive.git"].iter().any(|name| project.join(name).is_dir());
        let mut projects = projects.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).peekable();
        projects.peek().is_none() || !projects.all(|project| is_ours(&project))
    }

    /// The folders of tenants in an archive of ours, and what is none of them.
    pub fn tenants(root: &Path) -> Result<(Vec<String>, Refusals)> {
        let ours = Ours::open(root).map_err(|error| unreadable(&error))?;
        Ok((ours.tenants, ours.refused))
    }

    /// One tenant of an archive of ours, by the name of its folder.
    pub fn ours(root: &Path, folder: &str) -> Result<Self> {
        let read = || Ours::open(root)?.tenant(folder);
        let TenantArchive { projects, common, refused } = read().map_err(|error| unreadable(&error))?;
        Ok(Self { projects, common, refused, is_legacy: false })
    }

    /// The policy of an agent whose state is not there or cannot be read. Our archives have the state of every agent, so one that is
    /// missing is lost: such an agent may have let nobody write to it, and gets mail from its contacts alone. Archives of the Python
    /// server have no policies.
    pub(crate) fn policy_of_unknown(&self) -> Option<&'static str> {
        (!self.is_legacy).then_some(Policy::ContactsOnly.as_str())
    }

    pub fn messages(&self) -> usize {
        self.projects.iter().map(|project| project.messages.len()).sum()
    }

    pub(crate) fn read(&self, project: usize, id: i64, path: &str) -> waybill_archive::Result<Read> {
        let project = &self.projects[project];
        if self.is_legacy {
            let read = read_legacy_message(project, id, path)?;
            return Ok(Read { message: read.message, files: read.files, lost: read.lost });
        }
        let message = read_message(project, id, path)?;
        let (mut files, mut room) = (Vec::new(), Room::default());
        // Without what came with it, a message of ours would be another one.
        for file in &message.attachments {
            let content = read_attachment(project, &file.sha256)?;
            room.take(content.len())?;
            files.push(LegacyFile { name: file.name.clone(), media_type: file.media_type.clone(), content });
        }
        Ok(Read { message, files, lost: Vec::new() })
    }
}
