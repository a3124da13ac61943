//! FIFO queues: order, numbers, duplicates, receives that are made again.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};

use crate::{Outcome, Running, bodies, client, given, new_queue, receive, same, start, told};

pub fn start(running: &mut Running) {
    start! { running:
        a_group_keeps_its_order_and_its_numbers_rise,
        duplicates_are_known_and_a_receive_can_be_made_again,
    }
}

async fn new_fifo_queue(sqs: &Client) -> Outcome<String> {
    let attributes = [QueueAttributeName::FifoQueue, QueueAttributeName::ContentBasedDeduplication];
    new_queue(sqs, ".fifo", &attributes.map(|name| (name, "true"))).await
}

async fn a_group_keeps_its_order_and_its_numbers_rise() -> Outcome {
    let sqs = client();
    let url = new_fifo_queue(&sqs).await?;
    let mut numbers = Vec::new();
    for number in 0..4 {
        let send = sqs.send_message().queue_url(&url).message_body(format!("m{number}")).message_group_id("g");
        let sent = send.send().await.map_err(told)?;
        let sequence = given(sent.sequence_number(), "the number")?;
        numbers.push(sequence.parse::<u128>().map_err(|error| format!("{sequence}: {error}"))?);
    }
    same!(numbers.is_sorted_by(|one, other| one < other), true);
    let asked = sqs.receive_message().queue_url(&url).max_number_of_messages(3).wait_time_seconds(20);
    let asked = asked.message_system_attribute_names(MessageSystemAttributeName::All);
    let messages = asked.send().await.map_err(told)?.messages.unwrap_or_default();
    same!(bodies(&messages), ["m0", "m1", "m2"]);
    for (message, number) in messages.iter().zip(&numbers) {
        let shown = message.attributes().ok_or("there are no system attributes")?;
        let found = shown.get(&MessageSystemAttributeName::SequenceNumber).and_then(|text| text.parse().ok());
        same!(found, Some(*number));
        same!(shown.get(&MessageSystemAttributeName::MessageGroupId).map(String::as_str), Some("g"));
    }
    for message in &messages {
        let handle = given(message.receipt_handle(), "the handle")?;
        sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.map_err(told)?;
    }
    same!(bodies(&receive(&sqs, &url).await?), ["m3"]);
    Ok(())
}

async fn duplicates_are_known_and_a_receive_can_be_made_again() -> Outcome {
    let sqs = client();
    let url = new_fifo_queue(&sqs).await?;
    let send = |body: &str| {
        let send = sqs.send_message().queue_url(&url).message_body(body).message_group_id("g");
        send.message_deduplication_id("id")
    };
    let (first, second) = (send("one").send().await.map_err(told)?, send("two").send().await.map_err(told)?);
    same!((second.message_id(), second.sequence_number()), (first.message_id(), first.sequence_number()));
    let attempt = || sqs.receive_message().queue_url(&url).receive_request_attempt_id("once");
    let (once, again) = (attempt().send().await.map_err(told)?, attempt().send().await.map_err(told)?);
    same!(bodies(once.messages()), ["one"]);
    same!(again.messages(), once.messages());
    let alone = sqs.send_message().queue_url(&url).message_body("m").send().await;
    same!(alone.err().and_then(|error| error.code().map(str::to_owned)).as_deref(), Some("MissingParameter"));
    Ok(())
}
