//! Trees and commits as git writes them, and how a window of changes makes new trees of old ones.
//!
//! Only the trees on the way to a changed file are read and written again. A tree is kept as its bytes: the entries of a folder of a
//! thousand files are a thousand slices, not a thousand strings.

use bytes::Bytes;
use std::collections::BTreeMap;

use super::objects::{Kind, Object, Objects, Oid};
use crate::error::{Error, Result};

const FILE: &[u8] = b"100644";
const FOLDER: &[u8] = b"40000";

/// An entry of a tree. Modes of others (links, executables) are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    mode: &'a [u8],
    pub name: &'a [u8],
    pub id: Oid,
}

impl Entry<'_> {
    pub fn is_folder(&self) -> bool {
        self.mode == FOLDER
    }

    pub fn is_file(&self) -> bool {
        self.mode.starts_with(b"100")
    }

    /// Git sorts a folder as if its name ended with a slash.
    fn key(&self) -> impl Iterator<Item = u8> + '_ {
        self.name.iter().copied().chain(self.is_folder().then_some(b'/'))
    }
}

/// The entries of a tree, from its bytes.
pub fn entries(tree: &[u8]) -> Result<Vec<Entry<'_>>> {
    let (mut found, mut rest) = (Vec::new(), tree);
    while !rest.is_empty() {
        let entry = next_entry(&mut rest);
        found.push(entry.ok_or_else(|| Error::damaged("a tree whose entries cannot be read"))?);
    }
    Ok(found)
}

fn next_entry<'a>(rest: &mut &'a [u8]) -> Option<Entry<'a>> {
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let (mode, after) = (&rest[..space], &rest[space + 1..]);
    let end = after.iter().position(|byte| *byte == 0)?;
    let (name, after) = (&after[..end], &after[end + 1..]);
    let id = Oid::from_bytes(after.get(..Oid::LEN)?)?;
    *rest = &after[Oid::LEN..];
    Some(Entry { mode, name, id })
}

fn encode(entries: &mut [Entry<'_>]) -> Vec<u8> {
    entries.sort_by(|a, b| a.key().cmp(b.key()));
    let size = entries.iter().map(|entry| entry.mode.len() + entry.name.len() + 2 + Oid::LEN).sum();
    let mut tree = Vec::with_capacity(size);
    for entry in entries {
        tree.extend_from_slice(entry.mode);
        tree.push(b' ');
        tree.extend_from_slice(entry.name);
        tree.push(0);
        tree.extend_from_slice(entry.id.as_bytes());
    }
    tree
}

/// Paths with the blob each shall have; None where it shall go.
pub type Edits<'a> = BTreeMap<&'a str, Option<Oid>>;

/// Applies edits to the tree `base`. New trees are added to `new`; the answer is None when nothing is left.
pub fn edit(objects: &mut Objects, base: Option<Oid>, edits: &Edits<'_>, new: &mut Vec<Object>) -> Result<Option<Oid>> {
    let edits: Vec<(&str, Option<Oid>)> = edits.iter().map(|(path, id)| (*path, *id)).collect();
    edit_level(objects, base, &edits, new)
}

fn edit_level(
    objects: &mut Objects,
    base: Option<Oid>,
    edits: &[(&str, Option<Oid>)],
    new: &mut Vec<Object>,
) -> Result<Option<Oid>> {
    let old = base.map_or_else(|| Ok(Bytes::new()), |id| objects.tree(id))?;
    let old = entries(&old)?;
    // What each name of this folder becomes: its mode and id, or nothing.
    let mut becomes: BTreeMap<&[u8], Option<(&[u8], Oid)>> = BTreeMap::new();
    let mut below: BTreeMap<&str, Vec<(&str, Option<Oid>)>> = BTreeMap::new();
    for (path, id) in edits {
        match path.split_once('/') {
            None => {
                becomes.insert(path.as_bytes(), id.map(|id| (FILE, id)));
            }
            Some((folder, rest)) => below.entry(folder).or_default().push((rest, *id)),
        }
    }
    for (folder, edits) in below {
        let name = folder.as_bytes();
        let base = old.iter().find(|entry| entry.name == name && entry.is_folder()).map(|entry| entry.id);
        let made = edit_level(objects, base, &edits, new)?;
        becomes.insert(name, made.map(|id| (FOLDER, id)));
    }
    let kept = old.iter().filter(|entry| !becomes.contains_key(entry.name)).copied();
    let made = becomes.iter().filter_map(|(name, to)| to.map(|(mode, id)| Entry { mode, name, id }));
    let mut all: Vec<Entry<'_>> = kept.chain(made).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let tree = Object::new(Kind::Tree, encode(&mut all).into())?;
    let id = tree.id;
    if Some(id) != base {
        objects.remember(id, tree.data.clone());
        new.push(tree);
    }
    Ok(Some(id))
}

/// The entry of this name, without a list of the others: windows ask for thousands of them.
fn entry_of<'a>(tree: &'a [u8], name: &str) -> Result<Option<Entry<'a>>> {
    let mut rest = tree;
    while !rest.is_empty() {
        let entry = next_entry(&mut rest);
        let entry = entry.ok_or_else(|| Error::damaged("a tree whose entries cannot be read"))?;
        if entry.name == name.as_bytes() {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// The entry at `path`, if the tree has one.
pub fn find(objects: &mut Objects, root: Oid, path: &str) -> Result<Option<(Oid, bool)>> {
    let mut at = (root, true);
    for part in path.split('/') {
        if !at.1 {
            return Ok(None);
        }
        let tree = objects.tree(at.0)?;
        let Some(entry) = entry_of(&tree, part)? else { return Ok(None) };
        at = (entry.id, entry.is_folder());
    }
    Ok(Some(at))
}

/// Calls `each` with path and blob of every file below a tree, in git's order.
pub fn walk(
    objects: &mut Objects,
    root: Oid,
    each: &mut dyn FnMut(&mut Objects, &str, Oid) -> Result<()>,
) -> Result<()> {
    let mut folders = vec![(String::new(), root)];
    while let Some((prefix, id)) = folders.pop() {
        let tree = objects.tree(id)?;
        let mut below = Vec::new();
        for entry in entries(&tree)? {
            let Ok(name) = std::str::from_utf8(entry.name) else { continue };
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            if entry.is_folder() {
                below.push((path, entry.id));
            } else if entry.is_file() {
                each(objects, &path, entry.id)?;
            }
        }
        folders.extend(below.into_iter().rev());
    }
    Ok(())
}

/// What of a commit is needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub tree: Oid,
    pub parents: Vec<Oid>,
    /// Of the author, seconds since 1970.
    pub at_s: i64,
    /// Of whoever made this commit of it, which may be much later.
    pub committed_s: i64,
    pub author: String,
    pub message: String,
}

/// Who made a commit, and when.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    pub name: &'a str,
    pub email: &'a str,
    pub at_s: i64,
}

impl Signature<'_> {
    fn line(&self) -> String {
        let clean = |text: &str| -> String {
            let kept: String = text.chars().filter(|c| !c.is_control() && !"<>".contains(*c)).collect();
            // Git strips these from both ends, and an empty name is an error to it.
            let kept = kept.trim_matches(|c: char| c.is_whitespace() || ".,:;\"'\\".contains(c)).to_owned();
            if kept.is_empty() { "waybill".to_owned() } else { kept }
        };
        format!("{} <{}> {} +0000", clean(self.name), clean(self.email).replace(' ', "-"), self.at_s.max(0))
    }
}

impl Commit {
    pub fn encode(
        tree: Oid,
        parents: &[Oid],
        author: &Signature<'_>,
        committer: &Signature<'_>,
        message: &str,
    ) -> Vec<u8> {
        let mut text = format!("tree {tree}\n");
        for parent in parents {
            text.push_str(&format!("parent {parent}\n"));
        }
        text.push_str(&format!("author {}\ncommitter {}\n\n", author.line(), committer.line()));
        text.push_str(&message.replace('\0', " "));
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.into_bytes()
    }

    pub fn decode(data: &[u8]) -> Result<Self> {
        let wrong = || Error::damaged("a commit that cannot be read");
        let text = String::from_utf8_lossy(data);
        let (head, message) = text.split_once("\n\n").ok_or_else(wrong)?;
        let (mut tree, mut parents, mut author, mut at_s, mut committed_s) = (None, Vec::new(), String::new(), 0, 0);
        let time = |who: &str| who.rsplit(' ').nth(1).and_then(|at| at.parse().ok()).unwrap_or_default();
        for line in head.lines() {
            match line.split_once(' ') {
                Some(("tree", id)) if tree.is_none() => tree = Oid::from_hex(id),
                Some(("parent", id)) => parents.push(Oid::from_hex(id).ok_or_else(wrong)?),
                Some(("author", who)) => {
                    author = who.split(" <").next().unwrap_or_default().to_owned();
                    at_s = time(who);
                }
                Some(("committer", who)) => committed_s = time(who),
                _ => {}
            }
        }
        Ok(Self { tree: tree.ok_or_else(wrong)?, parents, at_s, committed_s, author, message: message.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> Oid {
        Oid::from_bytes(&[byte; 20]).unwrap()
    }

    #[test]
    fn folders_sort_as_git_sorts_them() {
        let mut all = [
            Entry { mode: FOLDER, name: b"a", id: id(1) },
            Entry { mode: FILE, name: b"a.md", id: id(2) },
            Entry { mode: FILE, name: b"a0", id: id(3) },
        ];
        let tree = encode(&mut all);
        let names: Vec<&[u8]> = entries(&tree).unwrap().iter().map(|entry| entry.name).collect();
        assert_eq!(names, [b"a.md".as_slice(), b"a", b"a0"]);
    }

    #[test]
    fn a_tree_cut_short_is_damaged() {
        let tree = encode(&mut [Entry { mode: FILE, name: b"x", id: id(1) }]);
        assert_eq!(entries(&tree).unwrap().len(), 1);
        for cut in 1..tree.len() {
            assert!(entries(&tree[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_commit_comes_back() {
        let who = Signature { name: "Green<Castle>\n", email: "a b", at_s: 12 };
        let data = Commit::encode(id(1), &[id(2), id(3)], &who, &who, "mail: A -> B | x\n\nbody");
        let commit = Commit::decode(&data).unwrap();
        assert_eq!((commit.tree, commit.parents, commit.at_s), (id(1), vec![id(2), id(3)], 12));
        assert_eq!((commit.author.as_str(), commit.message.as_str()), ("GreenCastle", "mail: A -> B | x\n\nbody\n"));
        assert!(Commit::decode(b"tree x\n\n").is_err());
    }
}
