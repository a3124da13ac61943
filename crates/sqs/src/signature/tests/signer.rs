//! The other side: signs a request and hands it over as a server would see it.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningParams, SigningSettings, sign};
use aws_sigv4::sign::v4;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Uri};
use waybill_kernel::Time;

use crate::signature::{Claim, Refused, Secret, SigningKeys};

pub(super) const KEY: &str = "AKIDEXAMPLE";
pub(super) const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
pub(super) const REGION: &str = "us-east-1";
pub(super) const HOST: &str = "localhost:9324";
/// 2015-08-30T12:36:00Z.
pub(super) const NOW: Time = Time::from_micros(1_440_938_160_000_000);

/// How a request is signed. `Default` is what an SDK does when it sends one.
#[derive(Clone)]
pub(super) struct Signer {
    pub(super) secret: &'static str,
    pub(super) token: Option<String>,
    pub(super) region: &'static str,
    pub(super) service: &'static str,
    pub(super) time: Time,
    pub(super) settings: SigningSettings,
}

impl Default for Signer {
    fn default() -> Self {
        let settings = SigningSettings::default();
        Self { secret: SECRET, token: None, region: REGION, service: "sqs", time: NOW, settings }
    }
}

/// A request as it arrives.
#[derive(Clone, Debug)]
pub(super) struct Signed {
    pub(super) parts: Parts,
    pub(super) body: Vec<u8>,
}

impl Signer {
    pub(super) fn presigning(seconds: u64) -> Self {
        let mut signer = Self::default();
        signer.settings.signature_location = SignatureLocation::QueryParams;
        signer.settings.expires_in = Some(Duration::from_secs(seconds));
        signer
    }

    /// `target` is path and query, already encoded.
    pub(super) fn sign(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Signed {
        let address = format!("http://{HOST}{target}");
        let mut request = Request::builder().method(method).uri(&address).body(body.to_vec()).unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static(HOST));
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        let credentials = Credentials::new(KEY, self.secret, self.token.clone(), None, "test");
        let identity = credentials.into();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region(self.region)
            .name(self.service)
            .time(SystemTime::UNIX_EPOCH + self.time.since(Time::EPOCH))
            .settings(self.settings.clone())
            .build()
            .unwrap()
            .into();
        let present: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let signable = SignableRequest::new(method, address, present.into_iter(), SignableBody::Bytes(body)).unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        instructions.apply_to_request_http1x(&mut request);
        let (mut parts, body) = request.into_parts();
        parts.uri = Uri::from(parts.uri.path_and_query().unwrap().clone());
        Signed { parts, body }
    }
}

impl Signed {
    /// All steps as the one who answers requests takes them.
    pub(super) fn check_at(&self, now: Time) -> Result<(), Refused> {
        let claim = Claim::of(&self.parts)?.ok_or(Refused::MissingAuthenticationToken)?;
        claim.in_region(REGION)?;
        if claim.access_key_id() != KEY {
            return Err(Refused::InvalidClientTokenId);
        }
        claim.verify(&self.parts, &self.body, &Secret::new(SECRET), now, REGION, &SigningKeys::default())
    }

    pub(super) fn check(&self) -> Result<(), Refused> {
        self.check_at(NOW)
    }

    /// The refusal's name; empty when there is none.
    pub(super) fn outcome(&self) -> &'static str {
        self.check().map_or_else(Refused::shape, |()| "")
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.parts.headers[name].to_str().unwrap()
    }

    pub(super) fn with_header(&self, name: &'static str, value: &str) -> Self {
        let mut changed = self.clone();
        changed.parts.headers.insert(name, value.parse().unwrap());
        changed
    }

    pub(super) fn with_target(&self, target: &str) -> Self {
        let mut changed = self.clone();
        changed.parts.uri = target.parse().unwrap();
        changed
    }
}
