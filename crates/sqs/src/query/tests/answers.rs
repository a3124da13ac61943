//! Answers, as the bytes that are sent and as a reader of XML finds them.

use std::collections::BTreeMap;

use serde::Serialize;
use waybill_kernel::Code;
use waybill_kernel::id::Uuid;
use waybill_queues::ops::delete_message::Deleted;
use waybill_queues::ops::receive_message::Received;
use waybill_queues::ops::send_message::Sent;
use waybill_queues::{Blob, Message, MessageAttribute, MessageId, Tally};

use super::super::write;
use super::{BatchDone, BatchFailed, shown};

const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Without what every answer ends in.
fn answer<T: Serialize>(action: &str, output: &T) -> String {
    let text = shown(&write(action, output, "r1").unwrap());
    let inside = text.strip_prefix(&format!("{action}Response(")).unwrap();
    inside.strip_suffix("ResponseMetadata(RequestId=r1))").unwrap().trim_end().to_owned()
}

fn message_id() -> MessageId {
    MessageId(Uuid::parse_str(ID).unwrap())
}

#[test]
fn an_answer_has_its_result_and_the_id_of_its_request() {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Url {
        queue_url: &'static str,
    }
    let written = write("CreateQueue", &Url { queue_url: "http://h/000000000000/a&b" }, "r1").unwrap();
    let expected = "<CreateQueueResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><CreateQueueResult>\
                    <QueueUrl>http://h/000000000000/a&amp;b</QueueUrl></CreateQueueResult><ResponseMetadata>\
                    <RequestId>r1</RequestId></ResponseMetadata></CreateQueueResponse>";
    assert_eq!(String::from_utf8(written).unwrap(), expected);
}

#[test]
fn what_has_no_result_has_no_element_for_it() {
    for action in [
        "AddPermission",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "TagQueue",
        "UntagQueue",
    ] {
        assert_eq!(answer(action, &Deleted { tally: Tally::default() }), "", "{action}");
    }
    let nothing = Received::new(vec![]);
    assert_eq!(answer("ReceiveMessage", &nothing), "ReceiveMessageResult");
}

#[test]
fn send_message() {
    let mut sent = Sent {
        message_id: message_id(),
        md5_of_message_body: "5d41402abc4b2a76b9719d911017c592".to_owned(),
        md5_of_message_attributes: None,
        md5_of_message_system_attributes: None,
        sequence_number: None,
        partition: None,
    };
    let expected = format!("MessageId={ID} MD5OfMessageBody=5d41402abc4b2a76b9719d911017c592");
    assert_eq!(answer("SendMessage", &sent), format!("SendMessageResult({expected})"));
    sent.md5_of_message_attributes = Some("a".to_owned());
    sent.sequence_number = Some("00000000000000000007".to_owned());
    let expected =
        format!("SendMessageResult({expected} MD5OfMessageAttributes=a SequenceNumber=00000000000000000007)");
    assert_eq!(answer("SendMessage", &sent), expected);
}

#[test]
fn receive_message() {
    let text = |value: &str| MessageAttribute {
        data_type: "String".to_owned(),
        string_value: Some(value.to_owned()),
        binary_value: None,
    };
    let bytes = MessageAttribute {
        data_type: "Binary".to_owned(),
        string_value: None,
        binary_value: Some(Blob(vec![0, 1, 2, 255])),
    };
    let message = |body: &str| Message {
        message_id: message_id(),
        receipt_handle: "AQ".to_owned(),
        md5_of_body: "m".to_owned(),
        body: body.to_owned(),
        attributes: BTreeMap::new(),
        message_attributes: BTreeMap::new(),
        md5_of_message_attributes: None,
        partition: None,
        unread: None,
    };
    let mut full = message("<b>&\r\n</b>");
    full.attributes = BTreeMap::from([
        ("SentTimestamp".to_owned(), "1".to_owned()),
        ("ApproximateReceiveCount".to_owned(), "2".to_owned()),
    ]);
    full.message_attributes = BTreeMap::from([("b".to_owned(), bytes), ("a".to_owned(), text("x"))]);
    full.md5_of_message_attributes = Some("n".to_owned());
    let received = Received::new(vec![full, message("two")]);
    let head = format!("MessageId={ID} ReceiptHandle=AQ MD5OfBody=m");
    let expected = format!(
        "ReceiveMessageResult(Message({head} Body=<b>&\r\n</b> \
         Attribute(Name=ApproximateReceiveCount Value=2) Attribute(Name=SentTimestamp Value=1) \
         MessageAttribute(Name=a Value(DataType=String StringValue=x)) \
         MessageAttribute(Name=b Value(DataType=Binary BinaryValue=AAEC/w==)) MD5OfMessageAttributes=n) \
         Message({head} Body=two))"
    );
    assert_eq!(answer("ReceiveMessage", &received), expected);
}

#[test]
fn lists_are_repeated_under_the_name_of_one() {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Queues {
        queue_urls: Vec<&'static str>,
        next_token: Option<&'static str>,
    }
    let queues = Queues { queue_urls: vec!["a", "b"], next_token: Some("t") };
    assert_eq!(answer("ListQueues", &queues), "ListQueuesResult(QueueUrl=a QueueUrl=b NextToken=t)");
    let none = Queues { queue_urls: vec![], next_token: None };
    assert_eq!(answer("ListQueues", &none), "ListQueuesResult");

    #[derive(Serialize)]
    struct Sources {
        #[serde(rename = "queueUrls")]
        queue_urls: Vec<&'static str>,
    }
    let sources = Sources { queue_urls: vec!["a"] };
    assert_eq!(answer("ListDeadLetterSourceQueues", &sources), "ListDeadLetterSourceQueuesResult(QueueUrl=a)");
}

#[test]
fn maps_are_pairs_and_tags_have_keys() {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Maps {
        attributes: BTreeMap<&'static str, &'static str>,
        tags: BTreeMap<&'static str, &'static str>,
    }
    let maps = Maps {
        attributes: BTreeMap::from([("Policy", "{\"a\":1}"), ("DelaySeconds", "0")]),
        tags: BTreeMap::from([("k<", "")]),
    };
    let expected = "GetQueueAttributesResult(Attribute(Name=DelaySeconds Value=0) \
                    Attribute(Name=Policy Value={\"a\":1}) Tag(Key=k< Value))";
    assert_eq!(answer("GetQueueAttributes", &maps), expected);
}

#[test]
fn batches_have_entries_called_after_them() {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Done {
        id: &'static str,
    }
    let failed = BatchFailed {
        id: "b".to_owned(),
        code: "InvalidParameterValue".to_owned(),
        message: "No.".to_owned(),
        sender_fault: true,
    };
    let batch = BatchDone { successful: vec![Done { id: "a" }, Done { id: "c" }], failed: vec![failed] };
    for action in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        let expected = format!(
            "{action}Result({action}ResultEntry(Id=a) {action}ResultEntry(Id=c) \
             BatchResultErrorEntry(Id=b Code=InvalidParameterValue Message=No. SenderFault=true))"
        );
        assert_eq!(answer(action, &batch), expected);
    }
}

#[test]
fn an_entry_that_has_taken_in_another_struct_is_written_like_any_other() {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Entry {
        id: &'static str,
        #[serde(flatten)]
        sent: Sent,
        attributes: BTreeMap<&'static str, &'static str>,
    }
    let sent = Sent {
        message_id: message_id(),
        md5_of_message_body: "m".to_owned(),
        md5_of_message_attributes: None,
        md5_of_message_system_attributes: None,
        sequence_number: None,
        partition: None,
    };
    let entry = Entry { id: "a", sent, attributes: BTreeMap::from([("b", "c")]) };
    let batch = BatchDone { successful: vec![entry], failed: vec![] };
    let expected = format!(
        "SendMessageBatchResult(SendMessageBatchResultEntry(Id=a MessageId={ID} MD5OfMessageBody=m \
         Attribute(Name=b Value=c)))"
    );
    assert_eq!(answer("SendMessageBatch", &batch), expected);
}

#[test]
fn tasks_that_move_messages() {
    #[derive(Serialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    enum Status {
        Running,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Task {
        task_handle: Option<&'static str>,
        status: Status,
        started_timestamp: i64,
        failure_reason: Option<&'static str>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Tasks {
        results: Vec<Task>,
    }
    let task = Task { task_handle: Some("h"), status: Status::Running, started_timestamp: -5, failure_reason: None };
    assert_eq!(
        answer("ListMessageMoveTasks", &Tasks { results: vec![task] }),
        "ListMessageMoveTasksResult(ListMessageMoveTasksResultEntry(TaskHandle=h Status=RUNNING StartedTimestamp=-5))"
    );
}

#[test]
fn what_xml_has_no_form_for_is_a_fault_of_ours() {
    #[derive(Serialize)]
    enum Odd {
        Pair(u8, u8),
    }
    let error = write("ListQueues", &Odd::Pair(1, 2), "r").unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.cause().unwrap().contains("ListQueues"), "{error:?}");
}
