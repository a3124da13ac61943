//! The path of a request, in the forms in which clients sign it.
//!
//! AWS's rule for all services but S3: remove dot segments and empty segments, then encode the path as sent once more, so
//! that `%20` becomes `%2520`. The SDKs for Rust, Python, Java and JavaScript do that. The one for Go encodes and removes
//! nothing; curl and AWS's own published vectors sign the path as it was sent.
//!
//! A queue's name holds only letters, digits, `-`, `_` and `.`: on every path in a queue's address the forms are one and the
//! same, and one is tried. Elsewhere a signature is accepted in any of them.
//!
//! # Contract
//! Who reads the path reads it as it was sent, without removing or decoding anything. So no two paths that one signature
//! covers lead to two queues: they end in the same name, or in one with a `%` in it, which no queue has.

use std::borrow::Cow;

use super::query::{encode, is_unreserved};

/// Without duplicates, the usual form first.
pub(super) fn forms(path: &str) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let sent = if path.is_empty() { "/" } else { path };
    let mut forms = [Some(Cow::Borrowed(sent.as_bytes())), None, None];
    if !is_plain(sent) {
        let removed = without_dots(sent);
        forms[1] = Some(Cow::Owned(encoded(&removed))).filter(|form| Some(form) != forms[0].as_ref());
        forms[2] = (removed != sent).then(|| Cow::Owned(encoded(sent))).filter(|form| Some(form) != forms[0].as_ref());
    }
    forms.into_iter().flatten()
}

/// No encoding and no removal would change it.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let legal = bytes.iter().all(|byte| *byte == b'/' || is_unreserved(*byte));
    legal && !bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
}

fn encoded(path: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len() + path.len() / 2);
    for byte in path.bytes() {
        if byte == b'/' { text.push(b'/') } else { encode(byte, &mut text) }
    }
    text
}

/// RFC 3986, 5.2.4, which also drops empty segments here.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let mut text = String::with_capacity(path.len());
    for segment in &kept {
        text.push('/');
        text.push_str(segment);
    }
    if text.is_empty() || ["/", "/.", "/.."].iter().any(|end| path.ends_with(end)) {
        text.push('/');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queues_path_has_one_form() {
        for path in ["/", "/orders", "/000000000000/orders.fifo", "/a-b_c~d/", "/000000000000/Orders_2.fifo"] {
            let all: Vec<_> = forms(path).collect();
            assert_eq!(all, [path.as_bytes()], "{path}");
        }
        assert_eq!(forms("").collect::<Vec<_>>(), [b"/".as_slice()]);
    }

    #[test]
    fn other_paths_are_tried_in_all_forms() {
        for (path, expected) in [
            ("/a%20b", &["/a%20b", "/a%2520b"][..]),
            ("/a//b", &["/a//b", "/a/b"]),
            ("/a/./b/../c", &["/a/./b/../c", "/a/c"]),
            ("/a/..", &["/a/..", "/"]),
            ("/../..", &["/../..", "/"]),
            ("/a/.", &["/a/.", "/a/"]),
            ("//a%20b", &["//a%20b", "/a%2520b", "//a%2520b"]),
            ("/.hidden", &["/.hidden"]),
            ("/a=b", &["/a=b", "/a%3Db"]),
        ] {
            let all: Vec<_> = forms(path).map(|form| String::from_utf8(form.into_owned()).unwrap()).collect();
            assert_eq!(all, expected, "{path}");
        }
    }
}
