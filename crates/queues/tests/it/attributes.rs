//! What a queue is set to, and what it tells about itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinSet;
use waybill_kernel::Code;
use waybill_queues::ops::add_permission::AddPermission;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::remove_permission::RemovePermission;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{JOBS, arn, attributes_of, body, call, jobs, map, ok, pass, receive, refusal, send, up_to, url};

both! {
    a_queue_tells_what_it_is_asked,
    what_is_set_takes_effect,
    all_is_set_or_nothing,
    an_empty_text_takes_an_attribute_away,
    changes_at_once_are_all_kept,
    permissions_stand_in_the_policy,
    bad_permissions,
}

fn set(attributes: &[(&str, &str)]) -> SetQueueAttributes {
    SetQueueAttributes { queue_url: JOBS.to_owned(), attributes: map(attributes) }
}

async fn a_queue_tells_what_it_is_asked(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "5"), ("Policy", "{}")]).await;
    let created = (on.store.now().micros() / 1_000_000).to_string();
    assert_eq!(attributes_of(&on, "jobs", &[]).await, BTreeMap::new());
    let some = attributes_of(&on, "jobs", &["DelaySeconds", "QueueArn", "KmsMasterKeyId", "FifoQueue"]).await;
    assert_eq!(some, map(&[("DelaySeconds", "5"), ("QueueArn", &arn("jobs"))]));
    let mut all = attributes_of(&on, "jobs", &["All"]).await;
    for name in ["CreatedTimestamp", "LastModifiedTimestamp"] {
        let shown: i64 = all.remove(name).unwrap().parse().unwrap();
        assert!((shown - created.parse::<i64>().unwrap()).abs() <= 1, "{name} {shown}");
    }
    assert_eq!(
        all,
        map(&[
            ("ApproximateNumberOfMessages", "0"),
            ("ApproximateNumberOfMessagesDelayed", "0"),
            ("ApproximateNumberOfMessagesNotVisible", "0"),
            ("DelaySeconds", "5"),
            ("MaximumMessageSize", "1048576"),
            ("MessageRetentionPeriod", "345600"),
            ("Policy", "{}"),
            ("QueueArn", &arn("jobs")),
            ("ReceiveMessageWaitTimeSeconds", "0"),
            ("SqsManagedSseEnabled", "false"),
            ("VisibilityTimeout", "30"),
        ])
    );
    let names = |name: &str| GetQueueAttributes { queue_url: JOBS.to_owned(), attribute_names: vec![name.to_owned()] };
    assert_eq!(refusal(&on, names("Colour")).await, Code::InvalidAttributeName);
    let nowhere = GetQueueAttributes { queue_url: url("nowhere"), ..names("All") };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
    // An account has its own number in its ARNs.
    let other = on.tenant("other").await.unwrap();
    call(&on, &other, crate::support::queue("jobs", &[])).await.unwrap();
    let theirs = call(&on, &other, names("QueueArn")).await.unwrap().attributes;
    assert_eq!(theirs["QueueArn"], format!("arn:aws:sqs:us-east-1:{}:jobs", waybill_queues::account_of(&other)));
    let request = json!({ "QueueUrl": JOBS, "AttributeNames": ["VisibilityTimeout"], "New": 1 });
    let shown = ok(&on, serde_json::from_value::<GetQueueAttributes>(request).unwrap()).await;
    assert_eq!(serde_json::to_value(shown).unwrap(), json!({ "Attributes": { "VisibilityTimeout": "30" } }));
}

async fn what_is_set_takes_effect(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    let modified = attributes_of(&on, "jobs", &["All"]).await["LastModifiedTimestamp"].clone();
    pass(&on, 5);
    ok(&on, set(&[("VisibilityTimeout", "100"), ("ReceiveMessageWaitTimeSeconds", "3")])).await;
    let all = attributes_of(&on, "jobs", &["All"]).await;
    assert_eq!((all["VisibilityTimeout"].as_str(), all["ReceiveMessageWaitTimeSeconds"].as_str()), ("100", "3"));
    assert_ne!(all["LastModifiedTimestamp"], modified);
    send(&on, "m").await;
    assert_eq!(receive(&on, 1).await.len(), 1);
    pass(&on, 99);
    let empty = ok(&on, ReceiveMessage { wait_time_seconds: Some(0), ..up_to(1) }).await;
    assert!(empty.messages.is_empty());
    pass(&on, 2);
    assert_eq!(receive(&on, 1).await.len(), 1);
    ok(&on, set(&[("MaximumMessageSize", "1024")])).await;
    assert_eq!(refusal(&on, body(&"x".repeat(1_025))).await, Code::InvalidRequest);
}

async fn all_is_set_or_nothing(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "5")]).await;
    for (bad, code) in [
        (("VisibilityTimeout", "43201"), Code::InvalidAttributeValue),
        (("Colour", "red"), Code::InvalidAttributeName),
        (("QueueArn", "arn"), Code::InvalidAttributeName),
        (("FifoQueue", "true"), Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, set(&[("DelaySeconds", "9"), bad])).await, code, "{bad:?}");
    }
    assert_eq!(attributes_of(&on, "jobs", &["DelaySeconds"]).await["DelaySeconds"], "5");
    assert_eq!(refusal(&on, set(&[])).await, Code::MissingParameter);
    let nowhere = SetQueueAttributes { queue_url: url("nowhere"), ..set(&[("DelaySeconds", "9")]) };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
}

async fn an_empty_text_takes_an_attribute_away(on: TestStore) {
    jobs(&on, &[("Policy", "{}"), ("KmsMasterKeyId", "k")]).await;
    ok(&on, set(&[("Policy", "")])).await;
    let left = attributes_of(&on, "jobs", &["Policy", "KmsMasterKeyId"]).await;
    assert_eq!(left, map(&[("KmsMasterKeyId", "k")]));
}

async fn changes_at_once_are_all_kept(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let mut changes = JoinSet::new();
    for change in
        [("VisibilityTimeout", "1"), ("DelaySeconds", "2"), ("MessageRetentionPeriod", "63"), ("Policy", "{}")]
    {
        let on = Arc::clone(&on);
        changes.spawn(async move { ok(&on, set(&[change])).await });
    }
    changes.join_all().await;
    let names = ["VisibilityTimeout", "DelaySeconds", "MessageRetentionPeriod", "Policy"];
    let kept: Vec<String> = attributes_of(&on, "jobs", &names).await.into_values().collect();
    assert_eq!(kept, ["2", "63", "{}", "1"]);
}

fn add(label: &str, accounts: &[&str], actions: &[&str]) -> AddPermission {
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    AddPermission {
        queue_url: JOBS.to_owned(),
        label: label.to_owned(),
        aws_account_ids: list(accounts),
        actions: list(actions),
    }
}

fn remove(label: &str) -> RemovePermission {
    RemovePermission { queue_url: JOBS.to_owned(), label: label.to_owned() }
}

async fn permissions_stand_in_the_policy(on: TestStore) {
    jobs(&on, &[]).await;
    let policy = async || {
        let text = attributes_of(&on, "jobs", &["Policy"]).await.remove("Policy").unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()
    };
    ok(&on, add("one", &["123456789012", "210987654321"], &["SendMessage"])).await;
    ok(&on, add("two", &["123456789012"], &["*"])).await;
    let both = policy().await;
    assert_eq!(
        both["Statement"][0],
        json!({
            "Sid": "one", "Effect": "Allow", "Action": "SQS:SendMessage", "Resource": arn("jobs"),
            "Principal": { "AWS": ["arn:aws:iam::123456789012:root", "arn:aws:iam::210987654321:root"] },
        })
    );
    assert_eq!(both["Statement"].as_array().unwrap().len(), 2);
    ok(&on, remove("one")).await;
    assert_eq!(policy().await["Statement"][0]["Sid"], "two");
    ok(&on, remove("two")).await;
    assert_eq!(policy().await, serde_json::Value::Null);
    let request = json!({ "QueueUrl": JOBS, "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["*"] });
    let added = ok(&on, serde_json::from_value::<AddPermission>(request).unwrap()).await;
    assert_eq!(serde_json::to_value(added).unwrap(), json!({}));
}

async fn bad_permissions(on: TestStore) {
    jobs(&on, &[]).await;
    let good = || add("one", &["123456789012"], &["SendMessage"]);
    ok(&on, good()).await;
    for (permission, code) in [
        (good(), Code::InvalidRequest),
        (add("", &["123456789012"], &["*"]), Code::MissingParameter),
        (add("l", &[], &["*"]), Code::MissingParameter),
        (add("l", &["123456789012"], &[]), Code::MissingParameter),
        (add("l", &["me"], &["*"]), Code::InvalidRequest),
        (add("l", &["123456789012"], &["DropTables"]), Code::InvalidRequest),
        (add("l", &["123456789012"], &["SendMessage"; 8]), Code::OverLimit),
        (AddPermission { queue_url: url("nowhere"), ..good() }, Code::QueueDoesNotExist),
    ] {
        let shown = format!("{permission:?}");
        assert_eq!(refusal(&on, permission).await, code, "{shown}");
    }
    assert_eq!(refusal(&on, remove("two")).await, Code::InvalidRequest);
    assert_eq!(refusal(&on, remove("")).await, Code::MissingParameter);
    let nowhere = RemovePermission { queue_url: url("nowhere"), ..remove("one") };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
}
