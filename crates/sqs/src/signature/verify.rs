//! Whether a claim is true of its request.

use std::time::Duration;

use http::request::Parts;
use subtle::ConstantTimeEq;
use waybill_kernel::Time;

use super::canonical::Canonical;
use super::claim::{Claim, Place};
use super::hex::{self, Hex};
use super::keys::{Secret, SigningKey, SigningKeys};
use super::stamp::Stamp;
use super::{ALGORITHM, Refused, path};

/// How far the signer's clock may be from ours, either way.
pub const SKEW_MAX: Duration = Duration::from_secs(15 * 60);

impl Claim {
    /// Whether the holder of `secret` has signed this request for this region, in time.
    ///
    /// `body` is the whole body as it came. `parts` must be those the claim was read from, with path, query and signed
    /// headers untouched: a node that forwards a request keeps its `Host`.
    pub fn verify(
        &self,
        parts: &Parts,
        body: &[u8],
        secret: &Secret,
        now: Time,
        region: &str,
        keys: &SigningKeys,
    ) -> Result<(), Refused> {
        self.in_region(region)?;
        let stamp = self.timely(now)?;
        let canonical = Canonical::of(self, parts, &hex::of(body))?;
        let found = keys.find(&self.credential, secret, stamp.time());
        if self.is_signed_by(&found.key, &canonical, stamp, parts.uri.path()) {
            keys.keep(&found);
            return Ok(());
        }
        Err(Refused::SignatureDoesNotMatch("The signature is not that of this request by this access key."))
    }

    fn timely(&self, now: Time) -> Result<&Stamp, Refused> {
        let Some(stamp) = &self.stamp else {
            return Err(Refused::IncompleteSignature("The request must carry one X-Amz-Date like `20150830T123600Z`."));
        };
        if stamp.day() != self.credential.day().as_bytes() {
            return Err(Refused::SignatureDoesNotMatch("The credential's scope names another day than X-Amz-Date."));
        }
        // One of the two is zero.
        let (early, late) = (stamp.time().since(now), now.since(stamp.time()));
        match self.place {
            _ if early > SKEW_MAX => Err(Refused::RequestTimeTooSkewed),
            Place::Header if late > SKEW_MAX => Err(Refused::RequestTimeTooSkewed),
            Place::Query { expires } if late > expires => Err(Refused::RequestExpired),
            _ => Ok(stamp),
        }
    }

    /// In any of the forms of its path; [`path`] says why more than one is tried.
    pub(super) fn is_signed_by(&self, key: &SigningKey, canonical: &Canonical<'_>, stamp: &Stamp, sent: &str) -> bool {
        path::forms(sent).any(|path| {
            let signature = key.sign(&self.string_to_sign(stamp, &canonical.hash(&path)));
            bool::from(signature.as_bytes().ct_eq(&self.signature))
        })
    }

    fn string_to_sign(&self, stamp: &Stamp, request: &Hex) -> Vec<u8> {
        let scope = self.credential.scope();
        let lines = [ALGORITHM.as_bytes(), stamp.as_bytes(), scope.as_bytes(), request];
        let mut text = Vec::with_capacity(lines.iter().map(|line| line.len() + 1).sum());
        for (nth, line) in lines.into_iter().enumerate() {
            if nth > 0 {
                text.push(b'\n');
            }
            text.extend_from_slice(line);
        }
        text
    }
}
