//! Every error of SQS at its place: the same shape, code and status in both protocols on both stores, and nothing is changed.

use serde_json::{Value as Json, json};

use crate::sqs::{Client, must_be};
use crate::world::{Engine, Reply, World};

#[tokio::test]
async fn every_error_is_the_same_in_both_protocols_on_sqlite() {
    every_error_is_the_same_in_both_protocols(Engine::Sqlite).await;
}

#[tokio::test]
async fn every_error_is_the_same_in_both_protocols_on_postgresql() {
    every_error_is_the_same_in_both_protocols(Engine::Postgres).await;
}

#[tokio::test]
async fn a_message_that_none_may_be_fails_alone_on_sqlite() {
    a_message_that_none_may_be_fails_alone(Engine::Sqlite).await;
}

#[tokio::test]
async fn a_message_that_none_may_be_fails_alone_on_postgresql() {
    a_message_that_none_may_be_fails_alone(Engine::Postgres).await;
}

/// Status, shape, and the code where that is another.
type Expected = (u16, &'static str, &'static str);

const MISSING: Expected = (400, "MissingParameter", "MissingParameter");
const INVALID: Expected = (400, "InvalidParameterValue", "InvalidParameterValue");
const NAME: Expected = (400, "InvalidAttributeName", "InvalidAttributeName");
const VALUE: Expected = (400, "InvalidAttributeValue", "InvalidAttributeValue");
const NOWHERE: Expected = (400, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue");
const HANDLE: Expected = (404, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid");
const RESOURCE: Expected = (404, "ResourceNotFoundException", "ResourceNotFoundException");
const OVER: Expected = (403, "OverLimit", "OverLimit");
const CONTENTS: Expected = (400, "InvalidMessageContents", "InvalidMessageContents");
const EXISTS: Expected = (400, "QueueNameExists", "QueueAlreadyExists");
const PURGED: Expected = (403, "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress");
const NOT_INFLIGHT: Expected = (400, "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight");
const EMPTY: Expected = (400, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest");
const TOO_MANY: Expected = (400, "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest");
const NOT_DISTINCT: Expected = (400, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct");
const ENTRY_ID: Expected = (400, "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId");
const TOO_LONG: Expected = (400, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong");
const THROTTLED: Expected = (400, "Throttling", "Throttling");
const ACTION: Expected = (400, "InvalidAction", "InvalidAction");

type Case = (&'static str, Json, Expected);

/// The queues that the cases are about.
struct Queues {
    jobs: String,
    other: String,
    orders: String,
    split: String,
    purged: String,
    throttled: String,
    /// Of messages in flight, by queue.
    of_jobs: String,
    of_other: String,
    of_orders: String,
    of_split: String,
    of_before_the_purge: String,
    /// Of one that is visible again.
    visible: String,
}

async fn every_error_is_the_same_in_both_protocols(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let queues = Queues::make(&client).await;
    let before = state(&client, &queues).await;
    let cases: Vec<Case> =
        [catalog(&queues), named(&queues), messages(&queues), batches(&queues), handles(&queues), others(&queues)]
            .concat();
    for (action, input, (status, shape, code)) in &cases {
        let told = shown(action, input);
        let told = told.as_str();
        let by_json = client.call(action, input.clone()).await;
        must_be(&by_json, *status, shape, code, told);
        let by_query = client.query(&form(action, input)).await;
        must_be_xml(&by_query, *status, code, told);
        for reply in [&by_json, &by_query] {
            let waits = ["Throttling", "PurgeQueueInProgress"].contains(shape);
            assert_eq!(reply.header("retry-after").is_some(), waits, "{told}");
        }
    }
    assert_eq!(state(&client, &queues).await, before, "something was changed");
}

/// One of ten in a batch holds NUL, in its body or in an attribute.
async fn a_message_that_none_may_be_fails_alone(engine: Engine) {
    const BATCH: &str = "SendMessageBatch";
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    let attribute = |text: &str| json!({ "k": { "DataType": "String", "StringValue": text } });
    for bad in [
        json!({ "Id": "bad", "MessageBody": "a\u{0}b" }),
        json!({ "Id": "bad", "MessageBody": "m", "MessageAttributes": attribute("\u{0}") }),
    ] {
        let mut entries: Vec<Json> = (0..9).map(|id| json!({ "Id": format!("e{id}"), "MessageBody": "m" })).collect();
        entries.insert(3, bad);
        let input = json!({ "QueueUrl": url, "Entries": entries });
        let told = client.ok(BATCH, input.clone()).await;
        let (sent, failed) = (told["Successful"].as_array().unwrap(), told["Failed"].as_array().unwrap());
        assert_eq!((sent.len(), failed.len()), (9, 1), "{told}");
        assert_eq!((&failed[0]["Id"], &failed[0]["Code"]), (&json!("bad"), &json!(CONTENTS.2)), "{told}");
        assert_eq!(failed[0]["SenderFault"], true);
        let reply = client.query(&form(BATCH, &input)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.text.matches("<SendMessageBatchResultEntry>").count(), 9, "{}", reply.text);
        let failure = format!("<BatchResultErrorEntry><Id>bad</Id><Code>{}</Code>", CONTENTS.2);
        assert!(reply.text.contains(&failure), "{}", reply.text);
    }
}

pub fn must_be_xml(reply: &Reply, status: u16, code: &str, what: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text);
    let whose = if status < 500 { "Sender" } else { "Receiver" };
    let begin = "<ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error>";
    assert!(reply.text.starts_with(begin), "{what}: {}", reply.text);
    assert!(
        reply.text.contains(&format!("<Type>{whose}</Type><Code>{code}</Code><Message>")),
        "{what}: {}",
        reply.text
    );
    assert!(reply.header("content-type").is_some_and(|media| media.starts_with("text/xml")), "{what}");
    let id = reply.header("x-amzn-requestid").unwrap();
    assert!(reply.text.contains(&format!("<RequestId>{id}</RequestId>")), "{what}: {}", reply.text);
}

fn shown(action: &str, input: &Json) -> String {
    format!("{action} {:.200}", input.to_string())
}

impl Queues {
    async fn make(client: &Client) -> Self {
        const LONG: (&str, &str) = ("VisibilityTimeout", "43200");
        let fifo = [LONG, ("FifoQueue", "true"), ("ContentBasedDeduplication", "true")];
        let (jobs, of_jobs) = in_flight(client, "jobs", &[LONG]).await;
        let (other, of_other) = in_flight(client, "other", &[LONG]).await;
        let (orders, of_orders) = in_flight(client, "orders.fifo", &fifo).await;
        let split = [&fifo[..], &[("PartitionCount", "4")]].concat();
        let (split, of_split) = in_flight(client, "split.fifo", &split).await;
        let (purged, of_before_the_purge) = in_flight(client, "purged", &[LONG]).await;
        client.ok("PurgeQueue", json!({ "QueueUrl": purged })).await;
        let limit = [("ThrottleDefaultCapacity", "10"), ("ThrottleDefaultRefillPerSecond", "0.001")];
        let throttled = made(client, "throttled", &limit).await;
        for _ in 0..10 {
            client.ok("SendMessage", json!({ "QueueUrl": throttled, "MessageBody": "m" })).await;
        }
        client.ok("SendMessage", json!({ "QueueUrl": jobs, "MessageBody": "visible" })).await;
        let open = client.ok("ReceiveMessage", json!({ "QueueUrl": jobs, "VisibilityTimeout": 0 })).await;
        let visible = open["Messages"][0]["ReceiptHandle"].as_str().unwrap().to_owned();
        Self {
            jobs,
            other,
            orders,
            split,
            purged,
            throttled,
            of_jobs,
            of_other,
            of_orders,
            of_split,
            of_before_the_purge,
            visible,
        }
    }
}

async fn made(client: &Client, name: &str, attributes: &[(&str, &str)]) -> String {
    let attributes: Json = attributes.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let made = client.ok("CreateQueue", json!({ "QueueName": name, "Attributes": attributes })).await;
    made["QueueUrl"].as_str().unwrap().to_owned()
}

/// A queue with one message, and the handle of whoever has received it.
async fn in_flight(client: &Client, name: &str, attributes: &[(&str, &str)]) -> (String, String) {
    let url = made(client, name, attributes).await;
    let mut message = json!({ "QueueUrl": url, "MessageBody": "held" });
    if name.ends_with(".fifo") {
        message["MessageGroupId"] = json!("g1");
    }
    client.ok("SendMessage", message).await;
    let received = client.receive(&url, 0).await;
    (url, received[0]["ReceiptHandle"].as_str().unwrap().to_owned())
}

/// All that a client can see.
async fn state(client: &Client, queues: &Queues) -> Vec<Json> {
    let mut seen = vec![client.ok("ListQueues", json!({})).await];
    let Queues { jobs, other, orders, split, purged, throttled, .. } = queues;
    for url in [jobs, other, orders, split, purged, throttled] {
        seen.push(client.ok("GetQueueAttributes", json!({ "QueueUrl": url, "AttributeNames": ["All"] })).await);
        seen.push(client.ok("ListQueueTags", json!({ "QueueUrl": url })).await);
    }
    seen
}

fn create(name: &str, attributes: Json, expected: Expected) -> Case {
    ("CreateQueue", json!({ "QueueName": name, "Attributes": attributes }), expected)
}

/// Making queues and changing what they are.
fn catalog(queues: &Queues) -> Vec<Case> {
    let fifo = |more: Json| {
        let mut all = json!({ "FifoQueue": "true" });
        all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        all
    };
    let (nowhere, of_fifo) = (policy("nowhere"), policy("orders.fifo"));
    let mut cases = vec![
        ("CreateQueue", json!({}), MISSING),
        create("a b", json!({}), INVALID),
        create("a\u{0}", json!({}), INVALID),
        create(&"a".repeat(81), json!({}), INVALID),
        create("a.b", json!({}), INVALID),
        create("jobs", json!({ "VisibilityTimeout": "7" }), EXISTS),
        create("throttled", json!({ "ThrottleDefaultCapacity": "11" }), EXISTS),
        create("throttled", json!({ "ThrottleDefaultCapacity": "9" }), VALUE),
        create("jobs", json!({ "ThrottleSendCapacity": "10" }), VALUE),
        create("split.fifo", fifo(json!({ "PartitionCount": "8" })), EXISTS),
        create("new", json!({ "Colour": "blue" }), NAME),
        create("new", json!({ "QueueArn": "arn" }), NAME),
        create("new", json!({ "ThrottleEverythingCapacity": "10" }), NAME),
        create("new.fifo", json!({}), INVALID),
        create("new.fifo", json!({ "FifoQueue": "false" }), INVALID),
        create("new", json!({ "FifoQueue": "true" }), INVALID),
        create("new", json!({ "ContentBasedDeduplication": "true" }), VALUE),
        create("new", json!({ "PartitionCount": "2" }), VALUE),
        create("new", json!({ "DeduplicationScope": "queue" }), VALUE),
        create("new.fifo", fifo(json!({ "PartitionCount": "3" })), VALUE),
        create("new.fifo", fifo(json!({ "PartitionCount": "64" })), VALUE),
        create("new.fifo", fifo(json!({ "PartitionCount": "many" })), VALUE),
        create("new.fifo", fifo(json!({ "FifoThroughputLimit": "much" })), VALUE),
        create("new.fifo", fifo(json!({ "PartitionCount": "2", "DeduplicationScope": "queue" })), INVALID),
        create("new", json!({ "RedrivePolicy": nowhere }), VALUE),
        create("new", json!({ "RedrivePolicy": of_fifo }), VALUE),
        ("CreateQueue", json!({ "QueueName": "new", "tags": many(51) }), INVALID),
        ("GetQueueUrl", json!({}), MISSING),
        ("GetQueueUrl", json!({ "QueueName": "nowhere" }), NOWHERE),
        ("GetQueueUrl", json!({ "QueueName": "jobs\u{0}" }), NOWHERE),
        ("GetQueueUrl", json!({ "QueueName": "jobs", "QueueOwnerAWSAccountId": "123456789012" }), NOWHERE),
        ("GetQueueAttributes", json!({ "QueueUrl": queues.jobs, "AttributeNames": ["Colour"] }), NAME),
        ("SetQueueAttributes", json!({ "QueueUrl": queues.jobs }), MISSING),
        ("PurgeQueue", json!({ "QueueUrl": queues.purged }), PURGED),
        ("ListQueues", json!({ "MaxResults": 0 }), INVALID),
        ("ListQueues", json!({ "QueueNamePrefix": "j\u{0}" }), INVALID),
        ("ListQueues", json!({ "MaxResults": 1_001 }), INVALID),
        ("ListQueues", json!({ "MaxResults": 1, "NextToken": "none" }), INVALID),
        ("TagQueue", json!({ "QueueUrl": queues.jobs }), MISSING),
        ("TagQueue", json!({ "QueueUrl": queues.jobs, "Tags": many(51) }), INVALID),
        ("TagQueue", json!({ "QueueUrl": queues.jobs, "Tags": { ("k".repeat(129)): "v" } }), INVALID),
        ("TagQueue", json!({ "QueueUrl": queues.jobs, "Tags": { "k": "v".repeat(257) } }), INVALID),
        ("TagQueue", json!({ "QueueUrl": queues.jobs, "Tags": { "k": "v\u{0}" } }), INVALID),
        ("UntagQueue", json!({ "QueueUrl": queues.jobs }), MISSING),
        ("Dance", json!({}), ACTION),
    ];
    // Whole or not at all: DelaySeconds alone would be fine.
    for (name, values, expected) in [
        ("VisibilityTimeout", &["-1", "43201", "1.5", "soon", ""][..], VALUE),
        ("MessageRetentionPeriod", &["59", "1209601"], VALUE),
        ("DelaySeconds", &["-1", "901"], VALUE),
        ("ReceiveMessageWaitTimeSeconds", &["21", "99999999999999999999"], VALUE),
        ("MaximumMessageSize", &["1023", "1048577"], VALUE),
        ("KmsDataKeyReusePeriodSeconds", &["59"], VALUE),
        ("KmsMasterKeyId", &["k\u{0}"], VALUE),
        ("SqsManagedSseEnabled", &["yes"], VALUE),
        ("RedrivePolicy", &["{", "{}", "[]", &nowhere, &of_fifo, &policy("jobs")], VALUE),
        ("RedriveAllowPolicy", &["{", r#"{"redrivePermission":"some"}"#, r#"{"redrivePermission":"byQueue"}"#], VALUE),
        ("ThrottleSendCapacity", &["NaN", "1e9", "inf", "-1", "9", "10", "ten"], VALUE),
        ("ThrottleSendRefillPerSecond", &["NaN", "1e9", "1"], VALUE),
        ("ThrottleDefaultCapacity", &["5"], VALUE),
        ("PartitionCount", &["2"], VALUE),
        ("ContentBasedDeduplication", &["true"], VALUE),
        ("ApproximateNumberOfMessages", &["0"], NAME),
        ("Colour", &["blue"], NAME),
    ] {
        for value in values {
            let mut attributes = json!({ "DelaySeconds": "7" });
            attributes[name] = json!(value);
            cases.push(("SetQueueAttributes", json!({ "QueueUrl": queues.jobs, "Attributes": attributes }), expected));
        }
    }
    for (name, value) in [("PartitionCount", "8"), ("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")]
    {
        let mut attributes = json!({ "DelaySeconds": "7" });
        attributes[name] = json!(value);
        cases.push(("SetQueueAttributes", json!({ "QueueUrl": queues.split, "Attributes": attributes }), VALUE));
    }
    cases
}

pub fn policy(target: &str) -> String {
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{target}");
    json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 3 }).to_string()
}

fn many(count: usize) -> Json {
    (0..count).map(|number| (format!("k{number}"), json!("v"))).collect()
}

/// Every action that names a queue, without one and with one that is not there.
fn named(queues: &Queues) -> Vec<Case> {
    let entry = json!([{ "Id": "a", "MessageBody": "m", "ReceiptHandle": queues.of_jobs, "VisibilityTimeout": 0 }]);
    let handle = json!({ "ReceiptHandle": queues.of_jobs, "VisibilityTimeout": 0 });
    let permission = json!({ "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"] });
    let mut cases = Vec::new();
    for (action, input) in [
        ("DeleteQueue", json!({})),
        ("GetQueueAttributes", json!({ "AttributeNames": ["All"] })),
        ("SetQueueAttributes", json!({ "Attributes": { "DelaySeconds": "1" } })),
        ("PurgeQueue", json!({})),
        ("SendMessage", json!({ "MessageBody": "m" })),
        ("SendMessageBatch", json!({ "Entries": entry })),
        ("ReceiveMessage", json!({})),
        ("DeleteMessage", handle.clone()),
        ("DeleteMessageBatch", json!({ "Entries": entry })),
        ("ChangeMessageVisibility", handle),
        ("ChangeMessageVisibilityBatch", json!({ "Entries": entry })),
        ("TagQueue", json!({ "Tags": { "k": "v" } })),
        ("UntagQueue", json!({ "TagKeys": ["k"] })),
        ("ListQueueTags", json!({})),
        ("AddPermission", permission),
        ("RemovePermission", json!({ "Label": "l" })),
        ("ListDeadLetterSourceQueues", json!({})),
    ] {
        cases.push((action, input.clone(), MISSING));
        for url in [queues.jobs.replace("jobs", "nowhere"), queues.jobs.replace("000000000000", "123456789012")] {
            let mut input = input.clone();
            input["QueueUrl"] = json!(url);
            cases.push((action, input, NOWHERE));
        }
    }
    cases
}

/// What is wrong with one message, and with a wish for messages.
fn messages(queues: &Queues) -> Vec<Case> {
    let send = |url: &str, more: Json, expected: Expected| -> Case {
        let mut input = json!({ "QueueUrl": url, "MessageBody": "m" });
        input.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        ("SendMessage", input, expected)
    };
    let attribute = |name: &str, value: Json| json!({ "MessageAttributes": { name: value } });
    let text = |value: &str| json!({ "DataType": "String", "StringValue": value });
    let eleven: Json = (0..11).map(|number| (format!("a{number}"), text("v"))).collect();
    let trace = |name: &str| json!({ "MessageSystemAttributes": { name: text("v") } });
    let (jobs, orders) = (queues.jobs.as_str(), queues.orders.as_str());
    let mut cases = vec![
        ("SendMessage", json!({ "QueueUrl": jobs }), MISSING),
        send(jobs, json!({ "MessageBody": "" }), MISSING),
        send(jobs, json!({ "MessageBody": "a\u{0}" }), CONTENTS),
        send(jobs, json!({ "MessageBody": "a\u{1}" }), CONTENTS),
        send(jobs, json!({ "MessageBody": "a\u{FFFF}" }), CONTENTS),
        send(jobs, json!({ "MessageBody": "a".repeat(1_048_577) }), INVALID),
        send(jobs, json!({ "DelaySeconds": 901 }), INVALID),
        send(jobs, json!({ "DelaySeconds": -1 }), INVALID),
        send(jobs, json!({ "MessageAttributes": eleven }), INVALID),
        send(jobs, attribute("AWS.x", text("v")), INVALID),
        send(jobs, attribute("a", json!({ "DataType": "Text", "StringValue": "v" })), INVALID),
        send(jobs, attribute("a", json!({ "DataType": "String" })), INVALID),
        send(jobs, attribute("a", json!({ "DataType": "Binary", "StringValue": "v" })), INVALID),
        send(jobs, attribute("a", text("\u{2}")), CONTENTS),
        send(jobs, attribute("a", text("\u{0}")), CONTENTS),
        send(jobs, trace("SenderId"), INVALID),
        send(jobs, json!({ "MessageDeduplicationId": "d" }), INVALID),
        send(jobs, json!({ "MessageGroupId": "g g" }), INVALID),
        send(jobs, json!({ "MessageGroupId": "g\u{0}" }), INVALID),
        send(orders, json!({}), MISSING),
        send(orders, json!({ "MessageGroupId": "g".repeat(129) }), INVALID),
        send(orders, json!({ "MessageGroupId": "g", "DelaySeconds": 1 }), INVALID),
        send(orders, json!({ "MessageGroupId": "g", "MessageDeduplicationId": "d d" }), INVALID),
        send(orders, json!({ "MessageGroupId": "g", "MessageDeduplicationId": "d\u{0}" }), INVALID),
        send(&queues.throttled, json!({}), THROTTLED),
        ("ReceiveMessage", json!({ "QueueUrl": queues.throttled }), THROTTLED),
    ];
    for (wish, expected) in [
        (json!({ "MaxNumberOfMessages": 0 }), INVALID),
        (json!({ "MaxNumberOfMessages": 11 }), INVALID),
        (json!({ "WaitTimeSeconds": 21 }), INVALID),
        (json!({ "WaitTimeSeconds": -1 }), INVALID),
        (json!({ "VisibilityTimeout": 43_201 }), INVALID),
        (json!({ "MessageSystemAttributeNames": ["Colour"] }), NAME),
        (json!({ "AttributeNames": ["Colour"] }), NAME),
    ] {
        let mut input = wish;
        input["QueueUrl"] = json!(jobs);
        cases.push(("ReceiveMessage", input, expected));
    }
    cases
}

/// What is wrong with a batch as a whole.
fn batches(queues: &Queues) -> Vec<Case> {
    let mut cases = Vec::new();
    for action in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        let entry =
            |id: &str| json!({ "Id": id, "MessageBody": "m", "ReceiptHandle": queues.of_jobs, "VisibilityTimeout": 0 });
        let eleven: Vec<Json> = (0..11).map(|number| entry(&format!("e{number}"))).collect();
        for (entries, expected) in [
            (json!([]), EMPTY),
            (json!(eleven), TOO_MANY),
            (json!([entry("a"), entry("b"), entry("a")]), NOT_DISTINCT),
            (json!([entry("a"), entry("b b")]), ENTRY_ID),
            (json!([entry("a"), entry(&"b".repeat(81))]), ENTRY_ID),
        ] {
            cases.push((action, json!({ "QueueUrl": queues.jobs, "Entries": entries }), expected));
        }
    }
    let large = |id: &str| json!({ "Id": id, "MessageBody": "a".repeat(600_000) });
    let entries = json!([large("a"), large("b")]);
    cases.push(("SendMessageBatch", json!({ "QueueUrl": queues.jobs, "Entries": entries }), TOO_LONG));
    let two = json!([{ "Id": "a", "MessageBody": "m" }, { "Id": "b", "MessageBody": "m" }]);
    cases.push(("SendMessageBatch", json!({ "QueueUrl": queues.throttled, "Entries": two }), THROTTLED));
    cases
}

/// Handles that are none, and those of another queue, generation or partition.
fn handles(queues: &Queues) -> Vec<Case> {
    let jobs = &queues.jobs;
    let mut cases = vec![
        ("DeleteMessage", json!({ "QueueUrl": jobs }), MISSING),
        ("ChangeMessageVisibility", json!({ "QueueUrl": jobs, "VisibilityTimeout": 0 }), MISSING),
        ("ChangeMessageVisibility", json!({ "QueueUrl": jobs, "ReceiptHandle": queues.of_jobs }), MISSING),
    ];
    for timeout in [-1, 43_201] {
        let input = json!({ "QueueUrl": jobs, "ReceiptHandle": queues.of_jobs, "VisibilityTimeout": timeout });
        cases.push(("ChangeMessageVisibility", input, INVALID));
    }
    let input = json!({ "QueueUrl": jobs, "ReceiptHandle": queues.visible, "VisibilityTimeout": 9 });
    cases.push(("ChangeMessageVisibility", input, NOT_INFLIGHT));
    for (url, handle) in [
        (jobs, "x"),
        (jobs, "not base64!"),
        (jobs, &queues.of_other),
        (jobs, &queues.of_orders),
        (&queues.purged, &queues.of_before_the_purge),
        (&queues.split, &queues.of_orders),
        (&queues.orders, &queues.of_split),
        (&queues.split, &of_partition(&queues.of_split, 4)),
        (&queues.split, &of_partition(&queues.of_split, 0)),
    ] {
        let input = json!({ "QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0 });
        cases.push(("DeleteMessage", input.clone(), HANDLE));
        cases.push(("ChangeMessageVisibility", input, HANDLE));
    }
    cases
}

/// The handle of a partitioned queue with another partition in it: `0x02`, then the partition in four bytes. Three bytes are
/// four letters, so the last of the partition and two bits of the one before are in the second four.
fn of_partition(handle: &str, partition: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let value = |index: usize| ALPHABET.iter().position(|letter| *letter == handle.as_bytes()[index]).unwrap();
    let (high, low) = (value(5), value(6));
    assert!(high & 0xF == 0 && low >> 2 == 1, "the group g1 is in partition 1 of 4: {handle}");
    let letter = char::from(ALPHABET[partition << 2 | low & 3]);
    format!("{}{letter}{}", &handle[..6], &handle[7..])
}

/// Permissions and moves.
fn others(queues: &Queues) -> Vec<Case> {
    let permission = |more: Json, expected: Expected| -> Case {
        let mut input = json!({
            "QueueUrl": queues.jobs, "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"]
        });
        input.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        ("AddPermission", input, expected)
    };
    let eight =
        ["*", "SendMessage", "ReceiveMessage", "DeleteMessage", "PurgeQueue", "GetQueueUrl", "GetQueueAttributes", "*"];
    let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
    vec![
        permission(json!({ "Label": "" }), MISSING),
        permission(json!({ "Label": "l l" }), INVALID),
        permission(json!({ "Label": "l".repeat(81) }), INVALID),
        permission(json!({ "AWSAccountIds": ["me"] }), INVALID),
        permission(json!({ "Actions": ["Dance"] }), INVALID),
        permission(json!({ "Actions": eight }), OVER),
        ("AddPermission", json!({ "QueueUrl": queues.jobs, "Label": "l" }), MISSING),
        ("RemovePermission", json!({ "QueueUrl": queues.jobs, "Label": "none" }), INVALID),
        ("StartMessageMoveTask", json!({}), MISSING),
        ("StartMessageMoveTask", json!({ "SourceArn": arn("nowhere") }), RESOURCE),
        ("StartMessageMoveTask", json!({ "SourceArn": "jobs" }), RESOURCE),
        ("StartMessageMoveTask", json!({ "SourceArn": arn("jobs") }), INVALID),
        ("StartMessageMoveTask", json!({ "SourceArn": arn("jobs"), "MaxNumberOfMessagesPerSecond": 501 }), INVALID),
        ("CancelMessageMoveTask", json!({}), MISSING),
        ("CancelMessageMoveTask", json!({ "TaskHandle": "x" }), RESOURCE),
        ("ListMessageMoveTasks", json!({}), MISSING),
        ("ListMessageMoveTasks", json!({ "SourceArn": arn("nowhere") }), RESOURCE),
        ("ListMessageMoveTasks", json!({ "SourceArn": arn("jobs"), "MaxResults": 11 }), INVALID),
        ("ListDeadLetterSourceQueues", json!({ "QueueUrl": queues.jobs, "MaxResults": 0 }), INVALID),
    ]
}

/// The same request in the Query protocol.
pub fn form(action: &str, input: &Json) -> String {
    let mut pairs = vec![("Action".to_owned(), action.to_owned()), ("Version".to_owned(), "2012-11-05".to_owned())];
    for (name, value) in input.as_object().unwrap() {
        flatten(action, name, value, &mut pairs);
    }
    let coded = pairs.iter().map(|(name, value)| format!("{}={}", coded(name), coded(value)));
    coded.collect::<Vec<_>>().join("&")
}

fn flatten(action: &str, name: &str, value: &Json, pairs: &mut Vec<(String, String)>) {
    let (before, member) = name.rsplit_once('.').map_or(("", name), |(before, member)| (before, member));
    let under = |element: &str| if before.is_empty() { element.to_owned() } else { format!("{before}.{element}") };
    match value {
        Json::Array(items) => {
            let element = match member {
                "Entries" => format!("{action}RequestEntry"),
                "Actions" => "ActionName".to_owned(),
                plural => plural.trim_end_matches('s').to_owned(),
            };
            for (index, item) in items.iter().enumerate() {
                flatten(action, &under(&format!("{element}.{}", index + 1)), item, pairs);
            }
        }
        Json::Object(members) => {
            let entry = match member {
                "Attributes" => Some(("Attribute", "Name")),
                "MessageAttributes" => Some(("MessageAttribute", "Name")),
                "MessageSystemAttributes" => Some(("MessageSystemAttribute", "Name")),
                "Tags" | "tags" => Some(("Tag", "Key")),
                _ => None,
            };
            for (index, (key, value)) in members.iter().enumerate() {
                match entry {
                    None => flatten(action, &format!("{name}.{key}"), value, pairs),
                    Some((element, key_part)) => {
                        let element = under(&format!("{element}.{}", index + 1));
                        pairs.push((format!("{element}.{key_part}"), key.clone()));
                        flatten(action, &format!("{element}.Value"), value, pairs);
                    }
                }
            }
        }
        Json::String(text) => pairs.push((name.to_owned(), text.clone())),
        other => pairs.push((name.to_owned(), other.to_string())),
    }
}

fn coded(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(letter).collect()
}
