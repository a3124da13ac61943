//! A fuzz target of the readers of parameters and requests. What was read is written as XML, which must be well-formed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use waybill_fuzz::{Target, feed};
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;

use super::tests::SendMessageBatch;
use super::{Params, read, write};

fn well_formed(xml: &[u8]) {
    let text = std::str::from_utf8(xml).unwrap();
    assert!(roxmltree::Document::parse(text).is_ok(), "{text}");
}

/// Whether the type can be read from the parameters; what is answered then must be XML either way.
fn try_read<T: DeserializeOwned>(params: &Params<'_>, answer: impl FnOnce(T) -> Vec<u8>) -> bool {
    match read("SendMessageBatch", params) {
        Ok(request) => {
            well_formed(&answer(request));
            true
        }
        Err(error) => {
            assert!(error.code().entry().sqs.http == 400, "{error}");
            well_formed(&super::error(&error, "r"));
            false
        }
    }
}

/// As an answer holds it under the name of a member.
fn written(member: &'static str, value: &impl Serialize) -> Vec<u8> {
    write("ReceiveMessage", &BTreeMap::from([(member, value)]), "r").unwrap()
}

#[test]
fn fuzz_query() {
    const SEEDS: &[&str] = &[
        "Action=SendMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2Fq&MessageBody=a+b%26&DelaySeconds=5\
         &MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=Binary&MessageAttribute.1.Value.BinaryValue=AAEC%2Fw%3D%3D",
        "SendMessageBatchRequestEntry.10.Id=a&SendMessageBatchRequestEntry.1.MessageAttribute.2.Name=b\
         &SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.StringValue=c&SendMessageBatchRequestEntry.Id=d",
        "QueueName=q&Attribute.1.Name=a&Attribute.1.Value=b&Tag.7.Key=c&Tag.7.Value=d&Attribute.Name=e&Attribute.Value=f",
        "AttributeName.1=All&AttributeName=x&MessageAttributeName.2=.*&MaxNumberOfMessages=10&WaitTimeSeconds=-1",
    ];
    let read = |input: &[u8]| {
        // A line feed cannot stand in an address: what is before the first one stands for it.
        let (query, body) = match input.iter().position(|byte| *byte == b'\n') {
            Some(at) => (std::str::from_utf8(&input[..at]).ok(), &input[at + 1..]),
            None => (None, input),
        };
        let Ok(params) = Params::read(query, body) else { return false };
        let params = params.or_queue(Some("/q"));
        let outcomes = [
            try_read(&params, |send: SendMessage| written("MessageAttributes", &send.message_attributes)),
            try_read(&params, |batch: SendMessageBatch| {
                let bodies: Vec<_> = batch.entries.iter().map(|entry| (&entry.id, &entry.message_body)).collect();
                written("Messages", &bodies)
            }),
            try_read(&params, |queue: CreateQueue| written("Tags", &queue.attributes)),
            try_read(&params, |receive: ReceiveMessage| written("QueueUrls", &receive.attribute_names)),
        ];
        outcomes.contains(&true)
    };
    feed(Target { name: "sqs_query", seeds: SEEDS, read });
}
