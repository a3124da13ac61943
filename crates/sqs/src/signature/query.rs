//! The query of a request, in the one form in which both sides sign it.
//!
//! Each name and value is decoded and encoded again by RFC 3986, so that `%7e`, `~` and a lower-case `%2f` come out alike.
//! Pairs are sorted by name and then by value, duplicates stay. A plus is a space, as those who read the query later see it.

use super::Refused;

/// A batch of ten messages with ten attributes each has some 450.
pub const PAIRS_MAX: usize = 1024;

/// Raw names and values. A name without `=` has an empty value; nothing between two `&` is no pair.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Bytes of a raw name or value. A percent sign that begins no byte stands for itself.
pub(super) fn decoded(raw: &str) -> impl Iterator<Item = u8> {
    let mut rest = raw.as_bytes();
    std::iter::from_fn(move || {
        let (byte, length) = match *rest {
            [b'%', high, low, ..] => match (nibble(high), nibble(low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'%', 1),
            },
            [b'+', ..] => (b' ', 1),
            [byte, ..] => (byte, 1),
            [] => return None,
        };
        rest = &rest[length..];
        Some(byte)
    })
}

fn nibble(digit: u8) -> Option<u8> {
    // A base-16 digit is below 16.
    char::from(digit).to_digit(16).map(|value| value as u8)
}

pub(super) const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

pub(super) fn encode(byte: u8, into: &mut Vec<u8>) {
    const ALPHABET: &[u8; 16] = b"0123456789ABCDEF";
    if is_unreserved(byte) {
        into.push(byte);
    } else {
        into.extend([b'%', ALPHABET[usize::from(byte >> 4)], ALPHABET[usize::from(byte & 15)]]);
    }
}

/// Appends the canonical query, without the pair that holds the signature itself where there is one.
pub(super) fn canonical(query: &str, left_out: Option<&str>, into: &mut Vec<u8>) -> Result<(), Refused> {
    let mut text = Vec::with_capacity(query.len() + query.len() / 4);
    let mut spans = Vec::new();
    for (name, value) in pairs(query) {
        if left_out.is_some_and(|left_out| decoded(name).eq(left_out.bytes())) {
            continue;
        }
        if spans.len() == PAIRS_MAX {
            return Err(Refused::IncompleteSignature("The query has more than 1024 parameters."));
        }
        let start = text.len();
        decoded(name).for_each(|byte| encode(byte, &mut text));
        let middle = text.len();
        decoded(value).for_each(|byte| encode(byte, &mut text));
        spans.push((start, middle, text.len()));
    }
    // By the encoded bytes. Name and value are compared apart: `a=` sorts before `a-b=`, though `-` is less than `=`.
    spans.sort_unstable_by_key(|&(start, middle, end)| (&text[start..middle], &text[middle..end]));
    for (nth, &(start, middle, end)) in spans.iter().enumerate() {
        if nth > 0 {
            into.push(b'&');
        }
        into.extend_from_slice(&text[start..middle]);
        into.push(b'=');
        into.extend_from_slice(&text[middle..end]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_of(query: &str) -> String {
        let mut text = Vec::new();
        canonical(query, Some("X-Amz-Signature"), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn pairs_are_sorted_and_encoded_anew() {
        for (query, expected) in [
            ("", ""),
            ("a", "a="),
            ("&&a=1&", "a=1"),
            ("b=2&a=1", "a=1&b=2"),
            ("a=2&a=10&a=1", "a=1&a=10&a=2"),
            ("a-b=&a=", "a=&a-b="),
            ("a=x%2By+z", "a=x%2By%20z"),
            ("a=%7e%2f%c3%a9", "a=~%2F%C3%A9"),
            ("a=b=c", "a=b%3Dc"),
            ("a=100%", "a=100%25"),
            ("a=%zz%4", "a=%25zz%254"),
            ("a=%FF", "a=%FF"),
            ("=v", "=v"),
            ("Z=1&a=1&A=1", "A=1&Z=1&a=1"),
            ("a=1&X-Amz-Signature=ff", "a=1"),
            ("a=1&X%2DAmz-Signature=ff", "a=1"),
            ("a=1&x-amz-signature=ff", "a=1&x-amz-signature=ff"),
        ] {
            assert_eq!(canonical_of(query), expected, "{query}");
        }
    }

    #[test]
    fn there_is_a_most_that_is_sorted() {
        let pairs = |count: usize| vec!["a=1"; count].join("&");
        assert!(canonical(&pairs(PAIRS_MAX), None, &mut Vec::new()).is_ok());
        let refused = canonical(&pairs(PAIRS_MAX + 1), None, &mut Vec::new()).unwrap_err();
        assert_eq!(refused.shape(), "IncompleteSignature");
    }
}
