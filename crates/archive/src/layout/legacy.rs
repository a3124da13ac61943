//! Reads an archive of the Python server: one repository for all projects, `projects/{slug}/…`, folders by month and without buckets.
//!
//! Recipients are taken from the canonical file alone: inbox copies of that server show secret ones. A project's path stands in its messages and
//! reservations, since many archives have no `project.json`.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Kind, Message, Profile, Reservation, json, kind_of};
use crate::error::{Error, Result};

const FILE_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 12;
/// Files of one archive that are read.
const FILES_MAX: usize = 5_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    pub projects: Vec<LegacyProject>,
    /// Files that could not be read, with the reason.
    pub unread: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyProject {
    pub slug: String,
    /// The absolute path, where something says it.
    pub human_key: Option<String>,
    pub agents: Vec<Profile>,
    pub messages: Vec<Message>,
    pub reservations: Vec<Reservation>,
}

impl Legacy {
    /// `root` is the folder that has `projects` in it. No link is followed.
    pub fn read(root: &Path) -> Result<Self> {
        let mut found = Self::default();
        for project in folders(&root.join("projects"))? {
            let slug = project.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let mut reading =
                Reading { project: LegacyProject { slug, ..LegacyProject::default() }, ..Reading::default() };
            reading.folder(&project, "", 0)?;
            found.unread.append(&mut reading.unread);
            found.projects.push(reading.end());
        }
        Ok(found)
    }
}

#[derive(Default)]
struct Reading {
    project: LegacyProject,
    messages: BTreeMap<i64, Message>,
    reservations: BTreeMap<i64, Reservation>,
    unread: Vec<(String, String)>,
    files: usize,
}

impl Reading {
    fn folder(&mut self, folder: &Path, prefix: &str, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        for entry in entries(folder)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            let kind = entry.file_type().map_err(Error::io("looking at", &entry.path()))?;
            if kind.is_dir() {
                self.folder(&entry.path(), &path, depth + 1)?;
            } else if kind.is_file() {
                self.files += 1;
                if self.files > FILES_MAX {
                    return Err(Error::Format(format!("more than {FILES_MAX} files")));
                }
                if let Err(error) = self.file(&entry.path(), &path) {
                    self.unread.push((format!("{}/{path}", self.project.slug), error.to_string()));
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, at: &Path, path: &str) -> Result<()> {
        let content = || -> Result<Vec<u8>> {
            let size = at.metadata().map_err(Error::io("looking at", at))?.len();
            if size > FILE_MAX {
                return Err(Error::Format(format!("{size} bytes")));
            }
            std::fs::read(at).map_err(Error::io("reading", at))
        };
        match kind_of(path) {
            Some(Kind::Project) => {
                let project: serde_json::Value = json::read(&content()?)?;
                self.project.human_key = json::field(&project, "human_key").map(str::to_owned);
            }
            Some(Kind::Profile) => self.project.agents.push(Profile::read(&content()?)?),
            Some(Kind::Canonical(_)) => {
                let message = Message::read(&content()?)?;
                self.project.human_key.get_or_insert_with(|| message.project.clone());
                self.messages.insert(message.id, message);
            }
            Some(Kind::Reservation(_)) => self.reservation(&content()?)?,
            // Named after the digest of its pattern: the same again, or one of an older server that had no other.
            None if path.starts_with("file_reservations/") && path.ends_with(".json") => {
                self.reservation(&content()?)?
            }
            _ => {}
        }
        Ok(())
    }

    /// Of two files about one reservation the released one is the newer.
    fn reservation(&mut self, content: &[u8]) -> Result<()> {
        let reservation = Reservation::read(content)?;
        self.project.human_key.get_or_insert_with(|| reservation.project.clone());
        let known = self.reservations.get(&reservation.id);
        if known.is_none_or(|known| known.released_ts.is_none()) {
            self.reservations.insert(reservation.id, reservation);
        }
        Ok(())
    }

    fn end(mut self) -> LegacyProject {
        self.project.agents.sort_by_key(|agent| agent.id);
        self.project.messages = self.messages.into_values().collect();
        self.project.reservations = self.reservations.into_values().collect();
        self.project
    }
}

fn entries(folder: &Path) -> Result<Vec<std::fs::DirEntry>> {
    let read = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut entries = read.map_err(Error::io("reading the folder", folder))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    Ok(entries)
}

fn folders(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let all = entries(folder)?.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(all.map(|entry| entry.path()).collect())
}
