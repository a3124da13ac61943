//! Reads an archive of ours: `{root}/{tenant}/{project}/files/…`, one folder for each tenant and in it one for each project. Where
//! the files are gone they are read from the repository beside them.

use std::path::Path;
use std::sync::Mutex;

use rustix::fs::FileType;

use super::scan::{From, Refusals, Scanned, root, settle_numbers};
use super::{Message, TENANT, attachment_path};
use crate::error::{Error, Result};
use crate::names;
use crate::repo::disk::Folder;
use crate::repo::look::Kept;

const FILES: &str = "files";
const GIT: &str = "archive.git";

/// The archives below one root.
#[derive(Debug)]
pub struct Ours {
    folder: Folder,
    /// The folders of tenants. [`names::part`] says which tenant's each is; a name that is too long cannot be read from it.
    pub tenants: Vec<String>,
    pub refused: Refusals,
}

/// What one tenant has.
#[derive(Debug, Default)]
pub struct TenantArchive {
    pub projects: Vec<Scanned>,
    /// What belongs to no project.
    pub common: Option<Scanned>,
    pub refused: Refusals,
}

impl Ours {
    pub fn open(path: &Path) -> Result<Self> {
        let mut found = Self { folder: root(path)?, tenants: Vec::new(), refused: Refusals::default() };
        for (name, kind) in found.folder.list()? {
            match kind {
                FileType::Directory if !name.starts_with('.') => match names::is_part(&name) {
                    true => found.tenants.push(name),
                    false => found.refused.add(name, "is named after no tenant"),
                },
                FileType::Symlink => found.refused.add(name, "is a link, which is not followed"),
                _ => {}
            }
        }
        Ok(found)
    }

    /// By the name of its folder.
    pub fn tenant(&self, folder: &str) -> Result<TenantArchive> {
        let mut found = TenantArchive::default();
        let Some(tenant) = self.folder.find(folder)? else { return Ok(found) };
        for (name, kind) in tenant.list()? {
            let label = format!("{folder}/{name}");
            match kind {
                FileType::Directory if !name.starts_with('.') => {
                    let files = match tenant.find(&name)?.map(|project| files_of(&project)) {
                        Some(Ok(Some(files))) => files,
                        None | Some(Ok(None)) => {
                            found.refused.add(label, "has neither files nor a repository");
                            continue;
                        }
                        Some(Err(error @ Error::Damaged(_))) => {
                            found.refused.add(label, format!("has no files, and {error}"));
                            continue;
                        }
                        Some(Err(error)) => return Err(error),
                    };
                    let slug = names::name(&name).unwrap_or_default();
                    let scanned = Scanned::of(files, label, slug, true, &mut found.refused)?;
                    if name == TENANT {
                        found.common = Some(scanned);
                    } else {
                        found.projects.push(scanned);
                    }
                }
                FileType::Symlink => found.refused.add(label, "is a link, which is not followed"),
                _ => {}
            }
        }
        settle_numbers(&mut found.projects, &mut found.refused);
        Ok(found)
    }
}

/// The files beside the repository; where they are gone, those in it.
fn files_of(project: &Folder) -> Result<Option<From>> {
    if let Some(files) = project.find(FILES)?
        && !files.list()?.is_empty()
    {
        return Ok(Some(From::Folder(files)));
    }
    let kept = project.find(GIT)?.map(|git| Kept::of(&git)).transpose()?;
    Ok(kept.map(|kept| From::Repository(Box::new(Mutex::new(kept)))))
}

/// The message of this number in this file.
pub fn read_message(project: &Scanned, id: i64, path: &str) -> Result<Message> {
    let message = Message::read(&project.message(path)?)?;
    if message.id != id {
        return Err(Error::Format(format!("it says that it is message {}", message.id)));
    }
    if project.human_key.as_deref().is_some_and(|key| key != message.project) {
        return Err(Error::Format("it says that it is of another project".to_owned()));
    }
    Ok(message)
}

/// The bytes of what came with a message, which must be those that it names.
pub fn read_attachment(project: &Scanned, sha256: &str) -> Result<Vec<u8>> {
    use sha2::Digest;
    let content = project.attachment(attachment_path(sha256)?.as_str())?;
    let found: String = sha2::Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    if found == sha256 { Ok(content) } else { Err(Error::Format("an attachment is not what it was".to_owned())) }
}
