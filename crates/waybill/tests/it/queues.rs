//! `waybill queue …`, and what operators see of queues over REST and in the metrics.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::server;

use crate::sqs::Client;
use crate::world::{Ended, Engine, World, program, until};

fn queue(world: &World, args: &[&str]) -> Ended {
    let url = world.url("");
    program(&[&["queue"], args, &["--url", &url, "--key", &world.server.admin_key]].concat())
}

fn asked(world: &World, args: &[&str]) -> Json {
    let ended = queue(world, &[args, &["--json"]].concat());
    assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
    ended.json()
}

/// `dead` with so many messages that came from `jobs`.
async fn dead_letters(world: &World, client: &Client, messages: usize) {
    let dead = asked(world, &["create", "dead"]);
    let policy = json!({ "deadLetterTargetArn": dead["arn"], "maxReceiveCount": 1 });
    let policy = format!("RedrivePolicy={policy}");
    asked(world, &["create", "jobs", &policy, "VisibilityTimeout=0", "--tag", "team=a"]);
    let url = format!("{}/000000000000/jobs", world.server.sqs_url);
    for number in 0..messages {
        let attributes = json!({ "kind": { "DataType": "String", "StringValue": "new" } });
        let body = format!("message {number}");
        client
            .ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": body, "MessageAttributes": attributes }))
            .await;
    }
    until("all are dead", || async {
        client.receive(&url, 0).await;
        asked(world, &["show", "dead"])["messages"]["visible"] == messages
    })
    .await;
}

async fn an_operator_sees_and_mends_queues(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let none = queue(&world, &["list"]);
    assert_eq!((none.exit, none.stdout.as_str(), none.stderr.as_str()), (0, "", "There are none.\n"));
    dead_letters(&world, &client, 3).await;

    let listed = asked(&world, &["list"]);
    assert_eq!((&listed["queues"][0]["queue"], &listed["queues"][1]["queue"]), (&json!("dead"), &json!("jobs")));
    assert_eq!(queue(&world, &["list", "--prefix", "j"]).stdout.lines().count(), 2);
    let shown = queue(&world, &["show", "jobs"]);
    for part in ["attribute VisibilityTimeout", "tag team", "dead after 1 receives", "in_flight"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let peeked = queue(&world, &["peek", "dead", "--limit", "2"]);
    assert!(peeked.stdout.contains("message 0") && peeked.stdout.contains("kind=new"), "{}", peeked.stdout);
    assert_eq!(peeked.stdout.lines().count(), 3, "{}", peeked.stdout);
    assert_eq!(asked(&world, &["peek", "dead"])["messages"][2]["dead_letter_source"], "jobs");

    asked(&world, &["set", "jobs", "RedrivePolicy=", "DelaySeconds=1"]);
    let attributes = asked(&world, &["show", "jobs"])["attributes"].clone();
    assert_eq!((&attributes["DelaySeconds"], attributes.get("RedrivePolicy")), (&json!("1"), None));
    // Without the policy nobody's dead letters go there.
    queue(&world, &["redrive", "dead"]).must_be(Code::InvalidRequest, "no dead-letter queue");
    let policy = json!({ "deadLetterTargetArn": asked(&world, &["show", "dead"])["arn"], "maxReceiveCount": 5 });
    asked(&world, &["set", "jobs", &format!("RedrivePolicy={policy}"), "DelaySeconds=0"]);
    let moved = queue(&world, &["redrive", "dead"]);
    assert_eq!((moved.exit, moved.stdout.as_str()), (0, "Moved 3 messages.\n"), "{}", moved.stderr);
    let redrives = asked(&world, &["redrive", "dead", "--list"]);
    assert_eq!(
        (&redrives["redrives"][0]["status"], &redrives["redrives"][0]["moved"]),
        (&json!("COMPLETED"), &json!(3))
    );
    queue(&world, &["redrive", "dead", "--cancel"]).must_be(Code::NotFound, "none runs");

    let purged = asked(&world, &["purge", "jobs"]);
    assert!(purged["generation_before"].as_i64() < purged["generation_after"].as_i64(), "{purged}");
    queue(&world, &["purge", "jobs"]).must_be(Code::PurgeQueueInProgress, "twice in a minute");
    let reply = world.post(&world.server.admin_key, "/v1/queues/jobs/purge", &json!({})).await;
    reply.must_be(Code::PurgeQueueInProgress, "over REST");
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after"), Some(reply.json()["retry_after"].to_string().as_str()));
    queue(&world, &["show", "nowhere"]).must_be(Code::QueueDoesNotExist, "no such queue");
    queue(&world, &["set", "jobs", "DelaySeconds"]).must_be(Code::InvalidRequest, "no value");
    queue(&world, &["create", "jobs", "DelaySeconds=7"]).must_be(Code::QueueNameExists, "another value");
}

async fn an_operator_throttles_a_queue(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    let none = queue(&world, &["throttle", "jobs"]);
    assert_eq!((none.exit, none.stdout.as_str(), none.stderr.as_str()), (0, "", "The queue is not throttled.\n"));
    let set = asked(&world, &["throttle", "jobs", "--send", "10,0.01", "--default", "20,5"]);
    let of_send = json!({ "capacity": 10, "refill_per_second": 0.01 });
    let of_default = json!({ "capacity": 20, "refill_per_second": 5 });
    assert_eq!(set, json!({ "queue": "jobs", "send": of_send, "receive": null, "default": of_default }));
    for _ in 0..10 {
        client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "m" })).await;
    }
    let message = json!({ "QueueUrl": url, "MessageBody": "m" });
    assert_eq!(client.call("SendMessage", message.clone()).await.status, 400, "the eleventh");
    let shown = queue(&world, &["throttle", "jobs"]);
    assert_eq!(shown.stdout.lines().count(), 3, "{}", shown.stdout);
    assert!(shown.stdout.contains("0.01") && shown.stdout.contains("refill_per_second"), "{}", shown.stdout);

    // One bucket is taken away, then all of them; what could not work changes nothing.
    queue(&world, &["throttle", "jobs", "--send", "9,1"]).must_be(Code::InvalidAttributeValue, "less than a batch");
    queue(&world, &["throttle", "jobs", "--send", "NaN,1"]).must_be(Code::InvalidAttributeValue, "no number");
    queue(&world, &["throttle", "jobs", "--send", "100"]).must_be(Code::InvalidRequest, "half a pair");
    queue(&world, &["throttle", "nowhere"]).must_be(Code::QueueDoesNotExist, "no such queue");
    queue(&world, &["throttle", "nowhere", "--off"]).must_be(Code::QueueDoesNotExist, "no such queue to change");
    assert_eq!(asked(&world, &["throttle", "jobs"]), set);
    assert_eq!(asked(&world, &["throttle", "jobs", "--send", "off"])["send"], Json::Null);
    client.ok("SendMessage", message).await;
    let off = asked(&world, &["throttle", "jobs", "--off"]);
    assert_eq!(off, json!({ "queue": "jobs", "send": null, "receive": null, "default": null }));
    assert!(asked(&world, &["show", "jobs"])["attributes"].get("ThrottleDefaultCapacity").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_throttles_a_queue_on_sqlite() {
    an_operator_throttles_a_queue(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_throttles_a_queue_on_postgresql() {
    an_operator_throttles_a_queue(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_mends_queues_on_sqlite() {
    an_operator_sees_and_mends_queues(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_mends_queues_on_postgresql() {
    an_operator_sees_and_mends_queues(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_what_changes_and_ends_when_it_is_told() {
    let mut world = World::start().await;
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    let mut watch = Command::new(server::binary())
        .args(["queue", "list", "--watch", "--interval", "1", "--json", "--url", &world.url("")])
        .args(["--key", &world.server.admin_key])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut visible = || {
        let line: Json = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["queues"][0]["messages"]["visible"].as_i64().unwrap()
    };
    assert_eq!(visible(), 0);
    client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "m" })).await;
    while visible() != 1 {}
    let pid = rustix::process::Pid::from_child(&watch);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(watch.wait().unwrap().success(), "Ctrl-C is how a watch ends");

    // Without a server there is nothing to see, and the folder stays free for one.
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    assert!(world.server.term().unwrap().success());
    program(&["queue", "list", "--watch", "--data", &data]).must_be(Code::ServerUnreachable, "no server");
    let listed = program(&["queue", "list", "--json", "--data", &data]);
    assert_eq!(listed.json()["queues"][0]["queue"], "jobs");
}

/// The value of a series, by its name and all of its labels.
async fn figure(world: &World, name: &str, labels: &str) -> Option<f64> {
    let figures = world.get(&world.server.admin_key, "/metrics").await;
    let series = format!("{name}{{{labels}}} ");
    figures.text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_is_in_each_queue_and_what_went_through() {
    let world = World::with(Engine::Sqlite, "[background]\nmeasure_interval_s = 1\n", &[]).await;
    let client = Client::new(&world).await;
    let url = client.queue("a-jobs").await;
    let split = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true", "PartitionCount": "4" });
    let made = client.ok("CreateQueue", json!({ "QueueName": "a-split.fifo", "Attributes": split })).await;
    // One of each partition.
    for group in ["g0", "g1", "g3", "user-1"] {
        let message = json!({ "QueueUrl": made["QueueUrl"], "MessageBody": group, "MessageGroupId": group });
        client.ok("SendMessage", message).await;
    }
    // The first 512 by name have labels of their own.
    for number in 0..513 {
        world.admin_post("/v1/queues", &json!({ "queue": format!("q{number:03}") })).await;
    }
    for queue in ["a-jobs", "q511", "q512"] {
        let url = url.replace("a-jobs", queue);
        for _ in 0..3 {
            client.ok("SendMessage", json!({ "QueueUrl": url, "MessageBody": "m" })).await;
        }
    }
    let message = client.receive(&url, 0).await.remove(0);
    client.receive(&url, 0).await;
    let handle = json!({ "QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"] });
    // The second time there is nothing to delete.
    for _ in 0..2 {
        client.ok("DeleteMessage", handle.clone()).await;
    }
    let depth = async |queue: &str, state: &str| {
        let account = if queue == "_other" { "_other" } else { "000000000000" };
        let labels = format!("account=\"{account}\",queue=\"{queue}\",state=\"{state}\"");
        figure(&world, "waybill_sqs_queue_messages", &labels).await
    };
    until("the depth is measured", || async {
        depth("a-jobs", "visible").await == Some(1.0)
            && depth("a-jobs", "in_flight").await == Some(1.0)
            && depth("a-split.fifo", "visible").await == Some(4.0)
            && depth("_other", "visible").await == Some(6.0)
    })
    .await;
    assert_eq!(depth("a-jobs", "delayed").await, Some(0.0));
    assert_eq!((depth("q509", "visible").await, depth("q510", "visible").await), (Some(0.0), None));
    for (action, messages) in [("send", 3.0), ("receive", 2.0), ("delete", 1.0)] {
        let labels = format!("account=\"000000000000\",queue=\"a-jobs\",action=\"{action}\"");
        assert_eq!(figure(&world, "waybill_sqs_messages_total", &labels).await, Some(messages), "{action}");
    }
    client.ok("DeleteQueue", json!({ "QueueUrl": url })).await;
    until("a queue that is gone is empty", || async { depth("a-jobs", "visible").await == Some(0.0) }).await;
}
