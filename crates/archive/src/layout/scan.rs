//! Looks through an archive, ours or the Python server's, for what a database can be made from.
//!
//! Nothing in it is believed. No link is followed and nothing is read that is no file; every file has a bound; a file must be about what its name
//! says; of two that are about the same thing and differ neither is taken, since nobody can say which is true. What is not taken
//! is told with its reason. Messages are only listed here: they are read one by one, when they are wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};
use waybill_kernel::Time;

use super::{BuildSlot, Kind, Product, Profile, Reservation, Seen, State, json, kind_of};
use crate::error::{Error, Result};
use crate::names;
use crate::repo::disk::Folder;
use crate::repo::look::Kept;

/// Bytes of a message with its head.
pub const MESSAGE_MAX: u64 = 40 << 20;
/// Bytes of one attachment.
pub const ATTACHMENT_MAX: u64 = 64 << 20;
/// Bytes of all that came with one message: they are in memory together, and one file may be named many times.
pub const ATTACHED_MAX: u64 = 1 << 30;
/// Bytes of an agent's policy and contacts: it may have thousands of contacts, each with a reason in words.
const STATE_MAX: u64 = 64 << 20;
/// Bytes of anything else, which is a page of JSON.
const PAPER_MAX: u64 = 4 << 20;
const DEPTH_MAX: usize = 12;
/// Files of one archive: their names are kept in memory while it is looked through.
const FILES_MAX: usize = 5_000_000;
/// Of those that could not be read so many are told; all are counted.
const TOLD_MAX: usize = 10_000;

const NAMELESS: &str = "its folder is named after no agent that has a profile";

/// Files that are not taken, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    pub told: Vec<(String, String)>,
    pub count: usize,
}

impl Refusals {
    pub fn add(&mut self, what: impl Into<String>, why: impl std::fmt::Display) {
        self.count += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push((what.into(), why.to_string()));
        }
    }
}

/// What is left for what came with one message.
#[derive(Debug)]
pub struct Room(u64);

impl Room {
    pub fn take(&mut self, bytes: usize) -> Result<()> {
        let too_much = || Error::Format(format!("more than {ATTACHED_MAX} bytes came with it"));
        self.0 = self.0.checked_sub(bytes as u64).ok_or_else(too_much)?;
        Ok(())
    }
}

impl Default for Room {
    fn default() -> Self {
        Self(ATTACHED_MAX)
    }
}

/// Where the files of a project are read from.
#[derive(Debug)]
pub(super) enum From {
    Folder(Folder),
    /// The repository, where the files beside it are gone.
    Repository(Box<Mutex<Kept>>),
}

impl From {
    /// None for what is not there, or is a link.
    fn read(&self, path: &str, max: u64) -> Result<Option<Vec<u8>>> {
        match self {
            From::Folder(at) => match path.rsplit_once('/') {
                None => at.read_up_to(path, max),
                Some((folder, name)) => Ok(at.find(folder)?.map(|at| at.read_up_to(name, max)).transpose()?.flatten()),
            },
            From::Repository(kept) => {
                let content = kept.lock().unwrap_or_else(PoisonError::into_inner).read(path)?;
                match content {
                    Some(content) if content.len() as u64 > max => {
                        Err(Error::Format(format!("{path} has more than {max} bytes")))
                    }
                    content => Ok(content.map(|content| content.to_vec())),
                }
            }
        }
    }
}

/// A project as its files tell it.
#[derive(Debug)]
pub struct Scanned {
    from: From,
    /// The name of its folder, for messages to people.
    pub label: String,
    pub slug: String,
    pub id: Option<i64>,
    /// The absolute path, where something says it.
    pub human_key: Option<String>,
    pub created: Option<Time>,
    pub agents: Vec<Profile>,
    pub states: Vec<(String, State)>,
    /// Files of what agents have read and acknowledged, by agent.
    pub seen: Vec<(String, String)>,
    pub reservations: Vec<Reservation>,
    /// Numbers and files of messages, in the order of numbers.
    pub messages: Vec<(i64, String)>,
    pub slots: Vec<BuildSlot>,
    pub products: Vec<Product>,
}

impl Scanned {
    /// Looks through the folder of one project.
    /// What only our archives have is passed over in those of others.
    pub(super) fn of(from: From, label: String, slug: String, is_ours: bool, refused: &mut Refusals) -> Result<Self> {
        let project = Self {
            from,
            label,
            slug,
            id: None,
            human_key: None,
            created: None,
            agents: Vec::new(),
            states: Vec::new(),
            seen: Vec::new(),
            reservations: Vec::new(),
            messages: Vec::new(),
            slots: Vec::new(),
            products: Vec::new(),
        };
        let mut scan = Scan { project, is_ours, reservations: BTreeMap::new(), files: 0, refused };
        let mut paths = Vec::new();
        scan.list_all(&mut paths)?;
        for path in paths {
            if let Err(error) = scan.file(&path) {
                scan.refuse(&path, error);
            }
        }
        Ok(scan.end())
    }

    /// One file of the project, by a path that does not leave it.
    pub fn read(&self, path: &str, max: u64) -> Result<Vec<u8>> {
        if path.split('/').any(|part| part.is_empty() || part == "." || part == "..") || path.contains('\0') {
            return Err(Error::Path(path.to_owned()));
        }
        let missing = || Error::Format("there is no such file, or it is a link".to_owned());
        self.from.read(path, max)?.ok_or_else(missing)
    }

    pub(super) fn message(&self, path: &str) -> Result<Vec<u8>> {
        self.read(path, MESSAGE_MAX)
    }

    /// The bytes of what came with a message.
    pub fn attachment(&self, path: &str) -> Result<Vec<u8>> {
        self.read(path, ATTACHMENT_MAX)
    }

    pub fn seen(&self, path: &str) -> Result<Seen> {
        Seen::read(&self.read(path, PAPER_MAX)?)
    }

    /// A small file of ours.
    pub fn paper(&self, path: &str) -> Result<Vec<u8>> {
        self.read(path, PAPER_MAX)
    }
}

struct Scan<'a> {
    project: Scanned,
    is_ours: bool,
    /// None where two files disagree.
    reservations: BTreeMap<i64, Option<Reservation>>,
    files: usize,
    refused: &'a mut Refusals,
}

impl Scan<'_> {
    fn list_all(&mut self, paths: &mut Vec<String>) -> Result<()> {
        let folder = match &self.project.from {
            From::Folder(folder) => folder.again()?,
            From::Repository(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                paths.extend(kept.files.keys().take(FILES_MAX).cloned());
                return Ok(());
            }
        };
        self.list(&folder, "", 0, paths)
    }

    fn list(&mut self, at: &Folder, prefix: &str, depth: usize, paths: &mut Vec<String>) -> Result<()> {
        for (name, kind) in at.list()? {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            // Repositories, lock files, and what a crash has left.
            if name.starts_with('.') {
                continue;
            }
            match kind {
                FileType::RegularFile => {
                    self.files += 1;
                    if self.files > FILES_MAX {
                        return Err(Error::Format(format!("more than {FILES_MAX} files")));
                    }
                    paths.push(path);
                }
                FileType::Directory if depth >= DEPTH_MAX => self.refuse(&path, "folders nest too deep"),
                FileType::Directory => {
                    if let Some(folder) = at.find(&name)? {
                        self.list(&folder, &path, depth + 1, paths)?;
                    }
                }
                FileType::Symlink => self.refuse(&path, "is a link, which is not followed"),
                _ => self.refuse(&path, "is no file"),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, path: &str, why: impl std::fmt::Display) {
        self.refused.add(format!("{}/{path}", self.project.label), why);
    }

    fn file(&mut self, path: &str) -> Result<()> {
        let agent = || path.split('/').nth(1).unwrap_or_default();
        match kind_of(path) {
            Some(Kind::Project) => self.facts(path)?,
            Some(Kind::Profile) => {
                let profile = Profile::read(&self.project.paper(path)?)?;
                is_about(agent(), &profile.name)?;
                self.project.agents.push(profile);
            }
            Some(Kind::State | Kind::Seen | Kind::BuildSlot | Kind::Product(_)) if !self.is_ours => {}
            Some(Kind::State) => {
                let state = State::read(&self.project.read(path, STATE_MAX)?)?;
                self.project.states.push((agent().to_owned(), state));
            }
            Some(Kind::Seen) => self.project.seen.push((agent().to_owned(), path.to_owned())),
            Some(Kind::Canonical(id)) => self.project.messages.push((id, path.to_owned())),
            Some(Kind::Reservation(id)) => self.reservation(path, Some(id))?,
            // Named after the digest of its pattern: the same again, or one of an older server that had no other.
            None if path.starts_with("file_reservations/") && path.ends_with(".json") => {
                self.reservation(path, None)?
            }
            Some(Kind::BuildSlot) => {
                let slot = BuildSlot::read(&self.project.paper(path)?)?;
                self.project.slots.push(slot);
            }
            Some(Kind::Product(id)) => {
                let product = Product::read(&self.project.paper(path)?)?;
                if product.id != id {
                    return Err(Error::Format(format!("it says that it is product {}", product.id)));
                }
                self.project.products.push(product);
            }
            Some(Kind::Copy(_) | Kind::Digest | Kind::Attachment) | None => {}
        }
        Ok(())
    }

    fn facts(&mut self, path: &str) -> Result<()> {
        let facts: serde_json::Value = json::read(&self.project.paper(path)?)?;
        self.project.human_key = json::field(&facts, "human_key").map(str::to_owned);
        self.project.id = facts.get("id").and_then(serde_json::Value::as_i64);
        let created = json::field(&facts, "created_ts").or_else(|| json::field(&facts, "created_at"));
        self.project.created = created.map(json::time).transpose()?;
        if let Some(slug) = json::field(&facts, "slug") {
            self.project.slug = slug.to_owned();
        }
        Ok(())
    }

    /// Of two files about one reservation the released one is the newer; otherwise they must agree.
    fn reservation(&mut self, path: &str, named: Option<i64>) -> Result<()> {
        let read = Reservation::read(&self.project.paper(path)?)?;
        if named.is_some_and(|named| named != read.id) {
            return Err(Error::Format(format!("it says that it is about reservation {}", read.id)));
        }
        match self.reservations.get_mut(&read.id) {
            None => {
                self.reservations.insert(read.id, Some(read));
            }
            Some(None) => return Err(Error::Format("others are about the same reservation and differ".to_owned())),
            Some(known) => {
                let same = known.as_ref().is_some_and(|known| is_same(known, &read));
                let newer = known.as_ref().is_some_and(|known| known.released_ts.is_none());
                if !same {
                    *known = None;
                    return Err(Error::Format(format!(
                        "another file is about reservation {} too, and differs",
                        read.id
                    )));
                }
                if newer {
                    *known = Some(read);
                }
            }
        }
        Ok(())
    }

    /// From the folders of states and of what was read to the names of their agents. The profile in a folder says whose it is: a name that
    /// is too long cannot be read from the folder.
    fn name_agents(&mut self) {
        let known = |agent: &Profile| (names::part(&agent.name), agent.name.clone());
        let agents: BTreeMap<String, String> = self.project.agents.iter().map(known).collect();
        let named = |folder: &str| agents.get(folder).cloned().or_else(|| names::name(folder));
        for (folder, state) in std::mem::take(&mut self.project.states) {
            match named(&folder) {
                Some(name) => self.project.states.push((name, state)),
                None => self.refuse(&format!("agents/{folder}/state.json"), NAMELESS),
            }
        }
        for (folder, path) in std::mem::take(&mut self.project.seen) {
            match named(&folder) {
                Some(name) => self.project.seen.push((name, path)),
                None => self.refuse(&path, NAMELESS),
            }
        }
    }

    fn end(mut self) -> Scanned {
        self.name_agents();
        self.project.agents.sort_by_key(|agent| agent.id);
        self.project.messages.sort();
        self.project.reservations = std::mem::take(&mut self.reservations).into_values().flatten().collect();
        self.project
    }
}

/// Apart from what changes in its life.
fn is_same(one: &Reservation, other: &Reservation) -> bool {
    let fixed = |of: &Reservation| (of.agent.clone(), of.path_pattern.clone(), of.exclusive, of.created_ts);
    fixed(one) == fixed(other)
}

/// A folder belongs to the agent of its name, encoded as ours or plain as the Python server's.
fn is_about(folder: &str, name: &str) -> Result<()> {
    if folder == name || folder == names::part(name) {
        return Ok(());
    }
    Err(Error::Format("it is about another agent than its folder".to_owned()))
}

/// Takes out numbers that several files claim, unless they hold the same bytes: then one is as good as the others.
pub(super) fn settle_numbers(projects: &mut [Scanned], refused: &mut Refusals) {
    let mut claims: BTreeMap<i64, Vec<(usize, String)>> = BTreeMap::new();
    let mut all: Vec<i64> = projects.iter().flat_map(|project| project.messages.iter().map(|(id, _)| *id)).collect();
    all.sort_unstable();
    let twice: Vec<i64> = all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    for (at, project) in projects.iter().enumerate() {
        for (id, path) in project.messages.iter().filter(|(id, _)| twice.binary_search(id).is_ok()) {
            claims.entry(*id).or_default().push((at, path.clone()));
        }
    }
    let mut dropped: Vec<BTreeSet<String>> = projects.iter().map(|_| BTreeSet::new()).collect();
    for (id, claims) in claims {
        // One after the other: each may be large.
        let digest = |(at, path): &(usize, String)| projects[*at].message(path).ok().map(Sha256::digest);
        let digests: Vec<_> = claims.iter().map(digest).collect();
        let agree = digests.iter().all(|digest| digest.is_some() && *digest == digests[0]);
        for (at, path) in claims.into_iter().skip(usize::from(agree)) {
            if !agree {
                let label = &projects[at].label;
                refused.add(format!("{label}/{path}"), format!("several files are about message {id}, and differ"));
            }
            dropped[at].insert(path);
        }
    }
    for (project, dropped) in projects.iter_mut().zip(dropped) {
        project.messages.retain(|(_, path)| !dropped.contains(path));
    }
}

/// The folder of an archive as the operator has named it.
pub(super) fn root(path: &Path) -> Result<Folder> {
    Folder::at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_a_message_has_room_together() {
        let mut room = Room(10);
        assert!(room.take(6).is_ok() && room.take(6).is_err());
        assert!(room.take(4).is_ok() && room.take(0).is_ok() && room.take(1).is_err());
    }
}
