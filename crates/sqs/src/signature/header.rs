//! The claim in the `Authorization` header.
//!
//! ```text
//! AWS4-HMAC-SHA256 Credential=AKID/20150830/us-east-1/sqs/aws4_request, SignedHeaders=host;x-amz-date, Signature=5fa0…
//! ```

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::Refused;
use super::claim::{Carrier, Claim, Fields};
use super::stamp::Stamp;

/// Real ones have some 300; one that signs as many headers as may be signed has 3,000.
pub const AUTHORIZATION_BYTES_MAX: usize = 4096;

const DATE: &str = "x-amz-date";

/// The header's text, of whatever scheme.
pub(super) fn find(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refused::IncompleteSignature("The request carries more than one Authorization header."));
    }
    if value.len() > AUTHORIZATION_BYTES_MAX {
        return Err(Refused::IncompleteSignature("The Authorization header is longer than 4096 bytes."));
    }
    let text =
        value.to_str().map_err(|_| Refused::IncompleteSignature("The Authorization header is not ASCII text."))?;
    Ok(Some(text.trim()))
}

pub(super) fn read(text: &str, headers: &HeaderMap) -> Result<Claim, Refused> {
    let (algorithm, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (mut credential, mut signed_headers, mut signature) = (None, None, None);
    for part in rest.split(',').map(str::trim) {
        let slot = match part.split_once('=') {
            Some(("Credential", value)) => credential.replace(value),
            Some(("SignedHeaders", value)) => signed_headers.replace(value),
            Some(("Signature", value)) => signature.replace(value),
            _ => {
                return Err(Refused::IncompleteSignature(
                    "The Authorization header must hold Credential, SignedHeaders and Signature with commas between them.",
                ));
            }
        };
        if slot.is_some() {
            return Err(Refused::IncompleteSignature("The Authorization header says something twice."));
        }
    }
    let missing = |what| move || Refused::IncompleteSignature(what);
    let fields = Fields {
        algorithm,
        credential: credential.ok_or_else(missing("The Authorization header lacks Credential."))?,
        signed_headers: signed_headers.ok_or_else(missing("The Authorization header lacks SignedHeaders."))?,
        signature: signature.ok_or_else(missing("The Authorization header lacks Signature."))?,
    };
    Claim::assemble(&fields, date(headers), Carrier::Header)
}

/// It need not be among the signed headers: the string to sign holds it anyway.
fn date(headers: &HeaderMap) -> Option<Stamp> {
    let mut values = headers.get_all(DATE).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    Stamp::read(value.as_bytes().trim_ascii())
}
