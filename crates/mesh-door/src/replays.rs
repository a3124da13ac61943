//! Signed requests that were carried out, so that whoever has heard one cannot have it carried out again on this server.
//!
//! A signature is good for as long as its time is near ours, so nothing older need be known. On another server of the same
//! database a repeat within that time is carried out: whatever may not happen twice has an id of its own.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use waybill_kernel::{Code, Error, Result, Time};
use waybill_mesh_protocol::PublicKey;
use waybill_mesh_protocol::SKEW_SECONDS_MAX;
use waybill_mesh_protocol::request_signature::{RequestClaim, RequestNonce};

/// Of one span. When there are more, the span before is forgotten early.
const KNOWN_MAX: usize = 200_000;
/// A signature may be good from a minute before its time until a minute after.
const SPAN_US: i64 = 2 * SKEW_SECONDS_MAX * 1_000_000;

#[derive(Default)]
pub(crate) struct Replays(Mutex<Spans>);

#[derive(Default)]
struct Spans {
    began: Option<Time>,
    current: HashSet<(PublicKey, RequestNonce)>,
    before: HashSet<(PublicKey, RequestNonce)>,
}

impl Replays {
    /// Once for each request whose signature was found to be good.
    ///
    /// # Errors
    /// `signature_does_not_match` for a repeat.
    pub(crate) fn note(&self, claim: &RequestClaim, now: Time) -> Result<()> {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = spans.began.is_none_or(|began| now.micros() - began.micros() >= SPAN_US);
        if is_over || spans.current.len() >= KNOWN_MAX {
            spans.before = std::mem::take(&mut spans.current);
            spans.began = Some(now);
        }
        let known = (claim.key, claim.nonce);
        if spans.before.contains(&known) || !spans.current.insert(known) {
            return Err(Error::new(Code::SignatureDoesNotMatch, "This signed request was carried out before.")
                .with_cure("Sign each request anew, with a nonce of its own."));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;
    use waybill_mesh_protocol::{MeshId, Signature};

    use super::*;

    fn claim(key: u8, nonce: u8) -> RequestClaim {
        RequestClaim {
            mesh: MeshId(Uuid::nil()),
            key: PublicKey::from_bytes([key; 32]),
            time: 0,
            nonce: RequestNonce::from_bytes([nonce; 16]),
            signature: Signature::from_bytes([0; 64]),
        }
    }

    #[test]
    fn a_repeat_is_known_for_as_long_as_its_signature_could_be_good() {
        let replays = Replays::default();
        let at = |seconds: i64| Time::from_micros(seconds * 1_000_000);
        replays.note(&claim(1, 1), at(0)).unwrap();
        replays.note(&claim(1, 2), at(119)).unwrap();
        replays.note(&claim(2, 1), at(119)).unwrap();
        for (nonce, seconds) in [(1, 1), (1, 120), (2, 130), (2, 239)] {
            assert!(replays.note(&claim(1, nonce), at(seconds)).is_err(), "{nonce} at {seconds}");
        }
        replays.note(&claim(1, 9), at(240)).unwrap();
        replays.note(&claim(1, 2), at(241)).unwrap();
    }
}
