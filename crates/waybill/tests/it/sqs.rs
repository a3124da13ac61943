//! The listener of SQS clients: signed requests, and those that are not.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningParams, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::{Value as Json, json};
use waybill_kernel::{Clock, Time};

use crate::world::{Engine, Reply, World};

/// Runs a test on both stores.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(super::Engine::Sqlite).await; })+
        }
        mod postgres {
            $(#[tokio::test] async fn $name() { super::$name(super::Engine::Postgres).await; })+
        }
    };
}

on_both! {
    a_message_goes_through_and_is_gone
    a_wait_ends_with_a_message
    what_is_not_signed_by_a_good_key_is_refused
    a_key_ends_and_is_rotated_and_survives_a_restart
    each_tenant_has_its_own_queues_and_each_key_its_scopes
    what_cannot_be_understood_says_so
    a_throttled_queue_refuses_the_eleventh_call_in_both_protocols
    a_partitioned_queue_is_served_and_counted
}

/// One who signs.
#[derive(Clone)]
pub struct Client {
    url: String,
    id: String,
    secret: String,
    region: &'static str,
    /// How far its clock is ahead.
    ahead: Duration,
    http: reqwest::Client,
}

impl Client {
    fn of(world: &World, made: &Json) -> Self {
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("no {name}: {made}")).to_owned();
        Self {
            url: world.server.sqs_url.clone(),
            id: text("access_key_id"),
            secret: text("secret_access_key"),
            region: "us-east-1",
            ahead: Duration::ZERO,
            http: world.http.clone(),
        }
    }

    pub async fn new(world: &World) -> Self {
        let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:alice", "sqs": true })).await;
        assert!(made["key"].is_null(), "{made}");
        Self::of(world, &made)
    }

    /// The same at another server.
    pub fn at(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    /// The headers of a request with this body.
    fn signed(&self, action: &str, body: &str) -> Vec<(String, String)> {
        let target = format!("AmazonSQS.{action}");
        self.signed_with(&[("x-amz-target", &target), ("content-type", "application/x-amz-json-1.0")], body)
    }

    fn signed_with(&self, own: &[(&str, &str)], body: &str) -> Vec<(String, String)> {
        let address = format!("{}/", self.url);
        let host = self.url.strip_prefix("http://").unwrap();
        let headers = [&[("host", host)], own].concat();
        let identity = Credentials::new(&self.id, &self.secret, None, None, "test").into();
        let params: SigningParams<'_> = v4::SigningParams::builder()
            .identity(&identity)
            .region(self.region)
            .name("sqs")
            .time(SystemTime::UNIX_EPOCH + Clock::system().now().since(Time::EPOCH) + self.ahead)
            .settings(SigningSettings::default())
            .build()
            .unwrap()
            .into();
        let signable =
            SignableRequest::new("POST", &address, headers.iter().copied(), SignableBody::Bytes(body.as_bytes()))
                .unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        let added = instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let own = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        own.chain(added).collect()
    }

    /// In the Query protocol.
    pub async fn query(&self, form: &str) -> Reply {
        let headers = self.signed_with(&[("content-type", "application/x-www-form-urlencoded")], form);
        self.send(headers, form.to_owned()).await
    }

    async fn send(&self, headers: Vec<(String, String)>, body: String) -> Reply {
        let request = self.http.post(format!("{}/", self.url));
        Reply::of(headers.into_iter().fold(request, |request, (name, value)| request.header(name, value)).body(body))
            .await
    }

    pub async fn call(&self, action: &str, input: Json) -> Reply {
        let body = input.to_string();
        self.send(self.signed(action, &body), body).await
    }

    pub async fn ok(&self, action: &str, input: Json) -> Json {
        let reply = self.call(action, input).await;
        assert_eq!(reply.status, 200, "{action}: {}", reply.text);
        reply.json()
    }

    pub async fn queue(&self, name: &str) -> String {
        self.ok("CreateQueue", json!({ "QueueName": name })).await["QueueUrl"].as_str().unwrap().to_owned()
    }

    pub async fn receive(&self, url: &str, seconds: u32) -> Vec<Json> {
        let input = json!({ "QueueUrl": url, "WaitTimeSeconds": seconds, "MessageSystemAttributeNames": ["All"] });
        self.ok("ReceiveMessage", input).await["Messages"].as_array().cloned().unwrap_or_default()
    }
}

/// The error as an SDK reads it.
pub fn must_be(reply: &Reply, status: u16, shape: &str, query_code: &str, what: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text);
    assert_eq!(reply.json()["__type"], format!("com.amazonaws.sqs#{shape}"), "{what}");
    let whose = if status < 500 { "Sender" } else { "Receiver" };
    assert_eq!(reply.header("x-amzn-query-error"), Some(format!("{query_code};{whose}").as_str()), "{what}");
    assert!(reply.header("x-amzn-requestid").is_some(), "{what}");
}

async fn a_message_goes_through_and_is_gone(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    assert_eq!(url, format!("{}/000000000000/jobs", world.server.sqs_url));
    assert_eq!(client.ok("GetQueueUrl", json!({ "QueueName": "jobs" })).await["QueueUrl"], url.as_str());
    let attributes = json!({ "k": { "DataType": "String", "StringValue": "v" } });
    let sent = client
        .ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "hello", "MessageAttributes": attributes }))
        .await;
    assert_eq!(sent["MD5OfMessageBody"], "5d41402abc4b2a76b9719d911017c592");
    assert_eq!(sent["MD5OfMessageAttributes"], "0a77b0642718c3d9dd47090567d11e0d");
    let messages = client.receive(&url, 0).await;
    let [message] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((&message["Body"], &message["MessageId"]), (&json!("hello"), &sent["MessageId"]));
    assert_eq!(message["Attributes"]["SenderId"], "agent:alice");
    assert!(client.receive(&url, 0).await.is_empty(), "it is in flight");
    let handle = &message["ReceiptHandle"];
    client.ok("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": handle })).await;
    client.ok("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": handle })).await;
}

async fn a_wait_ends_with_a_message(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    let waiting = tokio::spawn({
        let (client, url) = (client.clone(), url.clone());
        async move { client.receive(&url, 20).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "m" })).await;
    assert_eq!(waiting.await.unwrap().len(), 1);
}

async fn what_is_not_signed_by_a_good_key_is_refused(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let input = || json!({ "QueueName": "jobs" });
    let call = async |client: Client| client.call("CreateQueue", input()).await;

    let target = ("x-amz-target".to_owned(), "AmazonSQS.CreateQueue".to_owned());
    let unsigned = client.send(vec![target], input().to_string()).await;
    must_be(&unsigned, 403, "MissingAuthenticationToken", "MissingAuthenticationToken", "no signature");
    let other = Client { secret: "x".repeat(40), ..client.clone() };
    must_be(&call(other).await, 403, "SignatureDoesNotMatch", "SignatureDoesNotMatch", "another secret");
    for id in ["AKIAIOSFODNN7EXAMPLE", "AKWB000000000000", "x"] {
        let unknown = Client { id: id.to_owned(), ..client.clone() };
        must_be(&call(unknown).await, 403, "InvalidClientTokenId", "InvalidClientTokenId", id);
    }
    let elsewhere = Client { region: "eu-west-1", ..client.clone() };
    must_be(&call(elsewhere).await, 403, "SignatureDoesNotMatch", "SignatureDoesNotMatch", "another region");
    let early = Client { ahead: Duration::from_secs(16 * 60), ..client.clone() };
    must_be(&call(early).await, 403, "RequestTimeTooSkewed", "RequestTimeTooSkewed", "a clock that is ahead");
    let altered = client.send(client.signed("CreateQueue", &input().to_string()), r#"{"QueueName":"x"}"#.into()).await;
    must_be(&altered, 403, "SignatureDoesNotMatch", "SignatureDoesNotMatch", "another body");
    let mut garbled = client.signed("CreateQueue", "{}");
    garbled.retain(|(name, _)| name != "authorization");
    garbled.push(("authorization".to_owned(), "AWS4-HMAC-SHA256 nothing".to_owned()));
    let garbled = client.send(garbled, "{}".into()).await;
    must_be(&garbled, 400, "IncompleteSignature", "IncompleteSignature", "half a signature");

    // None of it has made a queue, and a key that signs opens nothing elsewhere.
    let none = client.call("GetQueueUrl", input()).await;
    must_be(&none, 400, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "no queue");
    for bearer in [&client.id, &client.secret] {
        assert_eq!(world.get(bearer, "/v1/tasks").await.status, 401);
    }
    let log = world.server.log();
    assert!(!log.contains(&client.secret) && !log.contains(&"x".repeat(40)));
}

async fn a_key_ends_and_is_rotated_and_survives_a_restart(engine: Engine) {
    let mut world = World::with(engine, "", &[]).await;
    let made = world.admin_post("/admin/keys", &json!({ "principal": "agent:alice", "sqs": true })).await;
    let client = Client::of(&world, &made);
    let url = client.queue("jobs").await;
    let id = made["key_id"].as_str().unwrap();
    let rotated = world.admin_post(&format!("/admin/keys/{id}/rotate"), &json!({ "overlap_seconds": 60 })).await;
    let successor = Client::of(&world, &rotated);
    assert!(client.receive(&url, 0).await.is_empty() && successor.receive(&url, 0).await.is_empty());

    let waiting = tokio::spawn({
        let (client, url) = (client.clone(), url.clone());
        async move { client.call("ReceiveMessage", json!({ "QueueUrl": url, "WaitTimeSeconds": 20 })).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.admin_post(&format!("/admin/keys/{id}/revoke"), &json!({})).await;
    assert_eq!(waiting.await.unwrap().status, 403, "what waits by an ended key ends with it");
    let ended = client.call("ReceiveMessage", json!({ "QueueUrl": url })).await;
    must_be(&ended, 403, "InvalidClientTokenId", "InvalidClientTokenId", "a revoked key");

    world.server.restart().unwrap();
    let after = Client { url: world.server.sqs_url.clone(), ..successor };
    assert!(after.receive(&url, 0).await.is_empty());
    let listed = world.get(&world.server.admin_key, "/admin/keys").await;
    assert!(listed.text.contains(&after.id) && !listed.text.contains(&after.secret), "{}", listed.text);
}

async fn each_tenant_has_its_own_queues_and_each_key_its_scopes(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    world.admin_post("/admin/tenants", &json!({ "name": "other" })).await;
    let ours = Client::new(&world).await;
    let url = ours.queue("jobs").await;
    let input = json!({ "principal": "agent:bob", "sqs": true, "tenant": "other" });
    let theirs = Client::of(&world, &world.admin_post("/admin/keys", &input).await);
    ours.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "ours" })).await;
    for foreign in [url.as_str(), "http://x/jobs"] {
        let reply = theirs.call("ReceiveMessage", json!({ "QueueUrl": foreign })).await;
        must_be(&reply, 400, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", foreign);
    }
    let their_url = theirs.queue("jobs").await;
    assert_ne!(their_url, url);
    assert!(theirs.receive(&their_url, 0).await.is_empty());

    let input = json!({ "principal": "agent:sender", "sqs": true, "scopes": ["queues:send"] });
    let sender = Client::of(&world, &world.admin_post("/admin/keys", &input).await);
    sender.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "more" })).await;
    for (action, input) in
        [("ReceiveMessage", json!({ "QueueUrl": url })), ("CreateQueue", json!({ "QueueName": "mine" }))]
    {
        must_be(&sender.call(action, input).await, 403, "AccessDenied", "AccessDenied", action);
    }
}

async fn what_cannot_be_understood_says_so(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    must_be(&client.call("Dance", json!({})).await, 400, "InvalidAction", "InvalidAction", "an unknown action");
    let content = ("content-type", "application/x-amz-json-1.0");
    // Of another service, and those that lack a part of the name.
    for target in ["DynamoDB_20120810.ListTables", "SQS.SendMessage", "ListQueues"] {
        let signed = client.signed_with(&[("x-amz-target", target), content], "{}");
        let reply = client.send(signed, "{}".to_owned()).await;
        must_be(&reply, 400, "InvalidAction", "InvalidAction", target);
        assert!(reply.text.contains(target), "{}", reply.text);
    }
    let nameless = client.send(client.signed_with(&[content], "{}"), "{}".to_owned()).await;
    must_be(&nameless, 400, "MissingAction", "MissingAction", "no target");
    let long = client.query(&format!("Version=2012-11-05&Action={}", "Dance".repeat(1_000))).await;
    assert!(long.status == 400 && long.text.contains("DanceDance") && long.text.len() < 1_000, "{}", long.text);
    for body in ["{", "[]", r#"{"QueueName": 7}"#, &"[".repeat(2_000), r#"{"QueueName":"a","QueueName":"b"}"#] {
        let reply = client.send(client.signed("CreateQueue", body), body.to_owned()).await;
        must_be(&reply, 400, "InvalidParameterValue", "InvalidParameterValue", body);
    }
    must_be(&client.call("CreateQueue", json!({})).await, 400, "MissingParameter", "MissingParameter", "no name");
    let ignored = json!({ "QueueName": "jobs", "Unheard": { "of": [1, null] } });
    client.ok("CreateQueue", ignored).await;

    let url = |path: &str| format!("{}{path}", world.server.sqs_url);
    let health = Reply::of(world.http.get(url("/sqs_health"))).await;
    assert_eq!((health.status, health.text.as_str()), (200, "ok\n"));
    let health = Reply::of(world.http.get(url("/sqs_health")).header("accept", "application/json")).await;
    assert_eq!((health.status, health.text.as_str()), (200, r#"{"status":"ok","capabilities":["htfifo"]}"#));
    assert_eq!(Reply::of(world.http.post(url("/sqs_health"))).await.status, 405);
}

async fn a_throttled_queue_refuses_the_eleventh_call_in_both_protocols(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    // One token in a hundred seconds: none comes while the test runs.
    let attributes = json!({ "ThrottleSendCapacity": "10", "ThrottleSendRefillPerSecond": "0.01" });
    let made = client.ok("CreateQueue", json!({ "QueueName": "jobs", "Attributes": attributes })).await;
    let url = made["QueueUrl"].as_str().unwrap();
    let message = || json!({ "QueueUrl": url, "MessageBody": "m" });
    let form = format!(
        "Action=SendMessage&Version=2012-11-05&MessageBody=m&QueueUrl={}",
        url.replace(':', "%3A").replace('/', "%2F")
    );
    for _ in 0..5 {
        client.ok("SendMessage", message()).await;
        let sent = client.query(&form).await;
        assert_eq!(sent.status, 200, "{}", sent.text);
    }
    let waits = |reply: &Reply| {
        let number = |name: &str| reply.header(name).unwrap().parse::<u64>().unwrap();
        let seconds = number("retry-after");
        assert!((1..=100).contains(&seconds), "{seconds}");
        assert_eq!(number("x-amz-retry-after"), seconds * 1_000);
    };
    let refused = client.call("SendMessage", message()).await;
    must_be(&refused, 400, "Throttling", "Throttling", "the eleventh send");
    waits(&refused);
    let told = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(told.contains("\"jobs\"") && told.contains("\"Send\""), "{told}");
    let refused = client.query(&form).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("<Type>Sender</Type><Code>Throttling</Code>"), "{}", refused.text);
    waits(&refused);
    // What is received is another matter, and there were ten.
    let received =
        client.ok("ReceiveMessage", json!({ "QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1 })).await;
    assert_eq!(received["Messages"].as_array().unwrap().len(), 10);

    let figures = world.get(&world.server.admin_key, "/metrics").await.text;
    let of_jobs = "{account=\"000000000000\",queue=\"jobs\",action=\"send\"}";
    let figure = |name: &str| {
        let line = figures.lines().find_map(|line| line.strip_prefix(&format!("{name}{of_jobs} ")));
        line.unwrap_or_else(|| panic!("no {name} in {figures}")).parse::<f64>().unwrap()
    };
    assert_eq!(figure("waybill_sqs_throttled_requests_total"), 2.0);
    assert!((0.0..1.0).contains(&figure("waybill_sqs_throttle_tokens_remaining")));
    client.ok("DeleteQueue", json!({ "QueueUrl": url })).await;
    let figures = world.get(&world.server.admin_key, "/metrics").await.text;
    assert!(!figures.contains("waybill_sqs_throttle_tokens_remaining"), "{figures}");
    assert!(figures.contains("waybill_sqs_throttled_requests_total{"), "what was counted stays counted");
}

async fn a_partitioned_queue_is_served_and_counted(engine: Engine) {
    let mut world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let attributes = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true", "PartitionCount": "4" });
    let made = client.ok("CreateQueue", json!({ "QueueName": "orders.fifo", "Attributes": attributes })).await;
    let url = made["QueueUrl"].as_str().unwrap().to_owned();
    for group in ["g0", "g1", "g3", "user-1"] {
        let message = json!({ "QueueUrl": url, "MessageBody": group, "MessageGroupId": group });
        client.ok("SendMessage", message).await;
    }
    // A plain queue beside it has no such counters.
    let attributes = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true" });
    let made = client.ok("CreateQueue", json!({ "QueueName": "plain.fifo", "Attributes": attributes })).await;
    let message = json!({ "QueueUrl": made["QueueUrl"], "MessageBody": "m", "MessageGroupId": "g" });
    client.ok("SendMessage", message).await;

    world.server.restart().unwrap();
    let client = Client { url: world.server.sqs_url.clone(), ..client };
    let input = json!({ "QueueUrl": url, "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"] });
    // One receive looks at as many partitions as it has time for.
    let mut messages = Vec::new();
    for _ in 0..4 {
        let received = client.ok("ReceiveMessage", input.clone()).await;
        messages.extend(received["Messages"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(messages.len(), 4);
    for message in &messages {
        client.ok("DeleteMessage", json!({ "QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"] })).await;
    }
    let figures = world.get(&world.server.admin_key, "/metrics").await.text;
    for (partition, action) in [(0, "receive"), (1, "receive"), (2, "delete"), (3, "delete")] {
        let series = format!(
            r#"waybill_sqs_partition_messages_total{{account="000000000000",queue="orders.fifo",partition="{partition}",action="{action}"}} 1"#
        );
        assert!(figures.contains(&series), "{series} is missing from {figures}");
    }
    let of_partitions = |line: &&str| line.starts_with("waybill_sqs_partition_messages_total");
    assert!(!figures.lines().filter(of_partitions).any(|line| line.contains("plain.fifo")), "{figures}");
    // What is done with a queue as a whole is counted beside it.
    let deleted = r#"waybill_sqs_messages_total{account="000000000000",queue="orders.fifo",action="delete"} 4"#;
    assert!(figures.contains(deleted), "{deleted} is missing from {figures}");
}
