//! The canonical request: the text whose hash is signed.
//!
//! ```text
//! POST                                    method
//! /000000000000/orders                    path
//!                                         query, sorted
//! host:localhost:9324                     each signed header, folded
//! x-amz-date:20150830T123600Z
//!                                         an empty line
//! host;x-amz-date                         their names
//! e3b0c44298fc1c14…                       SHA-256 of the body
//! ```
//!
//! Headers that the claim does not name are not looked at: proxies add and change them. Two must be named: the host, and the
//! target where there is one, which says what is to be done. SDKs sign both.

use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;
use sha2::{Digest, Sha256};

use super::claim::{Carrier, Claim};
use super::hex::{self, Hex};
use super::{Refused, presigned, query};

const CONTENT_SHA256: &str = "x-amz-content-sha256";
const TARGET: &str = "x-amz-target";
/// Enough for the headers that SDKs sign; a longer text grows.
const USUAL_BYTES: usize = 768;

/// All lines after the path, which has more forms than one.
pub(super) struct Canonical<'a> {
    method: &'a str,
    rest: Vec<u8>,
}

impl<'a> Canonical<'a> {
    pub(super) fn of(claim: &Claim, parts: &'a Parts, body: &Hex) -> Result<Self, Refused> {
        let mut rest = Vec::with_capacity(USUAL_BYTES);
        if let Some(text) = parts.uri.query() {
            let left_out = matches!(claim.carrier, Carrier::Query { .. }).then_some(presigned::SIGNATURE);
            query::canonical(text, left_out, &mut rest)?;
        }
        rest.push(b'\n');
        let (mut host_signed, mut target_signed) = (false, false);
        for name in claim.signed_headers.split(';') {
            if name == HOST.as_str() {
                host_signed = true;
            }
            if name == TARGET {
                target_signed = true;
            }
            if name == CONTENT_SHA256 {
                check_body(&parts.headers, body)?;
            }
            header(name, parts, &mut rest)?;
        }
        if !host_signed {
            return Err(Refused::SignatureDoesNotMatch("The host must be among the signed headers."));
        }
        if !target_signed && parts.headers.contains_key(TARGET) {
            return Err(Refused::SignatureDoesNotMatch("x-amz-target must be among the signed headers."));
        }
        rest.push(b'\n');
        rest.extend_from_slice(claim.signed_headers.as_bytes());
        rest.push(b'\n');
        rest.extend_from_slice(body);
        Ok(Self { method: parts.method.as_str(), rest })
    }

    pub(super) fn hash(&self, path: &[u8]) -> Hex {
        let mut hash = Sha256::new();
        hash.update(self.method);
        hash.update(b"\n");
        hash.update(path);
        hash.update(b"\n");
        hash.update(&self.rest);
        hex::encode(&hash.finalize().into())
    }

    #[cfg(test)]
    pub(super) fn text(&self, path: &str) -> String {
        format!("{}\n{path}\n{}", self.method, String::from_utf8_lossy(&self.rest))
    }
}

/// Appends `name:value,value` and the end of the line.
fn header(name: &str, parts: &Parts, into: &mut Vec<u8>) -> Result<(), Refused> {
    into.extend_from_slice(name.as_bytes());
    into.push(b':');
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), parts.uri.authority()) {
        (Some(first), _) => {
            fold(first.as_bytes(), into);
            for value in values {
                into.push(b',');
                fold(value.as_bytes(), into);
            }
        }
        // HTTP/2 has no such header: the host is part of the address there.
        (None, Some(authority)) if name == HOST.as_str() => into.extend_from_slice(authority.as_str().as_bytes()),
        _ => return Err(Refused::SignatureDoesNotMatch("The request lacks a header that its signature names.")),
    }
    into.push(b'\n');
    Ok(())
}

/// Trims spaces and makes one of several. Other white space stays, as signers leave it.
fn fold(value: &[u8], into: &mut Vec<u8>) {
    // Most values have nothing to fold.
    if !value.windows(2).any(|pair| pair == b"  ") && !value.starts_with(b" ") && !value.ends_with(b" ") {
        into.extend_from_slice(value);
        return;
    }
    let words = value.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    for (nth, word) in words.enumerate() {
        if nth > 0 {
            into.push(b' ');
        }
        into.extend_from_slice(word);
    }
}

/// A signed hash of the body that is not the body's would let two readers of one request see two bodies.
fn check_body(headers: &HeaderMap, body: &Hex) -> Result<(), Refused> {
    let mut values = headers.get_all(CONTENT_SHA256).iter();
    let agrees = values.next().is_some_and(|value| value.as_bytes().trim_ascii() == body);
    if agrees && values.next().is_none() {
        return Ok(());
    }
    // `UNSIGNED-PAYLOAD` ends here too: queues have no bodies worth streaming.
    Err(Refused::SignatureDoesNotMatch("x-amz-content-sha256 must be the SHA-256 of the body."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_trimmed_and_folded() {
        for (value, expected) in [
            ("", ""),
            ("   ", ""),
            ("a", "a"),
            (" a ", "a"),
            ("a b", "a b"),
            ("a   b  c", "a b c"),
            ("\"a   b\"", "\"a b\""),
            ("a\t\tb", "a\t\tb"),
        ] {
            let mut text = Vec::new();
            fold(value.as_bytes(), &mut text);
            assert_eq!(text, expected.as_bytes(), "{value:?}");
        }
    }
}
