//! Bodies as botocore wrote them before it went over to JSON, as other SDKs did, and as people write them by hand.

use std::collections::BTreeMap;

use serde::Deserialize;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_queues::ops::get_queue_url::GetQueueUrl;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_queues::{Blob, MessageAttribute};

use super::super::{Params, read};
use super::{SendMessageBatch, refusal, request};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn create_queue() {
    let queue: CreateQueue = request(
        "Action=CreateQueue&Version=2012-11-05&QueueName=jobs&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5\
         &Attribute.2.Name=RedrivePolicy&Attribute.2.Value=%7B%22maxReceiveCount%22%3A+5%7D\
         &Tag.1.Key=team&Tag.1.Value=a%26b&Tag.2.Key=empty&Tag.2.Value=",
    )
    .unwrap();
    assert_eq!(queue.queue_name, "jobs");
    assert_eq!(queue.attributes, map(&[("DelaySeconds", "5"), ("RedrivePolicy", "{\"maxReceiveCount\": 5}")]));
    assert_eq!(queue.tags, map(&[("team", "a&b"), ("empty", "")]));
}

#[test]
fn the_first_of_two_attributes_with_one_name_wins() {
    let queue: CreateQueue = request(
        "Action=CreateQueue&QueueName=a&QueueName=b&Attribute.3.Name=DelaySeconds&Attribute.3.Value=3\
         &Attribute.2.Name=DelaySeconds&Attribute.2.Value=2&Attribute.2.Value=1",
    )
    .unwrap();
    assert_eq!((queue.queue_name.as_str(), queue.attributes), ("a", map(&[("DelaySeconds", "2")])));
}

#[test]
fn one_attribute_may_come_without_its_index() {
    let queue: CreateQueue =
        request("Action=CreateQueue&Attribute.Name=DelaySeconds&Attribute.Value=3&Tag.Key=a&Tag.Value=b").unwrap();
    assert_eq!((queue.attributes, queue.tags), (map(&[("DelaySeconds", "3")]), map(&[("a", "b")])));
}

#[test]
fn get_queue_url() {
    let found: GetQueueUrl =
        request("Action=GetQueueUrl&Version=2012-11-05&QueueName=jobs&QueueOwnerAWSAccountId=000000000000").unwrap();
    assert_eq!(found.queue_name, "jobs");
    assert_eq!(found.queue_owner_aws_account_id.as_deref(), Some("000000000000"));
    let found: GetQueueUrl = request("Action=GetQueueUrl").unwrap();
    assert_eq!((found.queue_name.as_str(), found.queue_owner_aws_account_id), ("", None));
}

#[test]
fn send_message() {
    let sent: SendMessage = request(
        "Action=SendMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Flocalhost%3A9324%2F000000000000%2Fjobs\
         &MessageBody=gr%C3%BC%C3%9Fe+%26+more%0A&DelaySeconds=0\
         &MessageAttribute.1.Name=a&MessageAttribute.1.Value.StringValue=42&MessageAttribute.1.Value.DataType=Number\
         &MessageAttribute.2.Name=b&MessageAttribute.2.Value.BinaryValue=AAEC%2Fw%3D%3D&MessageAttribute.2.Value.DataType=Binary\
         &MessageAttribute.2.Value.StringListValue=&MessageAttribute.2.Value.BinaryListValue.1=eA%3D%3D\
         &MessageSystemAttribute.1.Name=AWSTraceHeader&MessageSystemAttribute.1.Value.StringValue=Root%3D1\
         &MessageSystemAttribute.1.Value.DataType=String&MessageGroupId=g",
    )
    .unwrap();
    assert_eq!(sent.queue_url, "http://localhost:9324/000000000000/jobs");
    assert_eq!((sent.message_body.as_str(), sent.delay_seconds), ("grüße & more\n", Some(0)));
    let attribute = |data_type: &str, text: Option<&str>, bytes: Option<&[u8]>| MessageAttribute {
        data_type: data_type.to_owned(),
        string_value: text.map(str::to_owned),
        binary_value: bytes.map(|bytes| Blob(bytes.to_vec())),
    };
    let expected = [
        ("a".to_owned(), attribute("Number", Some("42"), None)),
        ("b".to_owned(), attribute("Binary", None, Some(&[0, 1, 2, 255]))),
    ];
    assert_eq!(sent.message_attributes, BTreeMap::from(expected));
    let trace = [("AWSTraceHeader".to_owned(), attribute("String", Some("Root=1"), None))];
    assert_eq!(sent.message_system_attributes, BTreeMap::from(trace));
    assert_eq!((sent.message_group_id.as_deref(), &sent.message_deduplication_id), (Some("g"), &None));
}

#[test]
fn receive_message() {
    let receive: ReceiveMessage = request(
        "Action=ReceiveMessage&QueueUrl=q&AttributeName.1=All&MessageAttributeName.2=b.*&MessageAttributeName.1=a\
         &MessageSystemAttributeName.1=SenderId&MaxNumberOfMessages=10&VisibilityTimeout=0&WaitTimeSeconds=20",
    )
    .unwrap();
    assert_eq!(receive.attribute_names, ["All"]);
    assert_eq!(receive.message_attribute_names, ["a", "b.*"]);
    assert_eq!(receive.message_system_attribute_names, ["SenderId"]);
    let numbers = (receive.max_number_of_messages, receive.visibility_timeout, receive.wait_time_seconds);
    assert_eq!(numbers, (Some(10), Some(0), Some(20)));
}

#[test]
fn what_fifo_queues_are_told() {
    let sent: SendMessage =
        request("Action=SendMessage&QueueUrl=a.fifo&MessageBody=m&MessageGroupId=g&MessageDeduplicationId=d%2F1")
            .unwrap();
    let ids = (sent.message_group_id.as_deref(), sent.message_deduplication_id.as_deref());
    assert_eq!(ids, (Some("g"), Some("d/1")));
    let receive: ReceiveMessage = request("Action=ReceiveMessage&ReceiveRequestAttemptId=once").unwrap();
    assert_eq!(receive.receive_request_attempt_id.as_deref(), Some("once"));
    let batch: waybill_queues::ops::SendMessageBatch = request(
        "Action=SendMessageBatch&QueueUrl=a.fifo&SendMessageBatchRequestEntry.1.Id=e\
         &SendMessageBatchRequestEntry.1.MessageBody=m&SendMessageBatchRequestEntry.1.MessageGroupId=g\
         &SendMessageBatchRequestEntry.1.MessageDeduplicationId=d",
    )
    .unwrap();
    let entry = &batch.entries[0];
    let ids = (entry.message_group_id.as_deref(), entry.message_deduplication_id.as_deref());
    assert_eq!(ids, (Some("g"), Some("d")));
}

#[test]
fn an_empty_list_is_written_in_more_ways_than_one() {
    for names in ["AttributeName=", "AttributeNames=", "", "AttributeName"] {
        let receive: ReceiveMessage = request(&format!("Action=ReceiveMessage&{names}")).unwrap();
        assert!(receive.attribute_names.is_empty(), "{names}");
    }
    for entries in ["Entries=", "SendMessageBatchRequestEntry=", ""] {
        let batch: SendMessageBatch = request(&format!("Action=SendMessageBatch&{entries}")).unwrap();
        assert!(batch.entries.is_empty(), "{entries}");
    }
}

#[test]
fn names_may_come_without_their_indexes() {
    let receive: ReceiveMessage =
        request("Action=ReceiveMessage&AttributeName=SenderId&AttributeName=SentTimestamp&AttributeName.1=All")
            .unwrap();
    assert_eq!(receive.attribute_names, ["SenderId", "SentTimestamp", "All"]);
}

#[test]
fn delete_message_to_the_address_of_a_queue() {
    let body = b"Action=DeleteMessage&ReceiptHandle=AQ%2Bb%2F-_%3D";
    let params = Params::read(Some("Version=2012-11-05"), body).unwrap().or_queue(Some("/000000000000/jobs"));
    let delete: DeleteMessage = read("DeleteMessage", &params).unwrap();
    assert_eq!((delete.queue_url.as_str(), delete.receipt_handle.as_str()), ("/000000000000/jobs", "AQ+b/-_="));
}

#[test]
fn all_in_the_address() {
    let query = "Action=GetQueueUrl&QueueName=jobs&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00";
    let params = Params::read(Some(query), b"").unwrap();
    assert_eq!(params.action(), Some("GetQueueUrl"));
    assert_eq!(read::<GetQueueUrl>("GetQueueUrl", &params).unwrap().queue_name, "jobs");
}

#[test]
fn a_batch_has_lists_within_lists() {
    let batch: SendMessageBatch = request(
        "Action=SendMessageBatch&Version=2012-11-05&QueueUrl=q\
         &SendMessageBatchRequestEntry.10.Id=ten&SendMessageBatchRequestEntry.10.MessageBody=c\
         &SendMessageBatchRequestEntry.1.Id=one&SendMessageBatchRequestEntry.1.MessageBody=a\
         &SendMessageBatchRequestEntry.1.MessageAttribute.2.Name=y\
         &SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.DataType=String\
         &SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.StringValue=2\
         &SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=x\
         &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=String\
         &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=1\
         &SendMessageBatchRequestEntry.2.Id=two&SendMessageBatchRequestEntry.2.DelaySeconds=7\
         &DeleteMessageBatchRequestEntry.1.Id=other",
    )
    .unwrap();
    let ids: Vec<_> = batch.entries.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!((batch.queue_url.as_str(), ids), ("q", vec!["one", "two", "ten"]));
    let names: Vec<_> = batch.entries[0].message_attributes.keys().collect();
    assert_eq!(names, ["x", "y"]);
    assert_eq!(batch.entries[1].delay_seconds, Some(7));
    assert_eq!(batch.entries[2].message_body, "c");
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Permission {
    label: String,
    #[serde(rename = "AWSAccountIds")]
    accounts: Vec<String>,
    actions: Vec<String>,
}

#[test]
fn other_lists_have_their_own_names() {
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Tags {
        #[serde(default)]
        tags: BTreeMap<String, String>,
        #[serde(default)]
        tag_keys: Vec<String>,
    }
    let tag: Tags = request("Action=TagQueue&Tag.1.Key=a&Tag.1.Value=b&TagKey.1=c&TagKey.2=d").unwrap();
    assert_eq!((tag.tags, tag.tag_keys), (map(&[("a", "b")]), vec!["c".to_owned(), "d".to_owned()]));
    let permission: Permission = request(
        "Action=AddPermission&Label=l&AWSAccountId.1=000000000000&ActionName.1=SendMessage&ActionName.2=ReceiveMessage",
    )
    .unwrap();
    assert_eq!((permission.label.as_str(), permission.accounts), ("l", vec!["000000000000".to_owned()]));
    assert_eq!(permission.actions, ["SendMessage", "ReceiveMessage"]);
}

#[test]
fn scalars_are_read_from_text() {
    #[derive(Debug, Deserialize, PartialEq)]
    enum Status {
        Running,
    }
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "PascalCase")]
    struct Scalars {
        yes: bool,
        no: Option<bool>,
        small: u8,
        big: i64,
        rate: f64,
        letter: char,
        status: Status,
        absent: Option<String>,
    }
    let scalars: Scalars =
        request("Action=X&Yes=true&No=false&Small=255&Big=-9223372036854775808&Rate=0.5&Letter=%C3%A9&Status=Running")
            .unwrap();
    let expected = Scalars {
        yes: true,
        no: Some(false),
        small: 255,
        big: i64::MIN,
        rate: 0.5,
        letter: 'é',
        status: Status::Running,
        absent: None,
    };
    assert_eq!(scalars, expected);
    for (name, value, wanted) in [
        ("Yes", "True", "true or false"),
        ("Small", "256", "a whole number that is not too large"),
        ("Big", "1.5", "a whole number that is not too large"),
        ("Rate", "inf", "a number"),
    ] {
        let body = format!("{name}={value}&Yes=true&Small=1&Big=1&Rate=1&Letter=a&Status=Running");
        let expected = format!("InvalidParameterValue: {name} must be {wanted}.");
        assert_eq!(refusal::<Scalars>(&body), expected);
    }
}

#[test]
fn complaints_name_the_parameter_as_it_was_written() {
    for (body, expected) in [
        ("DelaySeconds=soon", "InvalidParameterValue: DelaySeconds must be a whole number that is not too large."),
        ("DelaySeconds=", "InvalidParameterValue: DelaySeconds must be a whole number that is not too large."),
        ("MessageBody.1=a", "InvalidParameterValue: MessageBody must be a single value, not one in parts."),
        (
            "MessageAttribute.2.Name=b&MessageAttribute.2.Value.BinaryValue=%21",
            "InvalidParameterValue: MessageAttribute.2.Value.BinaryValue must be base64.",
        ),
        (
            "MessageAttribute.2.Value.DataType=String",
            "MissingParameter: The request must contain the parameter MessageAttribute.2.Name.",
        ),
        (
            "MessageAttribute.2.Name=b",
            "MissingParameter: The request must contain the parameter MessageAttribute.2.Value.",
        ),
        ("MessageAttribute=b", "MissingParameter: The request must contain the parameter MessageAttribute.Name."),
        (
            "MessageAttribute.0.Name=b",
            "InvalidParameterValue: MessageAttribute.0 has an index that is not a number from 1 to 999999999.",
        ),
    ] {
        assert_eq!(refusal::<SendMessage>(body), expected, "{body}");
    }
    let body = "Action=SendMessageBatch&SendMessageBatchRequestEntry.7.DelaySeconds=x";
    let expected = "InvalidParameterValue: SendMessageBatchRequestEntry.7.DelaySeconds must be a whole number that is not \
                    too large.";
    assert_eq!(refusal::<SendMessageBatch>(body), expected);
    let missing = "MissingParameter: The request must contain the parameter";
    assert_eq!(refusal::<Permission>("Label=l"), format!("{missing} AWSAccountId."));
    assert_eq!(refusal::<Permission>("AWSAccountId.1=l"), format!("{missing} Label."));
}

#[test]
fn what_is_no_member_is_ignored() {
    let sent: SendMessage =
        request("Action=SendMessage&MessageBody=a&messagebody=b&Colour=blue&Colour.1.x=2&MessageBodyy=c&.=&..=")
            .unwrap();
    assert_eq!(sent.message_body, "a");
}
