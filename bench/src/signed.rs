//! Requests to the product's listener for SQS clients, signed as SDKs sign them.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningInstructions, SigningParams, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

const MEDIA: &str = "application/x-amz-json-1.0";
const REGION: &str = "us-east-1";
const SERVICE: &str = "sqs";
/// The headers that are signed, sorted.
const NAMES: &str = "content-type;host;x-amz-date;x-amz-target";
/// Of a presigned address: longer than any run.
const EXPIRES: Duration = Duration::from_secs(3600);

/// Whoever has an access key.
#[derive(Clone)]
pub struct Signer {
    pub addr: SocketAddr,
    pub id: String,
    pub secret: String,
}

impl Signer {
    /// The bytes of a whole request in the JSON protocol.
    pub fn post(&self, action: &str, body: &str) -> Result<Vec<u8>> {
        let (host, target) = (self.addr.to_string(), format!("AmazonSQS.{action}"));
        let own = [("host", host.as_str()), ("x-amz-target", &target), ("content-type", MEDIA)];
        let instructions = self.sign("POST", "/", &own, body, SigningSettings::default(), now())?;
        let headers = own.into_iter().chain(instructions.headers());
        let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        Ok(format!("POST / HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())
    }

    /// Path and query of a GET in the Query protocol. `query` is encoded already.
    pub fn presigned(&self, query: &str) -> Result<String> {
        let host = self.addr.to_string();
        let mut settings = SigningSettings::default();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(EXPIRES);
        let instructions = self.sign("GET", &format!("/?{query}"), &[("host", host.as_str())], "", settings, now())?;
        let mut request = ::http::Request::builder().uri(format!("http://{host}/?{query}")).body(())?;
        instructions.apply_to_request_http1x(&mut request);
        Ok(request.uri().path_and_query().map_or_else(String::new, ToString::to_string))
    }

    /// For many requests of one action.
    pub fn pen(&self, action: &str) -> Result<Pen> {
        let (host, target, now) = (self.addr.to_string(), format!("AmazonSQS.{action}"), now());
        let own = [("host", host.as_str()), ("x-amz-target", &target), ("content-type", MEDIA)];
        let instructions = self.sign("POST", "/", &own, "", SigningSettings::default(), now)?;
        let find = |wanted: &str| {
            let mut headers = instructions.headers();
            let found = headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.to_owned());
            found.with_context(|| format!("a signed request without {wanted}"))
        };
        let (date, authorization) = (find("x-amz-date")?, find("authorization")?);
        let (claim, _) = authorization.rsplit_once("Signature=").context("an authorization without a signature")?;
        let day = date.get(..8).context("a date without a day")?;
        let key = v4::generate_signing_key(&self.secret, now, REGION, SERVICE);
        Ok(Pen {
            key: Hmac::new_from_slice(key.as_ref()).context("a signing key")?,
            canonical: format!(
                "POST\n/\n\ncontent-type:{MEDIA}\nhost:{host}\nx-amz-date:{date}\nx-amz-target:{target}\n\n{NAMES}\n"
            ),
            to_sign: format!("AWS4-HMAC-SHA256\n{date}\n{day}/{REGION}/{SERVICE}/aws4_request\n"),
            head: format!(
                "POST / HTTP/1.1\r\nhost: {host}\r\nx-amz-target: {target}\r\ncontent-type: {MEDIA}\r\n\
                 x-amz-date: {date}\r\nauthorization: {claim}Signature="
            ),
        })
    }

    fn sign(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
        settings: SigningSettings,
        now: SystemTime,
    ) -> Result<SigningInstructions> {
        let identity = Credentials::new(&self.id, &self.secret, None, None, "bench").into();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region(REGION)
            .name(SERVICE)
            .time(now)
            .settings(settings)
            .build()?
            .into();
        let address = format!("http://{}{target}", self.addr);
        let headers = headers.iter().copied();
        let signable = SignableRequest::new(method, address, headers, SignableBody::Bytes(body.as_bytes()))?;
        Ok(sign(signable, &params)?.into_parts().0)
    }
}

#[expect(clippy::disallowed_methods, reason = "a client of its own, by the time of its machine")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A signature in hexadecimal digits.
pub type Signature = [u8; 64];

/// Signs requests of one action by a key that was derived once. Whoever must sign while it measures takes little from what it
/// measures: three hashes each. What it signs is good for a quarter of an hour.
#[derive(Clone)]
pub struct Pen {
    key: Hmac<Sha256>,
    /// The canonical request up to the hash of the body.
    canonical: String,
    /// The string to sign up to the hash of that.
    to_sign: String,
    /// Of the request, up to the signature.
    head: String,
}

impl Pen {
    pub fn signature(&self, body: &[u8]) -> Signature {
        let mut canonical = Sha256::new();
        canonical.update(&self.canonical);
        canonical.update(digits(&Sha256::digest(body).into()));
        let mut key = self.key.clone();
        key.update(self.to_sign.as_bytes());
        key.update(&digits(&canonical.finalize().into()));
        digits(&key.finalize().into_bytes().into())
    }

    /// Replaces what is in `request`.
    pub fn write(&self, body: &[u8], request: &mut Vec<u8>) {
        self.write_signed(body, &self.signature(body), request);
    }

    pub fn write_signed(&self, body: &[u8], signature: &Signature, request: &mut Vec<u8>) {
        request.clear();
        request.extend_from_slice(self.head.as_bytes());
        request.extend_from_slice(signature);
        request.extend_from_slice(format!("\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(body);
    }
}

fn digits(hash: &[u8; 32]) -> Signature {
    const ALPHABET: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(hash) {
        pair.copy_from_slice(&[ALPHABET[usize::from(byte >> 4)], ALPHABET[usize::from(byte & 15)]]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pen_signs_as_the_library_does() {
        let addr = "127.0.0.1:1234".parse().unwrap();
        let signer = Signer { addr, id: "AKID".to_owned(), secret: "secret".to_owned() };
        let body = r#"{"QueueUrl":"q"}"#;
        // The second may have turned between the two.
        let equal = (0..3).any(|_| {
            let (pen, mut own) = (signer.pen("SendMessage").unwrap(), Vec::new());
            pen.write(body.as_bytes(), &mut own);
            let own = String::from_utf8(own).unwrap().to_lowercase();
            let theirs = String::from_utf8(signer.post("SendMessage", body).unwrap()).unwrap().to_lowercase();
            let (mut own, mut theirs): (Vec<_>, Vec<_>) = (own.lines().collect(), theirs.lines().collect());
            own.sort_unstable();
            theirs.sort_unstable();
            own == theirs
        });
        assert!(equal);
    }
}
