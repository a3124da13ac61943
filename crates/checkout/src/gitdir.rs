//! Where git keeps what belongs to a working tree.
//!
//! # The outside system
//! `.git` is a folder, or in a linked working tree a file that names one (`gitdir: …`). In the latter case a file `commondir` in
//! it names the folder of the first working tree, which has objects, refs, hooks and configuration for all of them.

use std::path::{Component, Path, PathBuf};

use waybill_archive::repo::Oid;
use waybill_archive::repo::reading::{FileType, Folder, read_ref};
use waybill_kernel::Result;

use crate::{Checkout, LOOKED_MAX, unusable};

/// Bytes of a file that says where something is.
const POINTER_MAX: u64 = 8 << 10;

/// Both are the same folder in a working tree that is not linked.
pub(crate) struct GitDir {
    own: Folder,
    linked_to: Option<Folder>,
}

impl GitDir {
    /// None where there is no repository, or one that lies outside of what may be touched; an error where it is closed.
    pub(crate) fn of(checkout: &Checkout) -> Result<Option<Self>> {
        if let Some(own) = checkout.closed.find(&checkout.folder, ".git")? {
            return Ok(Some(Self { own, linked_to: None }));
        }
        let Some(at) = pointer(&checkout.folder, ".git", "gitdir: ")? else { return Ok(None) };
        let path = resolved(checkout.folder.path(), &at);
        let Some(own) = checkout.beneath(&path)? else { return Ok(None) };
        let Some(common) = pointer(&own, "commondir", "")? else { return Ok(None) };
        let common = resolved(own.path(), &common);
        Ok(checkout.beneath(&common)?.map(|common| Self { own, linked_to: Some(common) }))
    }

    pub(crate) fn own(&self) -> &Folder {
        &self.own
    }

    pub(crate) fn common(&self) -> &Folder {
        self.linked_to.as_ref().unwrap_or(&self.own)
    }

    /// The commit that the working tree stands on; None before the first.
    pub(crate) fn head(&self) -> Result<Option<Oid>> {
        let Some(head) = text(&self.own, "HEAD")? else { return Ok(None) };
        let head = head.trim();
        match head.strip_prefix("ref: ") {
            Some(name) if name.starts_with("refs/") && !name.contains("..") => {
                read_ref(self.common(), name).map_err(unusable)
            }
            Some(_) => Ok(None),
            None => Ok(Oid::from_hex(head)),
        }
    }

    /// The folder of objects; None where some of them are elsewhere, where a link, a pipe or the like stands in the place of a file, or
    /// where nobody could look at all of them.
    pub(crate) fn objects(&self) -> Result<Option<Folder>> {
        let Some(objects) = self.common().find("objects").map_err(unusable)? else { return Ok(None) };
        let is_plain = |kind: FileType| matches!(kind, FileType::RegularFile | FileType::Directory);
        let is_odd = |folder: &Folder| -> Result<bool> {
            let all = folder.list_up_to(LOOKED_MAX).map_err(unusable)?;
            Ok(all.len() >= LOOKED_MAX || !all.iter().all(|(_, kind)| is_plain(*kind)))
        };
        if is_odd(&objects)? {
            return Ok(None);
        }
        if let Some(info) = objects.find("info").map_err(unusable)?
            && info.look("alternates").map_err(unusable)?.is_some()
        {
            return Ok(None);
        }
        if let Some(packs) = objects.find("pack").map_err(unusable)?
            && is_odd(&packs)?
        {
            return Ok(None);
        }
        Ok(Some(objects))
    }
}

fn text(folder: &Folder, name: &str) -> Result<Option<String>> {
    let content = folder.read_up_to(name, POINTER_MAX).map_err(unusable)?;
    Ok(content.map(|content| String::from_utf8_lossy(&content).into_owned()))
}

fn pointer(folder: &Folder, name: &str, before: &str) -> Result<Option<PathBuf>> {
    let Some(text) = text(folder, name)? else { return Ok(None) };
    Ok(text.trim_end().strip_prefix(before).filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// Without `..`, by the names alone: no link is asked where it leads.
fn resolved(from: &Path, to: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    for part in from.join(to).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}
