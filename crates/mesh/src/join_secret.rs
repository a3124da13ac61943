//! The box key of a join challenge. It is derived from the mesh's secret and the nonce, so nothing is kept between the challenge and
//! its answer. The nonce begins with the time it was made at: nobody but the broker knows the key of any other nonce, so a
//! nonce with another time is of no use.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use waybill_kernel::{Code, Error, Result, Time};
use waybill_mesh_protocol::BoxSecret;
use waybill_mesh_protocol::challenge::ChallengeNonce;
use waybill_mesh_protocol::join::JoinChallenge;

const TIME_BYTES: usize = 8;

pub(crate) fn nonce(now: Time, random: &[u8; ChallengeNonce::BYTES]) -> ChallengeNonce {
    let mut bytes = *random;
    bytes[..TIME_BYTES].copy_from_slice(&now.micros().to_be_bytes());
    ChallengeNonce::from_bytes(bytes)
}

fn made_at(nonce: &ChallengeNonce) -> Time {
    let mut time = [0; TIME_BYTES];
    time.copy_from_slice(&nonce.as_bytes()[..TIME_BYTES]);
    Time::from_micros(i64::from_be_bytes(time))
}

fn box_secret(secret: &[u8], nonce: &ChallengeNonce) -> Result<BoxSecret> {
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(secret).map_err(Error::internal)?;
    mac.update(b"waybill-join-box-v1\0");
    mac.update(nonce.as_bytes());
    Ok(BoxSecret::from_bytes(mac.finalize().into_bytes().into()))
}

pub(crate) fn challenge(secret: &[u8], nonce: ChallengeNonce) -> Result<(JoinChallenge, BoxSecret)> {
    let boxes = box_secret(secret, &nonce)?;
    Ok((JoinChallenge { nonce, box_key: boxes.public() }, boxes))
}

/// # Errors
/// `challenge_expired` for a nonce that is older than this, or that was made later than now.
pub(crate) fn check_age(nonce: &ChallengeNonce, now: Time, seconds: u64) -> Result<()> {
    let made_at = made_at(nonce);
    if made_at <= now && now.since(made_at).as_secs() < seconds {
        return Ok(());
    }
    Err(Error::new(Code::ChallengeExpired, format!("The challenge was good for {seconds} seconds.")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_challenge_is_the_same_for_the_same_nonce_and_secret_alone() {
        let nonce = nonce(Time::from_micros(5), &[7; 32]);
        let key = |secret: &[u8], nonce| challenge(secret, nonce).unwrap().0.box_key;
        assert_eq!(key(b"a", nonce), key(b"a", nonce));
        assert_ne!(key(b"a", nonce), key(b"b", nonce));
        assert_ne!(key(b"a", nonce), key(b"a", super::nonce(Time::from_micros(6), &[7; 32])));
    }

    #[test]
    fn a_nonce_is_good_for_its_time() {
        let made = Time::from_micros(1_000_000_000);
        let nonce = nonce(made, &[1; 32]);
        for (now, good) in [(0, true), (59, true), (60, false), (3_600, false)] {
            assert_eq!(check_age(&nonce, made.after(Duration::from_secs(now)), 60).is_ok(), good, "{now}");
        }
        assert!(check_age(&nonce, Time::from_micros(1), 60).is_err());
    }
}
