//! A client of the listener for SQS, as small as a scene needs it: the JSON protocol, signed as SDKs sign it.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningParams, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::Value as Json;
use waybill_kernel::{Clock, Code, Error, Result, Time};

const REGION: &str = "us-east-1";
const MEDIA: &str = "application/x-amz-json-1.0";
/// For a call that does not wait.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

pub struct Sqs {
    http: reqwest::Client,
    url: String,
    credentials: Credentials,
}

impl Sqs {
    pub fn new(url: String, access_key_id: &str, secret_access_key: &str) -> Result<Self> {
        let http = waybill_guard::client().no_proxy().timeout(ANSWER_WAIT).build().map_err(Error::internal)?;
        Ok(Self { http, url, credentials: Credentials::new(access_key_id, secret_access_key, None, None, "demo") })
    }

    pub async fn call(&self, action: &str, input: Json) -> Result<Json> {
        let body = input.to_string();
        let request = self.signed(action, &body)?.body(body);
        let response = request.send().await.map_err(Error::internal)?;
        let status = response.status();
        let answer = response.bytes().await.map_err(Error::internal)?;
        if !status.is_success() {
            let told = String::from_utf8_lossy(&answer);
            return Err(Error::new(Code::Internal, format!("{action} failed with HTTP {status}.")).because(told));
        }
        // Some actions answer with nothing at all.
        if answer.is_empty() { Ok(Json::Null) } else { serde_json::from_slice(&answer).map_err(Error::internal) }
    }

    fn signed(&self, action: &str, body: &str) -> Result<reqwest::RequestBuilder> {
        let address = format!("{}/", self.url);
        let host = self.url.trim_start_matches("http://");
        let target = format!("AmazonSQS.{action}");
        let own = [("host", host), ("x-amz-target", target.as_str()), ("content-type", MEDIA)];
        let identity = self.credentials.clone().into();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region(REGION)
            .name("sqs")
            .time(SystemTime::UNIX_EPOCH + Clock::system().now().since(Time::EPOCH))
            .settings(SigningSettings::default())
            .build()
            .map_err(Error::internal)?
            .into();
        let signable = SignableRequest::new("POST", &address, own.into_iter(), SignableBody::Bytes(body.as_bytes()));
        let signed = sign(signable.map_err(Error::internal)?, &params).map_err(Error::internal)?;
        let (instructions, _) = signed.into_parts();
        let request =
            own.into_iter().fold(self.http.post(&address), |request, (name, value)| request.header(name, value));
        Ok(instructions.headers().fold(request, |request, (name, value)| request.header(name, value)))
    }
}
