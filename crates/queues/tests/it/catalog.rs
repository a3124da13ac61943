//! Queues are made, found, and kept apart by tenant.

use serde_json::json;
use waybill_kernel::{Caller, Code, Role, Scope, Scopes};
use waybill_queues::account_of;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::get_queue_url::GetQueueUrl;
use waybill_queues::ops::receive_message::ReceiveMessage;
use waybill_queues::ops::send_message::SendMessage;
use waybill_store::Operation;
use waybill_testkit::both;
use waybill_testkit::stores::{self, TestStore};

use crate::support::{body, call, delete, jobs, map, ok, queue, receive, refusal, refused, send, up_to};

both! {
    a_queue_is_made_once,
    only_named_attributes_are_compared,
    a_queue_is_found_by_its_name,
    tenants_have_queues_of_their_own,
    requests_read_as_sdks_write_them,
    the_scopes_say_who_may,
}

async fn a_queue_is_made_once(on: TestStore) {
    for _ in 0..2 {
        let tags = map(&[("team", "a")]);
        let create = CreateQueue { tags, ..queue("jobs", &[("DelaySeconds", "5"), ("Policy", "{}")]) };
        assert_eq!(ok(&on, create).await.queue_name, "jobs");
    }
    let stored = on.rows("SELECT attributes, tags FROM queues").await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].text(0).unwrap(), r#"{"DelaySeconds":"5","Policy":"{}"}"#);
    assert_eq!(stored[0].text(1).unwrap(), r#"{"team":"a"}"#);
    assert_eq!(on.count("SELECT count(*) FROM parts").await.unwrap(), 1);
}

async fn only_named_attributes_are_compared(on: TestStore) {
    jobs(&on, &[("DelaySeconds", "5")]).await;
    for same in [&[][..], &[("DelaySeconds", "5")], &[("VisibilityTimeout", "30")]] {
        ok(&on, queue("jobs", same)).await;
    }
    // Tags are no attributes.
    ok(&on, CreateQueue { tags: map(&[("team", "b")]), ..queue("jobs", &[]) }).await;
    for other in [("DelaySeconds", "0"), ("VisibilityTimeout", "31"), ("Policy", "{}")] {
        let error = refused(&on, queue("jobs", &[other])).await;
        assert_eq!(error.code(), Code::QueueNameExists);
        assert!(error.message().contains(other.0), "{error}");
    }
}

async fn a_queue_is_found_by_its_name(on: TestStore) {
    jobs(&on, &[]).await;
    let get = |name: &str, account: Option<&str>| GetQueueUrl {
        queue_name: name.to_owned(),
        queue_owner_aws_account_id: account.map(str::to_owned),
    };
    for account in [None, Some("000000000000")] {
        assert_eq!(ok(&on, get("jobs", account)).await.queue_name, "jobs");
    }
    for (name, account, code) in [
        ("other", None, Code::QueueDoesNotExist),
        ("jobs", Some("123456789012"), Code::QueueDoesNotExist),
        ("not a name", None, Code::QueueDoesNotExist),
        ("", None, Code::MissingParameter),
    ] {
        assert_eq!(refusal(&on, get(name, account)).await, code, "{name:?} {account:?}");
    }
}

async fn tenants_have_queues_of_their_own(on: TestStore) {
    jobs(&on, &[]).await;
    send(&on, "ours").await;
    let other = on.tenant("other").await.unwrap();
    assert_ne!(account_of(&other), account_of(&on.admin));
    let code = async |operation| call(&on, &other, operation).await.unwrap_err().code();
    assert_eq!(code(up_to(10)).await, Code::QueueDoesNotExist);

    call(&on, &other, queue("jobs", &[("DelaySeconds", "9")])).await.unwrap();
    assert!(call(&on, &other, up_to(10)).await.unwrap().messages.is_empty());
    call(&on, &other, SendMessage { delay_seconds: Some(0), ..body("theirs") }).await.unwrap();
    let theirs = call(&on, &other, up_to(10)).await.unwrap().messages;
    assert_eq!(theirs.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["theirs"]);
    let ours = receive(&on, 10).await;
    assert_eq!(ours.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["ours"]);
    // Nobody deletes by the handle of another.
    assert_eq!(call(&on, &other, delete(&ours[0])).await.unwrap_err().code(), Code::ReceiptHandleIsInvalid);
}

async fn requests_read_as_sdks_write_them(on: TestStore) {
    let create = json!({ "QueueName": "jobs", "Attributes": { "DelaySeconds": "0" }, "tags": { "a": "b" }, "New": 1 });
    let created = ok(&on, serde_json::from_value::<CreateQueue>(create).unwrap()).await;
    assert_eq!(serde_json::to_value(created).unwrap(), json!({ "QueueName": "jobs" }));
    let send = json!({
        "QueueUrl": "http://h/000000000000/jobs",
        "MessageBody": "hello",
        "MessageAttributes": { "k": { "DataType": "String", "StringValue": "v", "StringListValues": [] } },
    });
    let sent = ok(&on, serde_json::from_value::<SendMessage>(send).unwrap()).await;
    let id = sent.message_id.to_string();
    let sent = serde_json::to_value(sent).unwrap();
    assert_eq!(
        sent,
        json!({
            "MessageId": id,
            "MD5OfMessageBody": "5d41402abc4b2a76b9719d911017c592",
            "MD5OfMessageAttributes": "0a77b0642718c3d9dd47090567d11e0d",
        })
    );
    let receive = json!({
        "QueueUrl": "http://h/jobs", "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
    });
    let received = ok(&on, serde_json::from_value::<ReceiveMessage>(receive.clone()).unwrap()).await;
    let received = serde_json::to_value(received).unwrap();
    assert_eq!(
        received["Messages"],
        json!([{
            "MessageId": id,
            "ReceiptHandle": received["Messages"][0]["ReceiptHandle"],
            "MD5OfBody": "5d41402abc4b2a76b9719d911017c592",
            "Body": "hello",
            "Attributes": { "ApproximateReceiveCount": "1" },
            "MessageAttributes": { "k": { "DataType": "String", "StringValue": "v" } },
            "MD5OfMessageAttributes": "0a77b0642718c3d9dd47090567d11e0d",
        }])
    );
    let empty = ok(&on, serde_json::from_value::<ReceiveMessage>(receive).unwrap()).await;
    assert_eq!(serde_json::to_value(empty).unwrap(), json!({}));
}

async fn the_scopes_say_who_may(on: TestStore) {
    let plain = on.agent("a").unwrap();
    let scopes = Scopes::new([Scope::QueuesSend, Scope::QueuesReceive, Scope::QueuesManage]);
    let agent = Caller { scopes, ..plain.clone() };
    let worker = stores::caller(&on.admin, "worker:w", &[Role::Worker]).unwrap();
    for spec in [CreateQueue::SPEC, GetQueueUrl::SPEC, SendMessage::SPEC, ReceiveMessage::SPEC] {
        assert!(spec.allows(&agent) && spec.allows(&on.admin), "{}", spec.name);
        assert!(!spec.allows(&plain) && !spec.allows(&worker), "{}", spec.name);
    }
}

/// Where there may be few queues.
pub mod bound {
    use std::sync::Arc;

    use tokio::sync::Barrier;
    use tokio::task::JoinSet;
    use waybill_kernel::Code;
    use waybill_queues::Settings;
    use waybill_testkit::both;
    use waybill_testkit::stores::{TestStore, readable};

    use crate::support::{call, ok, queue};

    const MAX: i64 = 4;

    fn few() -> Settings {
        Settings { queues_per_tenant_max: MAX, ..Settings::default() }
    }

    both! {
        super::few() =>
        of_many_who_make_queues_at_once_as_many_as_may_are_made,
        those_who_make_the_last_queue_at_once_agree,
    }

    /// What becomes of those who each make one of these queues, at one moment.
    async fn at_once(on: &Arc<TestStore>, names: Vec<String>) -> Vec<Option<Code>> {
        let (mut all, begin) = (JoinSet::new(), Arc::new(Barrier::new(names.len())));
        for name in names {
            let (on, begin) = (Arc::clone(on), Arc::clone(&begin));
            all.spawn(async move {
                begin.wait().await;
                call(&on, &on.admin, queue(&name, &[])).await.err().map(|error| error.code())
            });
        }
        all.join_all().await
    }

    async fn of_many_who_make_queues_at_once_as_many_as_may_are_made(on: TestStore) {
        let on = Arc::new(on);
        let outcomes = at_once(&on, (0..12).map(|number| format!("q{number}")).collect()).await;
        let made = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        assert_eq!(made as i64, MAX, "{outcomes:?}");
        assert!(outcomes.iter().flatten().all(|code| *code == Code::TooManyQueues), "{outcomes:?}");
        assert_eq!(on.count("SELECT count(*) FROM queues").await.unwrap(), MAX);
        // Another tenant has its own.
        let other = on.tenant("other").await.unwrap();
        call(&on, &other, queue("q", &[])).await.map_err(readable).unwrap();
    }

    async fn those_who_make_the_last_queue_at_once_agree(on: TestStore) {
        for number in 1..MAX {
            ok(&on, queue(&format!("q{number}"), &[])).await;
        }
        let on = Arc::new(on);
        assert_eq!(at_once(&on, vec!["last".to_owned(); 8]).await, [None; 8]);
        assert_eq!(on.count("SELECT count(*) FROM queues").await.unwrap(), MAX);
    }
}
