//! The credential of a claim: whose key, and for which day, region and service the signing key was derived.
//!
//! ```text
//! AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request
//! access key  scope
//! ```

use std::fmt;

use super::{Refused, SERVICE};

/// What AWS allows.
const ACCESS_KEY_ID_CHARS_MAX: usize = 128;
const TERMINATOR: &str = "aws4_request";

/// One allocation: the parts are found by the places of the slashes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credential {
    text: Box<str>,
    key_end: usize,
    day_end: usize,
    region_end: usize,
}

impl Credential {
    pub(super) fn read(text: &str) -> Result<Self, Refused> {
        Self::for_service(text, SERVICE)
    }

    /// Apart from [`read`](Self::read) for the published vectors, which are for another service.
    pub(super) fn for_service(text: &str, expected: &str) -> Result<Self, Refused> {
        const FORM: Refused =
            Refused::IncompleteSignature("The credential must be of the form `key/YYYYMMDD/region/sqs/aws4_request`.");
        let mut parts = text.split('/');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(FORM);
        let (key, day, region, service, terminator) = (next()?, next()?, next()?, next()?, next()?);
        // The id finds a row and is written to logs.
        let legible = key.len() <= ACCESS_KEY_ID_CHARS_MAX && key.bytes().all(|byte| byte.is_ascii_graphic());
        if parts.next().is_some() || !legible {
            return Err(FORM);
        }
        if service != expected {
            return Err(Refused::SignatureDoesNotMatch("The credential's scope must name the service `sqs`."));
        }
        if terminator != TERMINATOR {
            return Err(Refused::SignatureDoesNotMatch("The credential's scope must end in `aws4_request`."));
        }
        let key_end = key.len();
        let day_end = key_end + 1 + day.len();
        let region_end = day_end + 1 + region.len();
        Ok(Self { text: text.into(), key_end, day_end, region_end })
    }

    /// All of it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn access_key_id(&self) -> &str {
        &self.text[..self.key_end]
    }

    pub(super) fn day(&self) -> &str {
        &self.text[self.key_end + 1..self.day_end]
    }

    pub(super) fn region(&self) -> &str {
        &self.text[self.day_end + 1..self.region_end]
    }

    /// All but the key, as it stands in the string to sign.
    pub(super) fn scope(&self) -> &str {
        &self.text[self.key_end + 1..]
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_comes_apart_at_its_slashes() {
        let credential = Credential::read("AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request").unwrap();
        assert_eq!(credential.access_key_id(), "AKIDEXAMPLE");
        assert_eq!((credential.day(), credential.region()), ("20150830", "us-east-1"));
        assert_eq!(credential.scope(), "20150830/us-east-1/sqs/aws4_request");
    }

    #[test]
    fn what_is_not_one_is_refused_by_the_first_rule_it_breaks() {
        let long = format!("{}/20150830/us-east-1/sqs/aws4_request", "A".repeat(ACCESS_KEY_ID_CHARS_MAX + 1));
        for (text, shape) in [
            ("", "IncompleteSignature"),
            ("AKID", "IncompleteSignature"),
            ("AKID/20150830/us-east-1/sqs", "IncompleteSignature"),
            ("AKID/20150830/us-east-1/sqs/aws4_request/", "IncompleteSignature"),
            ("AKID/20150830/us-east-1/sqs/aws4_request/more", "IncompleteSignature"),
            ("/20150830/us-east-1/sqs/aws4_request", "IncompleteSignature"),
            ("AKID//us-east-1/sqs/aws4_request", "IncompleteSignature"),
            ("AK ID/20150830/us-east-1/sqs/aws4_request", "IncompleteSignature"),
            ("AKÏD/20150830/us-east-1/sqs/aws4_request", "IncompleteSignature"),
            (&long, "IncompleteSignature"),
            ("AKID/20150830/us-east-1/sns/aws4_request", "SignatureDoesNotMatch"),
            ("AKID/20150830/us-east-1/SQS/aws4_request", "SignatureDoesNotMatch"),
            ("AKID/20150830/us-east-1/sqs/aws4_reques", "SignatureDoesNotMatch"),
        ] {
            assert_eq!(Credential::read(text).unwrap_err().shape(), shape, "{text}");
        }
    }
}
