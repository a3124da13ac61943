//! What a request says about its signature, read but not yet believed.

use std::fmt;
use std::time::Duration;

use http::request::Parts;

use super::credential::Credential;
use super::hex::{self, Hex};
use super::stamp::Stamp;
use super::{ALGORITHM, Refused, header, presigned};

/// Botocore signs six headers, a browser behind a proxy perhaps twenty.
const SIGNED_HEADERS_MAX: usize = 64;

/// Owns its parts, so that it outlives the wait for the key and for the body.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    pub(super) credential: Credential,
    /// Names in lower case with `;` between them, as they stand in the canonical request.
    pub(super) signed_headers: Box<str>,
    pub(super) signature: Hex,
    /// None when the time is missing or cannot be read: that is refused after the key is known, not here.
    pub(super) stamp: Option<Stamp>,
    pub(super) carrier: Carrier,
}

/// Where the claim stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Header,
    /// A presigned address is good for as long as its signer said, at any skew into the past.
    Query {
        expires: Duration,
    },
}

/// The texts of a claim, whichever part of the request carried them.
pub(super) struct Fields<'a> {
    pub(super) algorithm: &'a str,
    pub(super) credential: &'a str,
    pub(super) signed_headers: &'a str,
    pub(super) signature: &'a str,
}

impl Claim {
    /// Reads the claim of a request; None when the request carries none in the header nor in the query.
    ///
    /// Checks what can be known without the key: the form, the algorithm and the service.
    pub fn of(parts: &Parts) -> Result<Option<Self>, Refused> {
        let authorization = header::find(&parts.headers)?;
        let presigned = parts.uri.query().map(presigned::find).transpose()?.flatten();
        match (authorization, presigned) {
            (None, None) => Ok(None),
            (Some(text), None) => header::read(text, &parts.headers).map(Some),
            (None, Some(found)) => found.read().map(Some),
            // Whichever was taken, the other would be believed by somebody.
            (Some(_), Some(_)) => Err(Refused::IncompleteSignature(
                "The request must be signed in the header or in the query, not in both.",
            )),
        }
    }

    /// Finds the secret. Nothing is proven about it yet.
    pub fn access_key_id(&self) -> &str {
        self.credential.access_key_id()
    }

    /// To be asked before the key is looked up: a request for another region is refused as such, whoever sent it.
    pub fn in_region(&self, region: &str) -> Result<(), Refused> {
        if self.credential.region() == region {
            return Ok(());
        }
        Err(Refused::SignatureDoesNotMatch("The credential's scope names another region than this server's."))
    }

    pub(super) fn assemble(fields: &Fields<'_>, stamp: Option<Stamp>, carrier: Carrier) -> Result<Self, Refused> {
        if fields.algorithm != ALGORITHM {
            return Err(Refused::IncompleteSignature("The signature's algorithm must be `AWS4-HMAC-SHA256`."));
        }
        check_names(fields.signed_headers)?;
        let Some(signature) = hex::read(fields.signature) else {
            return Err(Refused::IncompleteSignature("The signature must be 64 lower-case hexadecimal digits."));
        };
        let credential = Credential::read(fields.credential)?;
        Ok(Self { credential, signed_headers: fields.signed_headers.into(), signature, stamp, carrier })
    }
}

/// They are not asked to be sorted: they are signed in the order in which they stand, whatever it is.
fn check_names(signed_headers: &str) -> Result<(), Refused> {
    let mut names = signed_headers.split(';');
    let legal = |name: &str| !name.is_empty() && name.bytes().all(is_name);
    if !names.by_ref().take(SIGNED_HEADERS_MAX).all(legal) {
        return Err(Refused::IncompleteSignature("The signed headers must be lower-case names with `;` between them."));
    }
    match names.next() {
        None => Ok(()),
        Some(_) => Err(Refused::IncompleteSignature("The request signs more than 64 headers.")),
    }
}

/// What HTTP allows in a name, without capitals.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Without the signature: that of a presigned address opens what it signs.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("credential", &self.credential)
            .field("signed_headers", &self.signed_headers)
            .field("carrier", &self.carrier)
            .finish_non_exhaustive()
    }
}
