//! Queues are listed and tagged, and there is an end to how many a tenant has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinSet;
use waybill_kernel::{Caller, Code, Scope, Scopes};
use waybill_queues::ops::add_permission::AddPermission;
use waybill_queues::ops::cancel_message_move_task::CancelMessageMoveTask;
use waybill_queues::ops::change_message_visibility::ChangeMessageVisibility;
use waybill_queues::ops::create_queue::CreateQueue;
use waybill_queues::ops::delete_queue::DeleteQueue;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_queues::ops::list_message_move_tasks::ListMessageMoveTasks;
use waybill_queues::ops::list_queue_tags::ListQueueTags;
use waybill_queues::ops::list_queues::ListQueues;
use waybill_queues::ops::purge_queue::PurgeQueue;
use waybill_queues::ops::remove_permission::RemovePermission;
use waybill_queues::ops::set_queue_attributes::SetQueueAttributes;
use waybill_queues::ops::start_message_move_task::StartMessageMoveTask;
use waybill_queues::ops::tag_queue::TagQueue;
use waybill_queues::ops::untag_queue::UntagQueue;
use waybill_store::Operation;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{JOBS, call, jobs, map, ok, queue, refusal, url};

both! {
    queues_are_listed_by_name,
    a_token_is_good_for_its_own_list,
    tags_are_merged_and_taken_away,
    tags_have_their_bounds,
    tags_that_come_at_once_are_all_kept,
    a_tenant_has_so_many_queues,
    each_operation_has_its_scope,
}

fn list(prefix: &str, max_results: Option<i64>, next_token: Option<String>) -> ListQueues {
    ListQueues { queue_name_prefix: prefix.to_owned(), max_results, next_token }
}

async fn queues_are_listed_by_name(on: TestStore) {
    assert!(ok(&on, list("", None, None)).await.queue_names.is_empty());
    for name in ["beta", "a-2", "a-1", "A", "a_1", "alpha"] {
        ok(&on, queue(name, &[])).await;
    }
    let all = ok(&on, list("", None, None)).await;
    assert_eq!(all.queue_names, ["A", "a-1", "a-2", "a_1", "alpha", "beta"]);
    assert_eq!(all.next_token, None);
    assert_eq!(ok(&on, list("a", None, None)).await.queue_names, ["a-1", "a-2", "a_1", "alpha"]);
    assert_eq!(ok(&on, list("a-", None, None)).await.queue_names, ["a-1", "a-2"]);
    for nothing in ["ab", "a b", "~", "ä"] {
        assert!(ok(&on, list(nothing, None, None)).await.queue_names.is_empty(), "{nothing}");
    }
    let (mut token, mut pages) = (None, Vec::new());
    loop {
        let page = ok(&on, list("a", Some(3), token)).await;
        pages.push(page.queue_names);
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec!["a-1", "a-2", "a_1"], vec!["alpha"]]);
    // A list that ends with its page has no further one.
    assert_eq!(ok(&on, list("a", Some(4), None)).await.next_token, None);
    ok(&on, DeleteQueue { queue_url: url("alpha") }).await;
    assert_eq!(ok(&on, list("al", None, None)).await.queue_names, Vec::<String>::new());
    let other = on.tenant("other").await.unwrap();
    assert!(call(&on, &other, list("", None, None)).await.unwrap().queue_names.is_empty());
}

async fn a_token_is_good_for_its_own_list(on: TestStore) {
    for name in ["a1", "a2", "b1", "b2"] {
        ok(&on, queue(name, &[])).await;
    }
    let token = ok(&on, list("a", Some(1), None)).await.next_token;
    for bad in [list("b", Some(1), token.clone()), list("a", Some(1), Some("00".to_owned()))] {
        assert_eq!(refusal(&on, bad).await, Code::InvalidCursor);
    }
    for bad in [0, -1, 1_001] {
        assert_eq!(refusal(&on, list("", Some(bad), None)).await, Code::InvalidRequest, "{bad}");
    }
    let request = json!({ "QueueNamePrefix": "a", "MaxResults": 1, "NextToken": token, "New": 1 });
    let page = ok(&on, serde_json::from_value::<ListQueues>(request).unwrap()).await;
    assert_eq!(serde_json::to_value(page).unwrap(), json!({ "QueueNames": ["a2"] }));
}

fn tag(tags: &[(&str, &str)]) -> TagQueue {
    TagQueue { queue_url: JOBS.to_owned(), tags: map(tags) }
}

fn untag(keys: &[&str]) -> UntagQueue {
    UntagQueue { queue_url: JOBS.to_owned(), tag_keys: keys.iter().map(|key| (*key).to_owned()).collect() }
}

async fn tags(on: &TestStore) -> BTreeMap<String, String> {
    ok(on, ListQueueTags { queue_url: JOBS.to_owned() }).await.tags
}

async fn tags_are_merged_and_taken_away(on: TestStore) {
    jobs(&on, &[]).await;
    let shown = ok(&on, ListQueueTags { queue_url: JOBS.to_owned() }).await;
    assert_eq!(serde_json::to_value(shown).unwrap(), json!({ "Tags": {} }));
    ok(&on, tag(&[("team", "a"), ("stage", "test")])).await;
    ok(&on, tag(&[("team", "b"), ("empty", "")])).await;
    assert_eq!(tags(&on).await, map(&[("empty", ""), ("stage", "test"), ("team", "b")]));
    ok(&on, untag(&["stage", "unknown"])).await;
    assert_eq!(tags(&on).await, map(&[("empty", ""), ("team", "b")]));
    // Tags are no attributes: nothing else has changed.
    ok(&on, queue("jobs", &[])).await;
}

async fn tags_have_their_bounds(on: TestStore) {
    let fifty: BTreeMap<_, _> = (0..50).map(|number| (format!("k{number}"), "v".to_owned())).collect();
    ok(&on, CreateQueue { tags: fifty, ..queue("jobs", &[]) }).await;
    // After the merge, and not before.
    assert_eq!(refusal(&on, tag(&[("one", "more")])).await, Code::InvalidRequest);
    ok(&on, tag(&[("k7", "another")])).await;
    assert_eq!(tags(&on).await.len(), 50);
    for (bad, code) in [
        (tag(&[]), Code::MissingParameter),
        (tag(&[("", "v")]), Code::InvalidRequest),
        (TagQueue { queue_url: url("nowhere"), ..tag(&[("k", "v")]) }, Code::QueueDoesNotExist),
    ] {
        assert_eq!(refusal(&on, bad).await, code);
    }
    assert_eq!(refusal(&on, untag(&[])).await, Code::MissingParameter);
    let nowhere = UntagQueue { queue_url: url("nowhere"), ..untag(&["k"]) };
    assert_eq!(refusal(&on, nowhere).await, Code::QueueDoesNotExist);
    assert_eq!(refusal(&on, ListQueueTags { queue_url: url("nowhere") }).await, Code::QueueDoesNotExist);
}

async fn tags_that_come_at_once_are_all_kept(on: TestStore) {
    jobs(&on, &[]).await;
    let on = Arc::new(on);
    let mut work = JoinSet::new();
    for number in 0..8 {
        let on = Arc::clone(&on);
        work.spawn(async move { ok(&on, tag(&[(&format!("k{number}"), "v")])).await });
    }
    work.join_all().await;
    assert_eq!(tags(&on).await.len(), 8);
}

async fn a_tenant_has_so_many_queues(on: TestStore) {
    const OTHERS: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) \
        INSERT INTO queues (tenant, name, generation, incarnation, attributes, tags, created_at, modified_at) \
        SELECT 1, 'q' || n.i, 1, 1, '{}', '{}', 1, 1 FROM n";
    on.write(OTHERS).await.unwrap();
    jobs(&on, &[]).await;
    assert_eq!(refusal(&on, queue("one-more", &[])).await, Code::TooManyQueues);
    assert_eq!(Code::TooManyQueues.entry().sqs.shape, "OverLimit");
    // One that is there is none more, and other tenants have their own.
    jobs(&on, &[]).await;
    let other = on.tenant("other").await.unwrap();
    call(&on, &other, queue("one-more", &[])).await.unwrap();
    ok(&on, DeleteQueue { queue_url: url("q1") }).await;
    ok(&on, queue("one-more", &[])).await;
    assert_eq!(refusal(&on, queue("two-more", &[])).await, Code::TooManyQueues);
    // A list without a size has an end.
    assert_eq!(ok(&on, list("q", None, None)).await.queue_names.len(), 1_000);
}

async fn each_operation_has_its_scope(on: TestStore) {
    let plain = on.agent("a").unwrap();
    let with = |scope| Caller { scopes: Scopes::new([scope]), ..plain.clone() };
    let (sends, receives, manages) = (with(Scope::QueuesSend), with(Scope::QueuesReceive), with(Scope::QueuesManage));
    for spec in [
        AddPermission::SPEC,
        CancelMessageMoveTask::SPEC,
        DeleteQueue::SPEC,
        ListMessageMoveTasks::SPEC,
        PurgeQueue::SPEC,
        RemovePermission::SPEC,
        SetQueueAttributes::SPEC,
        StartMessageMoveTask::SPEC,
        TagQueue::SPEC,
        UntagQueue::SPEC,
    ] {
        assert!(spec.allows(&manages) && !spec.allows(&sends) && !spec.allows(&receives), "{}", spec.name);
    }
    for spec in [GetQueueAttributes::SPEC, ListQueues::SPEC, ListQueueTags::SPEC] {
        assert!([&sends, &receives, &manages].iter().all(|caller| spec.allows(caller)), "{}", spec.name);
        assert!(!spec.allows(&plain), "{}", spec.name);
    }
    let change = ChangeMessageVisibility::SPEC;
    assert!(change.allows(&receives) && !change.allows(&sends) && !change.allows(&manages));
}
