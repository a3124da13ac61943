//! Whether a claim is true of its request.

use std::time::Duration;

use http::request::Parts;
use subtle::ConstantTimeEq;
use waybill_kernel::Time;

use super::canonical::Canonical;
use super::claim::{Carrier, Claim};
use super::hex;
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
            keys.keep(&found, &self.credential, secret);
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
        match self.carrier {
            _ if early > SKEW_MAX => Err(Refused::RequestTimeTooSkewed),
            Carrier::Header if late > SKEW_MAX => Err(Refused::RequestTimeTooSkewed),
            Carrier::Query { expires } if late > expires => Err(Refused::RequestExpired),
            _ => Ok(stamp),
        }
    }

    /// In any of the forms of its path; [`path`] says why more than one is tried.
    pub(super) fn is_signed_by(&self, key: &SigningKey, canonical: &Canonical<'_>, stamp: &Stamp, sent: &str) -> bool {
        path::forms(sent).any(|path| {
            let (scope, request) = (self.credential.scope().as_bytes(), canonical.hash(&path));
            // The string to sign, line by line.
            let lines = [ALGORITHM.as_bytes(), b"\n", stamp.as_bytes(), b"\n", scope, b"\n", &request];
            let signature = key.sign(&lines);
            bool::from(signature[..].ct_eq(&self.signature[..]))
        })
    }
}
