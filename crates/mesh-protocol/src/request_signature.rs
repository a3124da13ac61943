//! How a member signs an HTTP request: `Authorization: Waybill-Member mesh=…,key=…,time=…,nonce=…,signature=…`. Signed are the
//! method, path and query as they stand in the request line, mesh, time, nonce and the digest of the body.

use sha2::{Digest, Sha256};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Entropy, Error, Result, Time, hex};

use crate::bytes::{read_hex, text_bytes};
use crate::challenge::{check_skew, unix_seconds};
use crate::identity::{Context, Identity};
use crate::ids::MeshId;
use crate::keys::{PublicKey, Signature};

pub const SCHEME: &str = "Waybill-Member";
/// The header has some 320; more is refused unread.
const HEADER_BYTES_MAX: usize = 512;

text_bytes! {
    /// Makes two like requests of one second two requests, so that a server can tell a repeat from another.
    RequestNonce, 16, hex::encode, read_hex, "^[0-9a-f]{32}$", "a nonce, which has 32 lower-case hexadecimal digits"
}

impl RequestNonce {
    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes);
        Self(bytes)
    }
}

text_bytes! {
    /// SHA-256 of a body, for one that is not in memory as a whole.
    BodyHash, 32, hex::encode, read_hex, "^[0-9a-f]{64}$", "a digest, which has 64 lower-case hexadecimal digits"
}

impl BodyHash {
    pub fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }
}

/// What a signature is about. `target` is path and query as they are sent, `/mesh/v1/history?after=1`.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub body: BodyHash,
}

impl<'a> Signed<'a> {
    pub fn new(method: &'a str, target: &'a str, body: &[u8]) -> Self {
        Self { method, target, body: BodyHash::of(body) }
    }

    /// No part holds a NUL: a method and a target with one are no HTTP.
    fn statement(&self, mesh: MeshId, time: i64, nonce: &RequestNonce) -> Vec<u8> {
        let (mesh, time) = (mesh.to_string(), time.to_string());
        let (nonce, body) = (nonce.to_string(), self.body.to_string());
        [self.method, self.target, &mesh, &time, &nonce, &body].join("\0").into_bytes()
    }
}

/// The value of `Authorization`.
pub fn sign_request(identity: &Identity, mesh: MeshId, signed: Signed<'_>, now: Time, nonce: RequestNonce) -> String {
    let time = unix_seconds(now);
    let signature = identity.sign(Context::Http, &signed.statement(mesh, time, &nonce));
    RequestClaim { mesh, key: identity.public_key(), time, nonce, signature }.header()
}

/// What a request says about who has signed it. Nothing of it is true before it is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClaim {
    pub mesh: MeshId,
    pub key: PublicKey,
    /// Whole seconds since 1970.
    pub time: i64,
    pub nonce: RequestNonce,
    pub signature: Signature,
}

impl RequestClaim {
    fn header(&self) -> String {
        let Self { mesh, key, time, nonce, signature } = self;
        format!("{SCHEME} mesh={mesh},key={key},time={time},nonce={nonce},signature={signature}")
    }

    /// Reads the value of `Authorization`: the five fields in their order and in the one spelling that each has.
    ///
    /// # Errors
    /// `incomplete_signature`.
    pub fn parse(header: &str) -> Result<Self> {
        let refused = || {
            Error::new(Code::IncompleteSignature, "The member's signature cannot be read.").with_cure(format!(
                "Send `Authorization: {SCHEME} mesh=<uuid>,key=<hex>,time=<seconds>,nonce=<hex>,signature=<base64url>`."
            ))
        };
        if header.len() > HEADER_BYTES_MAX {
            return Err(refused());
        }
        Self::read(header).ok_or_else(refused)
    }

    fn read(header: &str) -> Option<Self> {
        let mut fields = header.strip_prefix(SCHEME)?.strip_prefix(' ')?.split(',');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
        let claim = Self {
            mesh: MeshId(Uuid::try_parse(field("mesh")?).ok()?),
            key: field("key")?.parse().ok()?,
            time: field("time")?.parse().ok()?,
            nonce: field("nonce")?.parse().ok()?,
            signature: field("signature")?.parse().ok()?,
        };
        // A UUID and a number have other spellings, which nobody needs.
        (claim.header() == header).then_some(claim)
    }

    /// What can be said before the body is there.
    ///
    /// # Errors
    /// `request_time_too_skewed`.
    pub fn check_time(&self, now: Time) -> Result<()> {
        check_skew(self.time, now)
    }

    /// # Errors
    /// `signature_does_not_match`.
    pub fn check_signature(&self, signed: Signed<'_>) -> Result<()> {
        if self.key.verifies(Context::Http, &signed.statement(self.mesh, self.time, &self.nonce), &self.signature) {
            return Ok(());
        }
        Err(Error::new(Code::SignatureDoesNotMatch, "The request is not signed by this member's key.")
            .with_cure("Check the keys of the member, and that nothing on the way changes requests."))
    }

    /// Both.
    pub fn verify(&self, signed: Signed<'_>, now: Time) -> Result<()> {
        self.check_time(now)?;
        self.check_signature(signed)
    }
}
