//! The scene of the queues: sent, the server dies, and everything is there once and in the order of its group.

use serde_json::{Value as Json, json};
use waybill_kernel::{Error, Result};

use super::sqs::Sqs;
use super::stage::Stage;
use super::terminal::Terminal;
use crate::output::{cell, line};

/// Longer than the scene.
const VISIBILITY_S: u32 = 120;

pub async fn play(stage: &mut Stage) -> Result<()> {
    line("\n1. A shop makes a FIFO queue, with a key for SQS, and sends the orders of two customers.")?;
    let shop = stage.sqs("agent:shop").await?;
    let attributes = json!({ "FifoQueue": "true", "VisibilityTimeout": VISIBILITY_S.to_string() });
    let made = shop.call("CreateQueue", json!({ "QueueName": "orders.fifo", "Attributes": attributes })).await?;
    let orders = Orders { sqs: &shop, url: text(&made["QueueUrl"])? };
    let first = orders.send("ann", "order 1 of ann").await?;
    orders.send("ann", "order 2 of ann").await?;
    orders.send("bob", "order 1 of bob").await?;
    let again = orders.send("ann", "order 1 of ann").await?;
    line("   Three orders. It was not sure that the first had arrived, and has sent it again under the same")?;
    line(&format!("   deduplication id: message {again} both times."))?;
    if first != again {
        return Err(Error::internal("a deduplication id was stored twice"));
    }

    line("\n2. The server is killed (kill -9), and started again.")?;
    let pid = stage.crash().await;
    line(&format!("   Process {pid} is gone. Each answer had left after its message was on the disk."))?;
    stage.restart().await?;

    line("\n3. worker-1 takes one order, and worker-2 asks for all the others.")?;
    let (one, two) = (orders.receive(1).await?, orders.receive(10).await?);
    told("worker-1", &one)?;
    told("worker-2", &two)?;
    line("   Ann's second order waits until her first is done. Bob's waits for nobody.")?;

    line("\n4. worker-1 is done, deletes it, and asks for more.")?;
    for message in &one {
        orders.delete(message).await?;
    }
    told("worker-1", &orders.receive(10).await?)?;

    line("\n5. And an operator sees what there is.")?;
    Terminal::new(stage, "").types(&["queue", "list"]).await
}

struct Orders<'a> {
    sqs: &'a Sqs,
    url: String,
}

impl Orders<'_> {
    /// Its message's id.
    async fn send(&self, customer: &str, order: &str) -> Result<String> {
        let input = json!({
            "QueueUrl": self.url, "MessageBody": order, "MessageGroupId": customer,
            "MessageDeduplicationId": order.replace(' ', "-"),
        });
        text(&self.sqs.call("SendMessage", input).await?["MessageId"])
    }

    async fn receive(&self, at_most: u32) -> Result<Vec<Json>> {
        let input = json!({ "QueueUrl": self.url, "MaxNumberOfMessages": at_most });
        let mut answer = self.sqs.call("ReceiveMessage", input).await?;
        Ok(answer["Messages"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    async fn delete(&self, message: &Json) -> Result<()> {
        let input = json!({ "QueueUrl": self.url, "ReceiptHandle": message["ReceiptHandle"] });
        self.sqs.call("DeleteMessage", input).await.map(drop)
    }
}

fn told(worker: &str, messages: &[Json]) -> Result<()> {
    let bodies: Vec<String> = messages.iter().map(|message| cell(&message["Body"])).collect();
    let bodies = if bodies.is_empty() { "nothing".to_owned() } else { bodies.join(", ") };
    line(&format!("   {worker} gets {bodies}."))
}

fn text(value: &Json) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| Error::internal("an answer of SQS lacks a field"))
}
