//! Who may do what, and that tenants are blind to each other even where their ids are the same.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Mode, Role};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{NOBODY, ok, plain_task, refused, task, text, texts, worker};

waybill_testkit::both! {
    a12_11_an_agent_cannot_lease_and_a_worker_cannot_create,
    a12_11_a_tenant_is_blind_to_another,
    a12_11_two_tenants_with_the_same_task_id_do_not_meet,
}

async fn a12_11_an_agent_cannot_lease_and_a_worker_cannot_create(on: TestStore) {
    let of = |role: Role| stores::caller(&on.admin, "agent:x", &[role]).unwrap();
    for (role, denied) in [
        (Role::Agent, &["lease_next", "renew_lease", "report_progress", "complete", "fail"][..]),
        (Role::Worker, &["create_task", "list_tasks", "cancel_task", "ack_receipt"]),
        (Role::System, &["lease_next", "renew_lease", "report_progress", "complete", "fail"]),
    ] {
        for entry in on.registry.entries().filter(|entry| entry.spec().route.path.starts_with("/v1/")) {
            let spec = entry.spec();
            // No role has scopes of queues, mail or meshes by itself: theirs are told apart where those are. The system reads all.
            if ["queues", "mail", "mesh"].contains(&spec.domain) {
                let reads = role == Role::System && spec.mode == Mode::Read;
                assert_eq!(spec.allows(&of(role)), reads, "{role} {}", spec.name);
                continue;
            }
            let admins = spec.roles == [Role::Admin];
            assert_eq!(spec.allows(&of(role)), !denied.contains(&spec.name) && !admins, "{role} {}", spec.name);
        }
    }
}

/// What everybody else of another tenant gets for a task of ours, operation by operation.
fn questions(task_id: &str, lease_id: &str) -> Vec<(&'static str, Json)> {
    let held = |further: Json| {
        let mut input = json!({ "task_id": task_id, "lease_id": lease_id });
        input.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        input
    };
    vec![
        ("get_task", json!({ "task_id": task_id })),
        ("cancel_task", json!({ "task_id": task_id })),
        ("list_receipts", json!({ "task_id": task_id })),
        ("renew_lease", held(json!({}))),
        ("report_progress", held(json!({ "progress": 1 }))),
        ("complete", held(json!({ "artifacts": { "p": 1 } }))),
        ("fail", held(json!({ "error": 1 }))),
    ]
}

async fn a12_11_a_tenant_is_blind_to_another(on: TestStore) {
    let (alice, stranger) = (on.agent("alice").unwrap(), on.tenant("other").await.unwrap());
    let task_id = plain_task(&on, &alice).await;
    let leased = ok(&on, &worker(&on, "w"), "lease_next", json!({})).await["tasks"][0].clone();
    let lease_id = text(&leased, "lease_id");
    let receipts =
        texts(&ok(&on, &alice, "list_receipts", json!({ "task_id": task_id })).await["receipts"], "receipt_id");
    let theirs = questions(&task_id, &lease_id);
    let nobodys = questions(NOBODY, &lease_id);
    for ((name, foreign), (_, unknown)) in theirs.into_iter().zip(nobodys) {
        let foreign = refused(&on, &stranger, name, foreign).await;
        assert_eq!(foreign.code(), Code::NotFound, "{name}");
        assert_eq!(
            foreign.to_json(),
            refused(&on, &stranger, name, unknown).await.to_json(),
            "{name} tells them apart"
        );
    }
    for name in ["get_receipt", "ack_receipt"] {
        let foreign = refused(&on, &stranger, name, json!({ "receipt_id": receipts[0] })).await;
        let unknown = refused(&on, &stranger, name, json!({ "receipt_id": NOBODY })).await;
        assert_eq!((foreign.code(), foreign.to_json()), (Code::NotFound, unknown.to_json()), "{name}");
    }
    assert_eq!(ok(&on, &stranger, "list_tasks", json!({})).await["tasks"], json!([]));
    assert_eq!(ok(&on, &stranger, "lease_next", json!({})).await["tasks"], json!([]));
    let named = json!({ "to_kind": "agent", "to_id": "alice" });
    assert_eq!(ok(&on, &stranger, "list_receipts", named).await["receipts"], json!([]));
    assert_eq!(
        ok(&on, &alice, "get_task", json!({ "task_id": task_id })).await["status"],
        "leased",
        "nothing was done"
    );
}

async fn a12_11_two_tenants_with_the_same_task_id_do_not_meet(on: TestStore) {
    let (alice, stranger) = (on.agent("alice").unwrap(), on.tenant("other").await.unwrap());
    let ours = task(&on, &alice, json!({ "type": "ours" })).await;
    task(&on, &stranger, json!({ "type": "theirs" })).await;
    // Ids of two tenants are equal only if somebody makes them so.
    for table in ["tasks", "receipts"] {
        let own = "(SELECT task_id FROM tasks WHERE type = 'ours')";
        on.write(&format!("UPDATE {table} SET task_id = {own} WHERE tenant = {}", stranger.tenant.0)).await.unwrap();
    }
    let status = async |caller: &Caller| {
        let shown = ok(&on, caller, "get_task", json!({ "task_id": ours })).await;
        (text(&shown, "type"), text(&shown, "status"))
    };
    let is = |kind: &str, status: &str| (kind.to_owned(), status.to_owned());
    assert_eq!(status(&alice).await, is("ours", "queued"));
    assert_eq!(status(&stranger).await, is("theirs", "queued"));
    ok(&on, &stranger, "cancel_task", json!({ "task_id": ours })).await;
    assert_eq!(status(&alice).await, is("ours", "queued"));
    assert_eq!(status(&stranger).await, is("theirs", "canceled"));
    let leased = ok(&on, &worker(&on, "w"), "lease_next", json!({})).await["tasks"][0].clone();
    let lease = json!({ "task_id": leased["task_id"], "lease_id": leased["lease_id"], "artifacts": { "p": 1 } });
    ok(&on, &worker(&on, "w"), "complete", lease).await;
    assert_eq!(status(&alice).await, is("ours", "succeeded"));
    for (caller, end) in [(&alice, "task.completed"), (&stranger, "task.canceled")] {
        let listed = ok(&on, caller, "list_receipts", json!({ "task_id": ours })).await;
        let kinds = texts(&listed["receipts"], "receipt_type");
        assert!(kinds.contains(&end.to_owned()) && kinds.iter().filter(|kind| *kind == "task.assigned").count() == 1);
    }
}
