//! How a member proves on a socket who it is: it signs what the broker has just made up, the mesh, and the time.

use waybill_kernel::{Code, Entropy, Error, Result, Time, hex};

use crate::SKEW_SECONDS_MAX;
use crate::bytes::{read_hex, text_bytes};
use crate::identity::{Context, Identity};
use crate::ids::MeshId;
use crate::keys::{PublicKey, Signature};

text_bytes! {
    /// Made by the broker for one connection or one join, and good for one answer.
    ChallengeNonce, 32, hex::encode, read_hex, "^[0-9a-f]{64}$", "a nonce, which has 64 lower-case hexadecimal digits"
}

impl ChallengeNonce {
    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 32];
        entropy.fill(&mut bytes);
        Self(bytes)
    }
}

/// Whole seconds since 1970.
pub fn unix_seconds(now: Time) -> i64 {
    now.micros().div_euclid(1_000_000)
}

/// # Errors
/// `request_time_too_skewed` when the time is more than a minute from now, in either direction.
pub fn check_skew(time: i64, now: Time) -> Result<()> {
    if time.abs_diff(unix_seconds(now)) <= SKEW_SECONDS_MAX.unsigned_abs() {
        return Ok(());
    }
    let message = format!("The time of the signature is more than {SKEW_SECONDS_MAX} seconds from the server's.");
    Err(Error::new(Code::RequestTimeTooSkewed, message))
}

fn statement(nonce: &ChallengeNonce, mesh: MeshId, time: i64) -> Vec<u8> {
    [nonce.as_bytes().as_slice(), mesh.as_bytes(), &time.to_be_bytes()].concat()
}

/// `time` in whole seconds since 1970, by the member's clock.
pub fn sign(identity: &Identity, nonce: &ChallengeNonce, mesh: MeshId, time: i64) -> Signature {
    identity.sign(Context::Challenge, &statement(nonce, mesh, time))
}

/// # Errors
/// `request_time_too_skewed`, `signature_does_not_match`.
pub fn verify(
    key: &PublicKey,
    nonce: &ChallengeNonce,
    mesh: MeshId,
    time: i64,
    signature: &Signature,
    now: Time,
) -> Result<()> {
    check_skew(time, now)?;
    if key.verifies(Context::Challenge, &statement(nonce, mesh, time), signature) {
        return Ok(());
    }
    Err(Error::new(Code::SignatureDoesNotMatch, "The answer to the challenge is not signed by this member's key.")
        .with_cure("Connect again with the keys of the member, to the mesh that it has joined."))
}
