//! Projects: absolute paths as keys, and what they are called in paths.

use sha2::{Digest, Sha256};
use waybill_kernel::visible::unseen;
use waybill_kernel::{Error, Result, hex};

pub const HUMAN_KEY_BYTES_MAX: usize = 4_096;
/// A slug is a folder's name; most file systems take 255 bytes.
pub const SLUG_BYTES_MAX: usize = 128;
/// Folders whose contents do not last, so that no project should be named after them.
const EPHEMERAL: &[&str] = &["/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp", "/dev/shm", "/run", "/var/run"];
/// Between a slug and what tells it from another project's. A slug of its own never has two dashes in a row.
const MARK: &str = "--";
const MARK_BYTES: usize = 4;

/// `/a/b`, `C:\a`, `\\server\share`.
pub fn is_absolute(key: &str) -> bool {
    let bytes = key.as_bytes();
    let drive =
        bytes.len() > 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' && matches!(bytes[2], b'/' | b'\\');
    key.starts_with('/') || key.starts_with("\\\\") || drive
}

/// One spelling: without a separator at the end, and none twice.
pub fn human_key(key: &str) -> String {
    let key = key.trim();
    if !key.starts_with('/') {
        return key.trim_end_matches(['/', '\\']).to_owned();
    }
    let parts: Vec<_> = key.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("/{}", parts.join("/"))
}

/// The key as it is stored, or why it is none.
pub fn check(key: &str, allow_ephemeral: bool) -> Result<String> {
    if !is_absolute(key.trim()) {
        return Err(Error::invalid("human_key must be the absolute path of a folder, as in /data/projects/backend."));
    }
    if key.len() > HUMAN_KEY_BYTES_MAX {
        return Err(Error::invalid(format!("human_key has at most {HUMAN_KEY_BYTES_MAX} bytes.")));
    }
    if let Some(why) = unseen(key.trim()) {
        return Err(Error::invalid(format!("human_key {why}.")));
    }
    if key.split(['/', '\\']).any(|part| part == "..") {
        return Err(Error::invalid("human_key must not hold `..`: one path, one project."));
    }
    let key = human_key(key);
    if !allow_ephemeral && is_ephemeral(&key) {
        let message = format!("{key} is in a folder whose contents do not last.");
        let cure = "Name the project by where it is kept, or have the operator set `mail.allow_ephemeral_projects`.";
        return Err(Error::invalid(message).with_cure(cure));
    }
    Ok(key)
}

fn is_ephemeral(key: &str) -> bool {
    EPHEMERAL.iter().any(|root| key.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Small letters and digits; every run of something else is one dash, none at the ends; never empty.
pub fn slug(key: &str) -> String {
    let mut slug = String::new();
    for c in key.chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() >= SLUG_BYTES_MAX - MARK.len() - 2 * MARK_BYTES {
            break;
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "project".to_owned() } else { slug.to_owned() }
}

/// For a project whose slug another path has already: the same for the same path, however often it is asked for.
pub fn marked_slug(human_key: &str) -> String {
    format!("{}{MARK}{}", slug(human_key), hex::encode(&digest(human_key)[..MARK_BYTES]))
}

pub fn digest(human_key: &str) -> [u8; 32] {
    Sha256::digest(human_key.as_bytes()).into()
}

/// The same for every way to name one project, and told from the name alone: those who wait for its mail are woken by it. Projects
/// that share a slug share it too, and are woken in vain at times.
pub fn common_name(project_key: &str) -> String {
    let key = project_key.trim();
    if is_absolute(key) {
        return slug(key);
    }
    key.split_once(MARK).map_or(key, |(slug, _)| slug).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_what_the_contract_says() {
        for (key, expected) in [
            ("/data/projects/backend", "data-projects-backend"),
            ("/a/b", "a-b"),
            ("/a-b", "a-b"),
            ("/A//b!!c/", "a-b-c"),
            ("/", "project"),
            ("/äöü", "project"),
            ("C:\\Work\\x", "c-work-x"),
        ] {
            assert_eq!(slug(key), expected, "{key}");
            assert_eq!(slug(expected), expected, "a slug is its own slug");
        }
        assert!(slug(&format!("/{}", "x".repeat(5_000))).len() <= SLUG_BYTES_MAX);
    }

    #[test]
    fn a_marked_slug_is_another_and_is_woken_as_the_plain_one() {
        let marked = marked_slug("/a-b");
        assert!(marked.starts_with("a-b--") && marked != marked_slug("/a/b"), "{marked}");
        assert!(marked.len() <= SLUG_BYTES_MAX);
        for name in ["/a-b", "/a-b/", "a-b", &marked] {
            assert_eq!(common_name(name), "a-b", "{name}");
        }
    }

    #[test]
    fn keys_have_one_spelling_and_what_is_none_is_refused() {
        assert_eq!(check("/data//x/./y/", false).unwrap(), "/data/x/y");
        assert_eq!(check(" /data/x ", false).unwrap(), "/data/x");
        assert_eq!(check("C:\\x\\", false).unwrap(), "C:\\x");
        for key in ["", "backend", "./x", "/a/../b", "/a\u{0}", "/tmp", "/tmp/x", "/dev/shm/y", "/private/tmp/z"] {
            assert!(check(key, false).is_err(), "{key:?}");
        }
        assert_eq!(check("/tmp/x", true).unwrap(), "/tmp/x");
        assert_eq!(check("/tmpfiles", false).unwrap(), "/tmpfiles");
    }
}
