//! Signed requests to the product's listener for SQS clients.

use std::net::SocketAddr;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningParams, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::{Value, json};

use crate::process::Server;
use crate::product;
use crate::wire::Wire;

const QUEUE: &str = "bench";
const BODY_BYTES: usize = 256;

/// A queue, and whoever sends to it.
pub struct Queue {
    pub addr: SocketAddr,
    id: String,
    secret: String,
    url: String,
}

impl Queue {
    pub async fn make(server: &Server) -> Result<Self> {
        let addr = server.sqs.context("the server does not say where SQS clients find it")?;
        let input = json!({ "principal": product::OWNER, "sqs": true });
        let made = product::make_key(server, &input).await?;
        let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
        let mut queue = Self { addr, id: text("access_key_id")?, secret: text("secret_access_key")?, url: String::new() };
        let answer = queue.call("CreateQueue", &json!({ "QueueName": QUEUE })).await?;
        queue.url = answer["QueueUrl"].as_str().context("no QueueUrl")?.to_owned();
        Ok(queue)
    }

    /// A message of ordinary size. Clients sign each anew; this one is signed once, so that the load client's own signing does
    /// not take the cores from what is measured.
    pub fn send(&self) -> Result<Vec<u8>> {
        let input = json!({ "QueueUrl": self.url, "MessageBody": "m".repeat(BODY_BYTES) });
        self.signed("SendMessage", &input.to_string())
    }

    async fn call(&self, action: &str, input: &Value) -> Result<Value> {
        let mut wire = Wire::connect(self.addr).await?;
        let status = wire.exchange(&self.signed(action, &input.to_string())?).await?;
        let response = String::from_utf8_lossy(wire.response()).into_owned();
        if status != 200 {
            bail!("{action} answered {status}: {response}");
        }
        let (_, body) = response.split_once("\r\n\r\n").context("no body")?;
        Ok(serde_json::from_str(body)?)
    }

    fn signed(&self, action: &str, body: &str) -> Result<Vec<u8>> {
        let (host, target) = (self.addr.to_string(), format!("AmazonSQS.{action}"));
        let own = [("host", host.as_str()), ("x-amz-target", &target), ("content-type", "application/x-amz-json-1.0")];
        let identity = Credentials::new(&self.id, &self.secret, None, None, "bench").into();
        #[expect(clippy::disallowed_methods, reason = "a client of its own, by the time of its machine")]
        let now = SystemTime::now();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region("us-east-1")
            .name("sqs")
            .time(now)
            .settings(SigningSettings::default())
            .build()?
            .into();
        let address = format!("http://{host}/");
        let signable = SignableRequest::new("POST", address, own.into_iter(), SignableBody::Bytes(body.as_bytes()))?;
        let (instructions, _) = sign(signable, &params)?.into_parts();
        let headers = own.into_iter().chain(instructions.headers());
        let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        Ok(format!("POST / HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())
    }
}
