//! Standard queues: the round of a message, batches, long polls.

use std::time::{Duration, Instant};

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, MessageAttributeValue,
    MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry,
};

use crate::{Outcome, Running, bodies, client, given, new_queue, receive, same, start, told};

pub fn start(running: &mut Running) {
    start! { running:
        a_message_makes_the_round,
        a_batch_tells_each_entry_its_own,
        a_receive_that_waits_is_woken_by_a_send,
        a_receive_that_is_dropped_takes_nothing_with_it,
        attributes_and_lists,
    }
}

fn value(kind: &str, text: Option<&str>, bytes: Option<&[u8]>) -> Outcome<MessageAttributeValue> {
    let mut value = MessageAttributeValue::builder().data_type(kind);
    value = value.set_string_value(text.map(str::to_owned)).set_binary_value(bytes.map(Blob::new));
    value.build().map_err(|error| error.to_string())
}

async fn a_message_makes_the_round() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let attributes = [
        ("text", value("String.custom", Some("grüße <&>"), None)?),
        ("number", value("Number", Some("-42.5"), None)?),
        ("bytes", value("Binary", None, Some(&[0, 1, 2, 255]))?),
    ];
    let mut send = sqs.send_message().queue_url(&url).message_body("hello");
    for (name, value) in &attributes {
        send = send.message_attributes(*name, value.clone());
    }
    let sent = send.send().await.map_err(told)?;
    same!(sent.md5_of_message_body(), Some("5d41402abc4b2a76b9719d911017c592"));
    let asked = sqs.receive_message().queue_url(&url).wait_time_seconds(20).message_attribute_names("All");
    let asked = asked.message_system_attribute_names(MessageSystemAttributeName::All);
    let received = asked.send().await.map_err(told)?;
    let [message] = received.messages() else { return Err(format!("{received:?}")) };
    same!(message.message_id(), sent.message_id());
    same!(message.md5_of_message_attributes(), sent.md5_of_message_attributes());
    for (name, value) in &attributes {
        same!(message.message_attributes().and_then(|found| found.get(*name)), Some(value));
    }
    let system = message.attributes().ok_or("there are no system attributes")?;
    let count = system.get(&MessageSystemAttributeName::ApproximateReceiveCount).map(String::as_str);
    same!(count, Some("1"));
    let handle = given(message.receipt_handle(), "the handle")?;
    let change = sqs.change_message_visibility().queue_url(&url).receipt_handle(&handle).visibility_timeout(0);
    change.send().await.map_err(told)?;
    same!(bodies(&receive(&sqs, &url).await?), ["hello"]);
    let empty = sqs.receive_message().queue_url(&url).send().await.map_err(told)?;
    same!(empty.messages, None);
    Ok(())
}

async fn a_batch_tells_each_entry_its_own() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let mut send = sqs.send_message_batch().queue_url(&url);
    for number in 0..10 {
        let entry = SendMessageBatchRequestEntry::builder().id(format!("e{number}")).message_body(format!("m{number}"));
        let entry = entry.delay_seconds(if number == 4 { 901 } else { 0 });
        send = send.entries(entry.build().map_err(|error| error.to_string())?);
    }
    let sent = send.send().await.map_err(told)?;
    same!(sent.successful().len(), 9);
    let [failed] = sent.failed() else { return Err(format!("{:?}", sent.failed())) };
    same!((failed.id(), failed.code(), failed.sender_fault()), ("e4", "InvalidParameterValue", true));
    let mut got = Vec::new();
    while got.len() < 9 {
        got.extend(receive(&sqs, &url).await?);
    }
    let (mut change, mut delete) =
        (sqs.change_message_visibility_batch().queue_url(&url), sqs.delete_message_batch().queue_url(&url));
    for (number, message) in got.iter().enumerate() {
        let (id, handle) = (format!("d{number}"), given(message.receipt_handle(), "the handle")?);
        let longer = ChangeMessageVisibilityBatchRequestEntry::builder().id(&id).receipt_handle(&handle);
        change = change.entries(longer.visibility_timeout(600).build().map_err(|error| error.to_string())?);
        let gone = DeleteMessageBatchRequestEntry::builder().id(&id).receipt_handle(&handle);
        delete = delete.entries(gone.build().map_err(|error| error.to_string())?);
    }
    same!(change.send().await.map_err(told)?.successful().len(), 9);
    same!(delete.send().await.map_err(told)?.successful().len(), 9);
    Ok(())
}

async fn a_receive_that_waits_is_woken_by_a_send() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let began = Instant::now();
    let (waits, of) = (sqs.clone(), url.clone());
    let waiting = tokio::spawn(async move { receive(&waits, &of).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    sqs.send_message().queue_url(&url).message_body("late").send().await.map_err(told)?;
    let messages = waiting.await.map_err(|panic| panic.to_string())??;
    same!(bodies(&messages), ["late"]);
    let waited = began.elapsed();
    if waited < Duration::from_millis(400) || waited > Duration::from_secs(15) {
        return Err(format!("woken after {waited:?}"));
    }
    Ok(())
}

async fn a_receive_that_is_dropped_takes_nothing_with_it() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let waiting = tokio::time::timeout(Duration::from_millis(300), receive(&sqs, &url)).await;
    same!(waiting.is_err(), true);
    // The server sees the end of a connection when it looks, which is soon.
    tokio::time::sleep(Duration::from_millis(300)).await;
    sqs.send_message().queue_url(&url).message_body("m").send().await.map_err(told)?;
    same!(bodies(&receive(&sqs, &url).await?), ["m"]);
    Ok(())
}

async fn attributes_and_lists() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[(QueueAttributeName::VisibilityTimeout, "7")]).await?;
    let name = url.rsplit('/').next().unwrap_or_default();
    let asked = sqs.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All);
    let found = asked.send().await.map_err(told)?.attributes.unwrap_or_default();
    same!(found.get(&QueueAttributeName::VisibilityTimeout).map(String::as_str), Some("7"));
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{name}");
    same!(found.get(&QueueAttributeName::QueueArn), Some(&arn));
    let listed = sqs.list_queues().queue_name_prefix(name).send().await.map_err(told)?;
    same!(listed.queue_urls(), [url.clone()]);
    sqs.tag_queue().queue_url(&url).tags("stage", "b c").send().await.map_err(told)?;
    let tags = sqs.list_queue_tags().queue_url(&url).send().await.map_err(told)?.tags.unwrap_or_default();
    same!(tags.get("stage").map(String::as_str), Some("b c"));
    Ok(())
}
