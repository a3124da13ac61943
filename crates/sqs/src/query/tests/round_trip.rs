//! Whatever is written as parameters reads back as what it was, in whichever order and with whichever indexes it came.

use std::collections::BTreeMap;

use proptest::prelude::*;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::{Blob, MessageAttribute};

use super::{Form, SendEntry, SendMessageBatch, request};

type Attributes = BTreeMap<String, MessageAttribute>;

/// Ascending, from 1 on, with gaps.
fn indexes(gaps: &[u32]) -> impl Iterator<Item = u32> {
    let mut index = 0;
    gaps.iter().cycle().map(move |gap| {
        index += gap;
        index
    })
}

fn optional(form: Form, name: &str, value: Option<&str>) -> Form {
    match value {
        Some(value) => form.with(name, value),
        None => form,
    }
}

fn list(mut form: Form, name: &str, values: &[String], gaps: &[u32]) -> Form {
    for (index, value) in indexes(gaps).zip(values) {
        form = form.with(format!("{name}.{index}"), value);
    }
    form
}

fn texts(mut form: Form, name: &str, key: &str, entries: &BTreeMap<String, String>, gaps: &[u32]) -> Form {
    for (index, (name_of, value)) in indexes(gaps).zip(entries) {
        form = form.with(format!("{name}.{index}.Value"), value).with(format!("{name}.{index}.{key}"), name_of);
    }
    form
}

fn attributes(mut form: Form, name: &str, attributes: &Attributes, gaps: &[u32]) -> Form {
    for (index, (key, attribute)) in indexes(gaps).zip(attributes) {
        let at = format!("{name}.{index}");
        form = form.with(format!("{at}.Name"), key).with(format!("{at}.Value.DataType"), &attribute.data_type);
        form = optional(form, &format!("{at}.Value.StringValue"), attribute.string_value.as_deref());
        if let Some(Blob(bytes)) = &attribute.binary_value {
            form = form.with(format!("{at}.Value.BinaryValue"), base64(bytes));
        }
    }
    form
}

fn entry(form: Form, at: &str, entry: &SendEntry, gaps: &[u32]) -> Form {
    let form = form.with(format!("{at}.Id"), &entry.id).with(format!("{at}.MessageBody"), &entry.message_body);
    let delay = entry.delay_seconds.map(|delay| delay.to_string());
    let form = optional(form, &format!("{at}.DelaySeconds"), delay.as_deref());
    let form = attributes(form, &format!("{at}.MessageAttribute"), &entry.message_attributes, gaps);
    attributes(form, &format!("{at}.MessageSystemAttribute"), &entry.message_system_attributes, gaps)
}

/// As serde writes a blob.
fn base64(bytes: &[u8]) -> String {
    let json = serde_json::to_value(Blob(bytes.to_vec())).unwrap();
    json.as_str().unwrap().to_owned()
}

fn any_gaps() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1..100_u32, 1..5)
}

fn any_attribute() -> impl Strategy<Value = MessageAttribute> {
    let text = any::<String>().prop_map(|text| (Some(text), None));
    let bytes = prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| (None, Some(Blob(bytes))));
    (any::<String>(), prop_oneof![text, bytes]).prop_map(|(data_type, (string_value, binary_value))| MessageAttribute {
        data_type,
        string_value,
        binary_value,
    })
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    prop::collection::btree_map(any::<String>(), any_attribute(), 0..11)
}

fn any_texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(any::<String>(), any::<String>(), 0..60)
}

fn any_names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(any::<String>(), 0..12)
}

fn any_entry() -> impl Strategy<Value = SendEntry> {
    (any::<String>(), any::<String>(), any::<Option<i64>>(), any_attributes(), any_attributes()).prop_map(
        |(id, message_body, delay_seconds, message_attributes, message_system_attributes)| SendEntry {
            id,
            message_body,
            delay_seconds,
            message_attributes,
            message_system_attributes,
        },
    )
}

fn shuffled(form: Form) -> impl Strategy<Value = String> {
    Just(form.0).prop_shuffle().prop_map(|pairs| Form(pairs).text())
}

fn read<T: serde::de::DeserializeOwned>(action: &str, body: &str) -> T {
    request(&format!("{body}&Action={action}")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_send_comes_back(
        (expected, group, body) in (any_entry(), any::<Option<String>>(), any_gaps()).prop_flat_map(|(sent, group, gaps)| {
            let form = Form::default().with("MessageBody", &sent.message_body).with("QueueUrl", &sent.id);
            let delay = sent.delay_seconds.map(|delay| delay.to_string());
            let form = optional(form, "DelaySeconds", delay.as_deref());
            let form = optional(form, "MessageGroupId", group.as_deref());
            let form = attributes(form, "MessageAttribute", &sent.message_attributes, &gaps);
            let form = attributes(form, "MessageSystemAttribute", &sent.message_system_attributes, &gaps);
            (Just(sent), Just(group), shuffled(form))
        })
    ) {
        let sent: SendMessage = read("SendMessage", &body);
        prop_assert_eq!(sent.queue_url, expected.id);
        prop_assert_eq!(sent.message_body, expected.message_body);
        prop_assert_eq!(sent.delay_seconds, expected.delay_seconds);
        prop_assert_eq!(sent.message_group_id, group);
        prop_assert_eq!(sent.message_attributes, expected.message_attributes);
        prop_assert_eq!(sent.message_system_attributes, expected.message_system_attributes);
    }

    #[test]
    fn a_batch_comes_back(
        (expected, body) in (prop::collection::vec(any_entry(), 0..11), any_gaps()).prop_flat_map(|(entries, gaps)| {
            let numbered = indexes(&gaps).zip(&entries).collect::<Vec<_>>();
            let form = numbered.into_iter().fold(Form::default(), |form, (index, one)| {
                entry(form, &format!("SendMessageBatchRequestEntry.{index}"), one, &gaps)
            });
            (Just(entries), shuffled(form))
        })
    ) {
        let batch: SendMessageBatch = read("SendMessageBatch", &body);
        prop_assert_eq!(batch.entries, expected);
    }

    #[test]
    fn maps_and_lists_come_back(
        (attributes, tags, names, body) in (any_texts(), any_texts(), any_names(), any_gaps()).prop_flat_map(
            |(attributes, tags, names, gaps)| {
                let form = texts(Form::default(), "Attribute", "Name", &attributes, &gaps);
                let form = texts(form, "Tag", "Key", &tags, &gaps);
                let form = list(form, "AttributeName", &names, &gaps);
                let form = list(form, "MessageAttributeName", &names, &gaps);
                (Just(attributes), Just(tags), Just(names), shuffled(form))
            }
        )
    ) {
        let queue: CreateQueue = read("CreateQueue", &body);
        prop_assert_eq!((queue.attributes, queue.tags), (attributes, tags));
        let receive: ReceiveMessage = read("ReceiveMessage", &body);
        prop_assert_eq!(&receive.attribute_names, &names);
        prop_assert_eq!(&receive.message_attribute_names, &names);
    }
}
