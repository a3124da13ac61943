//! Requests to the product's listener for SQS clients, signed as SDKs sign them.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningInstructions, SigningParams, SigningSettings, sign,
};
use aws_sigv4::sign::v4;

const REGION: &str = "us-east-1";
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
        let own = [("host", host.as_str()), ("x-amz-target", &target), ("content-type", "application/x-amz-json-1.0")];
        let instructions = self.sign("POST", "/", &own, body, SigningSettings::default())?;
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
        let instructions = self.sign("GET", &format!("/?{query}"), &[("host", host.as_str())], "", settings)?;
        let mut request = ::http::Request::builder().uri(format!("http://{host}/?{query}")).body(())?;
        instructions.apply_to_request_http1x(&mut request);
        Ok(request.uri().path_and_query().map_or_else(String::new, ToString::to_string))
    }

    fn sign(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
        settings: SigningSettings,
    ) -> Result<SigningInstructions> {
        let identity = Credentials::new(&self.id, &self.secret, None, None, "bench").into();
        #[expect(clippy::disallowed_methods, reason = "a client of its own, by the time of its machine")]
        let now = SystemTime::now();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region(REGION)
            .name("sqs")
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
