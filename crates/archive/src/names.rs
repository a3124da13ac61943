//! Names become parts of paths by encoding, never by cleaning: two names never share a path, and a path says which name it is.
//!
//! Letters, digits, `_`, `-` and dots that do not lead stand for themselves; every other byte is `%XX`. So no part is `.`, `..`,
//! `.git` or one of the temporary files, whose names begin with a dot. A name too long for a file system keeps its beginning and
//! ends with its digest, after `%-`, which no encoded byte looks like.

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Bytes of one part: file systems take 255, and a file name has a time and a number beside it.
const PART_MAX: usize = 180;
/// What is kept of the beginning of a name that is too long.
const KEPT: usize = 100;
/// Parts of a path.
const DEPTH_MAX: usize = 16;

/// `name` as one part of a path.
pub fn part(name: &str) -> String {
    let encoded = encode(name);
    if encoded.len() <= PART_MAX && !encoded.is_empty() {
        return encoded;
    }
    let digest = Sha256::digest(name.as_bytes());
    // Cut where no `%XX` is split: everything in it is ASCII.
    let mut kept = KEPT.min(encoded.len());
    while kept > 0 && encoded.as_bytes()[..kept].iter().rev().take(2).any(|byte| *byte == b'%') {
        kept -= 1;
    }
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}%-{hex}", &encoded[..kept])
}

/// The name that a part stands for. None for one that was too long, and for what [`part`] never makes.
pub fn name(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    let name = String::from_utf8(bytes).ok()?;
    (encode(&name) == part).then_some(name)
}

/// Whether [`part`] could have made it. One that was too long says no name: it is compared with those of names that are known.
pub fn is_part(part: &str) -> bool {
    let is_digest = |text: &str| text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let cut = part.rsplit_once("%-").is_some_and(|(kept, digest)| kept.len() <= KEPT && is_digest(digest));
    cut || name(part).is_some()
}

fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => encoded.push(char::from(byte)),
            b'.' if at > 0 => encoded.push('.'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// A path inside a project: parts by `/`, none of which could be mistaken for anything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchivePath(String);

impl ArchivePath {
    pub fn new(path: impl Into<String>) -> Result<Self> {
        let path = path.into();
        let fine = |part: &str| {
            !part.is_empty()
                && part.len() <= 255
                && !part.starts_with('.')
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-%+=@,".contains(&byte))
        };
        if path.split('/').count() <= DEPTH_MAX && path.split('/').all(fine) {
            Ok(Self(path))
        } else {
            Err(Error::Path(path))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The folder, empty for a file at the top, and the file's name.
    pub(crate) fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

impl std::fmt::Display for ArchivePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_look_like_something_else_do_not() {
        for (name, expected) in [
            ("GreenCastle", "GreenCastle"),
            ("..", "%2E."),
            (".git", "%2Egit"),
            ("git~1", "git%7E1"),
            ("a/b", "a%2Fb"),
            ("a%2Fb", "a%252Fb"),
            ("v1.2", "v1.2"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(part(name), expected);
            assert_eq!(super::name(expected).as_deref(), Some(name));
        }
        assert_ne!(part(""), "");
    }

    #[test]
    fn long_names_stay_apart() {
        let (a, b) = ("x".repeat(400) + "a", "x".repeat(400) + "b");
        assert_ne!(part(&a), part(&b));
        assert!(part(&a).len() <= PART_MAX);
        assert!(part(&"ä".repeat(300)).len() <= PART_MAX);
        assert_eq!(name(&part(&a)), None);
        assert!(is_part(&part(&a)) && is_part(&part(&"ä".repeat(300))) && is_part("GreenCastle"));
        assert!(!is_part("a b") && !is_part("a%-12") && !is_part(&part(&a).to_uppercase()));
    }

    #[test]
    fn paths_that_leave_are_refused() {
        for path in ["", "/a", "a/", "a//b", "../a", "a/..", ".tmp", "a/.git/b", "a\0", "a b", "a\\b", "ä"] {
            assert!(ArchivePath::new(path).is_err(), "{path:?}");
        }
        assert!(ArchivePath::new(vec!["a"; 17].join("/")).is_err());
        assert!(ArchivePath::new("messages/2026/11/16/0/x__1.md").is_ok());
    }

    proptest! {
        #[test]
        fn every_name_makes_one_part_and_comes_back(name in ".{0,40}") {
            let part = part(&name);
            prop_assert!(ArchivePath::new(part.clone()).is_ok(), "{}", part);
            if !name.is_empty() && encode(&name).len() <= PART_MAX {
                prop_assert_eq!(super::name(&part), Some(name));
            }
        }
    }
}
