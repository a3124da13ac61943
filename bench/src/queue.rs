//! A queue of the product, and whoever sends to it.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use waybill_bench::signed::Signer;

use crate::process::Server;
use crate::product;
use crate::wire::Wire;

const QUEUE: &str = "bench";
const BODY_BYTES: usize = 256;

pub struct Queue {
    pub signer: Signer,
    url: String,
}

impl Queue {
    pub async fn make(server: &Server) -> Result<Self> {
        let addr = server.sqs.context("the server does not say where SQS clients find it")?;
        let input = json!({ "principal": product::OWNER, "sqs": true });
        let made = product::make_key(server, &input).await?;
        let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
        let signer = Signer { addr, id: text("access_key_id")?, secret: text("secret_access_key")? };
        let mut queue = Self { signer, url: String::new() };
        let answer = queue.call("CreateQueue", &json!({ "QueueName": QUEUE })).await?;
        queue.url = answer["QueueUrl"].as_str().context("no QueueUrl")?.to_owned();
        Ok(queue)
    }

    /// A message of ordinary size. Clients sign each anew; this one is signed once, so that the load client's own signing does
    /// not take the cores from what is measured.
    pub fn send(&self) -> Result<Vec<u8>> {
        let input = json!({ "QueueUrl": self.url, "MessageBody": "m".repeat(BODY_BYTES) });
        self.signer.post("SendMessage", &input.to_string())
    }

    async fn call(&self, action: &str, input: &Value) -> Result<Value> {
        let mut wire = Wire::connect(self.signer.addr).await?;
        let status = wire.exchange(&self.signer.post(action, &input.to_string())?).await?;
        let response = String::from_utf8_lossy(wire.response()).into_owned();
        if status != 200 {
            bail!("{action} answered {status}: {response}");
        }
        let (_, body) = response.split_once("\r\n\r\n").context("no body")?;
        Ok(serde_json::from_str(body)?)
    }
}
