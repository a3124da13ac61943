//! Reservations, search and threads, as every door calls them: by name, with JSON. What they promise beyond that is in the tests of
//! mail.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal, with};

waybill_testkit::both! {
    files_are_reserved_checked_renewed_and_released,
    mail_is_found_and_threads_are_read,
    slots_are_taken_renewed_and_released,
    products_are_looked_through_at_once,
    what_is_not_there_is_refused,
}

const PROJECT: &str = "/data/projects/backend";

fn of(name: &str, more: Json) -> Json {
    with(&json!({ "project_key": PROJECT, "agent_name": name }), more)
}

async fn two_agents(on: &TestStore) {
    ok(on, &on.admin, "ensure_project", json!({ "human_key": PROJECT })).await;
    for name in ["GreenCastle", "BlueLake"] {
        let agent = json!({ "project_key": PROJECT, "name": name, "program": "p", "model": "m" });
        ok(on, &on.admin, "register_agent", agent).await;
        let open = of(name, json!({ "policy": "open" }));
        ok(on, &on.admin, "set_contact_policy", open).await;
    }
}

async fn files_are_reserved_checked_renewed_and_released(on: TestStore) {
    two_agents(&on).await;
    let paths = json!({ "paths": ["src/*.rs"] });
    let held = ok(&on, &on.admin, "file_reservation_paths", of("GreenCastle", paths.clone())).await;
    let met =
        ok(&on, &on.admin, "check_file_reservation_conflicts", of("BlueLake", json!({ "paths": ["src/a.rs"] }))).await;
    assert_eq!((&met["clear"], &met["conflicts"][0]["holders"][0]["agent"]), (&json!(false), &json!("GreenCastle")));
    assert_eq!(ok(&on, &on.admin, "renew_file_reservations", of("GreenCastle", paths)).await["renewed"], 1);
    let listed = ok(&on, &on.admin, "list_file_reservations", json!({ "project_key": PROJECT })).await;
    assert_eq!(listed["file_reservations"][0]["id"], held["granted"][0]["id"]);
    let force = of("BlueLake", json!({ "file_reservation_id": held["granted"][0]["id"] }));
    assert_eq!(refusal(&on, &on.admin, "force_release_file_reservation", force.clone()).await, Code::ReservationActive);
    assert_eq!(ok(&on, &on.admin, "release_file_reservations", of("GreenCastle", json!({}))).await["released"], 1);
    assert_eq!(ok(&on, &on.admin, "force_release_file_reservation", force).await["released"], false);
}

async fn mail_is_found_and_threads_are_read(on: TestStore) {
    two_agents(&on).await;
    let letter = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "Deploy",
                         "body_md": "- [ ] press the button", "thread_id": "T-1" });
    ok(&on, &on.admin, "send_message", letter).await;
    let found = ok(&on, &on.admin, "search_messages", json!({ "project_key": PROJECT, "query": "button" })).await;
    assert_eq!(found["result"][0]["subject"], "Deploy");
    let thread = json!({ "project_key": PROJECT, "thread_id": "T-1" });
    let read = ok(&on, &on.admin, "get_thread", thread.clone()).await;
    assert_eq!(read["messages"][0]["id"], found["result"][0]["id"]);
    let summed = ok(&on, &on.admin, "summarize_thread", thread).await;
    assert_eq!(summed["summary"]["action_items"], json!(["press the button"]));
}

async fn slots_are_taken_renewed_and_released(on: TestStore) {
    two_agents(&on).await;
    let slot = |name: &str| of(name, json!({ "slot": "build" }));
    assert_eq!(ok(&on, &on.admin, "acquire_build_slot", slot("GreenCastle")).await["conflicts"], json!([]));
    let second = ok(&on, &on.admin, "acquire_build_slot", slot("BlueLake")).await;
    assert_eq!(
        (&second["granted"]["agent"], &second["conflicts"][0]["agent"]),
        (&json!("BlueLake"), &json!("GreenCastle"))
    );
    assert_eq!(ok(&on, &on.admin, "renew_build_slot", slot("GreenCastle")).await["renewed"], true);
    for released in [true, false] {
        assert_eq!(ok(&on, &on.admin, "release_build_slot", slot("GreenCastle")).await["released"], released);
    }
    assert_eq!(ok(&on, &on.admin, "renew_build_slot", slot("GreenCastle")).await["renewed"], false);
}

async fn products_are_looked_through_at_once(on: TestStore) {
    two_agents(&on).await;
    let product = json!({ "product_key": "shop" });
    let made = ok(&on, &on.admin, "ensure_product", product.clone()).await;
    assert_eq!(ok(&on, &on.admin, "ensure_product", product.clone()).await, made);
    let link = with(&product, json!({ "project_key": PROJECT }));
    let linked = ok(&on, &on.admin, "products_link", link.clone()).await;
    assert_eq!(ok(&on, &on.admin, "products_link", link).await, linked);
    let letter = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "Deploy",
                         "body_md": "- press it", "thread_id": "T-1" });
    ok(&on, &on.admin, "send_message", letter).await;
    let found = ok(&on, &on.admin, "search_messages_product", with(&product, json!({ "query": "deploy" }))).await;
    let inbox = ok(&on, &on.admin, "fetch_inbox_product", with(&product, json!({ "agent_name": "BlueLake" }))).await;
    assert_eq!(
        (&found["result"][0]["id"], &found["result"][0]["project"]),
        (&inbox["result"][0]["id"], &linked["project"])
    );
    let summed = ok(&on, &on.admin, "summarize_thread_product", with(&product, json!({ "thread_id": "T-1" }))).await;
    assert_eq!(summed["summary"]["key_points"], json!(["press it"]));
}

async fn what_is_not_there_is_refused(on: TestStore) {
    two_agents(&on).await;
    let stranger = on.tenant("other").await.unwrap();
    for (name, input) in [
        ("file_reservation_paths", of("GreenCastle", json!({ "paths": ["a"] }))),
        ("check_file_reservation_conflicts", of("GreenCastle", json!({ "paths": ["a"] }))),
        ("renew_file_reservations", of("GreenCastle", json!({}))),
        ("release_file_reservations", of("GreenCastle", json!({}))),
        ("force_release_file_reservation", of("GreenCastle", json!({ "file_reservation_id": 1 }))),
        ("list_file_reservations", json!({ "project_key": PROJECT })),
        ("acquire_build_slot", of("GreenCastle", json!({ "slot": "s" }))),
        ("renew_build_slot", of("GreenCastle", json!({ "slot": "s" }))),
        ("release_build_slot", of("GreenCastle", json!({ "slot": "s" }))),
        ("search_messages", json!({ "project_key": PROJECT })),
        ("get_thread", json!({ "project_key": PROJECT, "thread_id": "T" })),
        ("summarize_thread", json!({ "project_key": PROJECT, "thread_id": "T" })),
    ] {
        assert_eq!(refusal(&on, &stranger, name, input.clone()).await, Code::NotFound, "{name}");
        let nowhere = with(&input, json!({ "project_key": "/no/such/project" }));
        assert_eq!(refusal(&on, &on.admin, name, nowhere).await, Code::NotFound, "{name}");
    }
    ok(&on, &on.admin, "ensure_product", json!({ "product_key": "shop" })).await;
    for (name, further) in [
        ("products_link", json!({ "project_key": PROJECT })),
        ("search_messages_product", json!({ "query": "x" })),
        ("fetch_inbox_product", json!({ "agent_name": "BlueLake" })),
        ("summarize_thread_product", json!({ "thread_id": "T" })),
    ] {
        let input = with(&json!({ "product_key": "shop" }), further);
        assert_eq!(refusal(&on, &stranger, name, input).await, Code::NotFound, "{name}");
    }
}
