//! The claim in the query of a presigned address.
//!
//! ```text
//! ?Action=ReceiveMessage&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20150830%2Fus-east-1%2Fsqs%2Faws4_request
//!  &X-Amz-Date=20150830T123600Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=5fa0…
//! ```

use std::time::Duration;

use super::claim::{Carrier, Claim, Fields};
use super::query::{decoded, pairs};
use super::stamp::Stamp;
use super::{AUTHORIZATION_BYTES_MAX, Refused};

/// Seven days, as with AWS: the signing key's day could be any of the last eight.
pub const EXPIRES_SECONDS_MAX: u64 = 604_800;

/// Not part of what it signs.
pub(super) const SIGNATURE: &str = "X-Amz-Signature";
const NAMES: [&str; 6] =
    ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", SIGNATURE];

/// The parameters of a presigned address, still encoded, in the order of [`NAMES`].
pub(super) struct Found<'a>([Option<&'a str>; NAMES.len()]);

/// None when the query holds no parameter that only a signer writes.
pub(super) fn find(query: &str) -> Result<Option<Found<'_>>, Refused> {
    let mut found = [None; NAMES.len()];
    for (name, value) in pairs(query) {
        let Some(nth) = NAMES.iter().position(|known| decoded(name).eq(known.bytes())) else { continue };
        if found[nth].replace(value).is_some() {
            return Err(Refused::IncompleteSignature("The query says something about its signature twice."));
        }
    }
    let [algorithm, credential, .., signature] = found;
    let signed = algorithm.or(credential).or(signature).is_some();
    Ok(signed.then_some(Found(found)))
}

impl Found<'_> {
    pub(super) fn read(self) -> Result<Claim, Refused> {
        let [algorithm, credential, date, expires, signed_headers, signature] = self.0.map(|raw| raw.map(text));
        let missing = |what| move || Refused::IncompleteSignature(what);
        let algorithm = algorithm.ok_or_else(missing("The query lacks X-Amz-Algorithm."))??;
        let credential = credential.ok_or_else(missing("The query lacks X-Amz-Credential."))??;
        let date = date.ok_or_else(missing("The query lacks X-Amz-Date."))??;
        let expires = expires.ok_or_else(missing("The query lacks X-Amz-Expires."))??;
        let signed_headers = signed_headers.ok_or_else(missing("The query lacks X-Amz-SignedHeaders."))??;
        let signature = signature.ok_or_else(missing("The query lacks X-Amz-Signature."))??;
        let fields = Fields {
            algorithm: &algorithm,
            credential: &credential,
            signed_headers: &signed_headers,
            signature: &signature,
        };
        let carrier = Carrier::Query { expires: lifetime(&expires)? };
        Claim::assemble(&fields, Stamp::read(date.as_bytes()), carrier)
    }
}

fn text(raw: &str) -> Result<String, Refused> {
    if raw.len() > AUTHORIZATION_BYTES_MAX {
        return Err(Refused::IncompleteSignature("A parameter of the signature is longer than 4096 bytes."));
    }
    String::from_utf8(decoded(raw).collect())
        .map_err(|_| Refused::IncompleteSignature("A parameter of the signature is not UTF-8."))
}

fn lifetime(text: &str) -> Result<Duration, Refused> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(seconds @ 1..=EXPIRES_SECONDS_MAX) if digits => Ok(Duration::from_secs(seconds)),
        _ => Err(Refused::IncompleteSignature("X-Amz-Expires must be a number of seconds between 1 and 604800.")),
    }
}
