//! Build slots and products.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{HOME, agent_in, letter, number, of, ok, pass, refusal, send, subjects, text, two, with};

waybill_testkit::both! {
    a_slot_is_always_given_and_names_the_others,
    a_slot_that_has_expired_is_not_renewed,
    a_product_is_made_once_and_looked_through_for_its_parties_alone,
    what_is_asked_wrongly_is_refused,
}

fn slot(name: &str, further: Json) -> Json {
    with(with(of(name), json!({ "slot": "build" })), further)
}

async fn a_slot_is_always_given_and_names_the_others(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for (mine, theirs, conflicts) in [(true, true, 1), (true, false, 1), (false, true, 1), (false, false, 0)] {
        ok(&on, &alice, "acquire_build_slot", slot("GreenCastle", json!({ "exclusive": mine }))).await;
        let met = ok(&on, &bob, "acquire_build_slot", slot("BlueLake", json!({ "exclusive": theirs }))).await;
        assert_eq!(met["granted"]["agent"], "BlueLake");
        assert_eq!(met["conflicts"].as_array().unwrap().len(), conflicts, "{mine} {theirs}");
        assert_eq!(ok(&on, &bob, "release_build_slot", slot("BlueLake", json!({}))).await["released"], true);
    }
    // One's own is taken again and is no conflict.
    let again = ok(&on, &alice, "acquire_build_slot", slot("GreenCastle", json!({}))).await;
    assert_eq!(again["conflicts"], json!([]));
    assert_eq!(on.count("SELECT count(*) FROM mail_build_slots").await.unwrap(), 2);
    assert_eq!(refusal(&on, &bob, "release_build_slot", slot("GreenCastle", json!({}))).await, Code::Forbidden);
}

async fn a_slot_that_has_expired_is_not_renewed(on: TestStore) {
    let (alice, bob) = two(&on).await;
    ok(&on, &alice, "acquire_build_slot", slot("GreenCastle", json!({ "ttl_seconds": 1 }))).await;
    pass(&on, 59);
    let renewed = ok(&on, &alice, "renew_build_slot", slot("GreenCastle", json!({ "extend_seconds": 60 }))).await;
    assert_eq!(renewed["renewed"], true);
    pass(&on, 60);
    let met = ok(&on, &bob, "acquire_build_slot", slot("BlueLake", json!({}))).await;
    assert_eq!(met["conflicts"].as_array().unwrap().len(), 1);
    pass(&on, 2);
    assert_eq!(ok(&on, &alice, "renew_build_slot", slot("GreenCastle", json!({}))).await["renewed"], false);
    assert_eq!(ok(&on, &alice, "release_build_slot", slot("GreenCastle", json!({}))).await["released"], false);
}

async fn found(on: &TestStore, caller: &Caller) -> Vec<i64> {
    let answer = ok(on, caller, "search_messages_product", json!({ "product_key": "shop", "query": "walrus" })).await;
    answer["result"].as_array().unwrap().iter().map(|hit| number(hit, "id")).collect()
}

async fn a_product_is_made_once_and_looked_through_for_its_parties_alone(on: TestStore) {
    const AWAY: &str = "/data/projects/frontend";
    let (alice, bob) = two(&on).await;
    for name in ["GreenCastle", "BlueLake"] {
        agent_in(&on, &bob, AWAY, name).await;
        let open = json!({ "project_key": AWAY, "agent_name": name, "policy": "open" });
        ok(&on, &bob, "set_contact_policy", open).await;
    }
    let made = ok(&on, &alice, "ensure_product", json!({ "product_key": "shop", "name": "The shop" })).await;
    assert_eq!(ok(&on, &bob, "ensure_product", json!({ "product_key": "shop" })).await, made);
    let here = send(&on, &alice, with(letter("walrus here"), json!({ "thread_id": "T" }))).await;
    let there = with(letter("walrus there"), json!({ "project_key": AWAY, "thread_id": "T", "body_md": "- a point" }));
    let there = send(&on, &bob, there).await;
    assert!(found(&on, &bob).await.is_empty(), "no project is linked");
    for key in [HOME, AWAY, AWAY] {
        ok(&on, &alice, "products_link", json!({ "product_key": "shop", "project_key": key })).await;
    }
    assert_eq!(found(&on, &bob).await, [there, here]);
    assert_eq!(found(&on, &alice).await, [here], "alice has nobody in the other project");
    let inbox = ok(&on, &bob, "fetch_inbox_product", json!({ "product_key": "shop", "agent_name": "bluelake" })).await;
    let shown: Vec<i64> = inbox["result"].as_array().unwrap().iter().map(|item| number(item, "id")).collect();
    assert_eq!(shown, [there, here]);
    let newest = json!({ "product_key": "shop", "agent_name": "BlueLake", "limit": 1 });
    let newest = ok(&on, &bob, "fetch_inbox_product", newest).await;
    assert_eq!((number(&newest["result"][0], "id"), &newest["has_more"]), (there, &json!(true)));
    assert_eq!(newest["result"].as_array().unwrap().len(), 1);
    assert_eq!(on.count("SELECT count(*) FROM mail_recipients WHERE read_at IS NOT NULL").await.unwrap(), 0);
    let thread = json!({ "product_key": "shop", "thread_id": "T" });
    let summed = ok(&on, &bob, "summarize_thread_product", thread.clone()).await;
    assert_eq!((summed["projects"].as_array().unwrap().len(), &summed["summary"]["total_messages"]), (2, &json!(2)));
    assert_eq!(ok(&on, &alice, "summarize_thread_product", thread.clone()).await["summary"]["total_messages"], 1);
    // The fields by which the same calls ask for less, or for more.
    let examples = with(thread, json!({ "include_examples": true, "agent_name": "BlueLake" }));
    let examples = ok(&on, &bob, "summarize_thread_product", examples).await;
    assert_eq!(subjects(examples["examples"].as_array().unwrap()), ["walrus here", "walrus there"]);
    let bodies = json!({ "product_key": "shop", "agent_name": "BlueLake", "include_bodies": true });
    let bodies = ok(&on, &bob, "fetch_inbox_product", bodies).await;
    let shown: Vec<String> = bodies["result"].as_array().unwrap().iter().map(|item| text(item, "body_md")).collect();
    assert_eq!(shown, ["- a point", "Hello."]);
    for (further, expected) in [
        (json!({ "proj": AWAY }), vec![there]),
        (json!({ "sender_name": "GreenCastle" }), vec![there, here]),
        (json!({ "sender": "project:data-projects-backend#GreenCastle" }), vec![here]),
        (json!({ "sender": "NobodyHere" }), vec![]),
        (json!({ "sender": "project:nowhere#GreenCastle" }), vec![]),
        (json!({ "thread_id": "T", "agent_name": "BlueLake" }), vec![there, here]),
        (json!({ "importance": "high" }), vec![]),
        (json!({ "until": "2000-01-01" }), vec![]),
    ] {
        let input = with(json!({ "product_key": "shop", "query": "walrus" }), further.clone());
        let answer = ok(&on, &bob, "search_messages_product", input).await;
        let ids: Vec<i64> = answer["result"].as_array().unwrap().iter().map(|hit| number(hit, "id")).collect();
        assert_eq!(ids, expected, "{further}");
    }
    let whole = json!({ "product_key": "shop", "query": "walrus", "include_body_md": true });
    assert_eq!(ok(&on, &bob, "search_messages_product", whole).await["result"][0]["body_md"], "- a point");
}

async fn what_is_asked_wrongly_is_refused(on: TestStore) {
    let (alice, _) = two(&on).await;
    ok(&on, &alice, "ensure_product", json!({ "product_key": "shop" })).await;
    for (tool, input, code) in [
        ("acquire_build_slot", slot("GreenCastle", json!({ "slot": "" })), Code::InvalidRequest),
        ("acquire_build_slot", slot("GreenCastle", json!({ "slot": "x".repeat(129) })), Code::InvalidRequest),
        ("acquire_build_slot", slot("GreenCastle", json!({ "ttl_seconds": -1 })), Code::InvalidRequest),
        ("renew_build_slot", slot("GreenCastle", json!({ "extend_seconds": -1 })), Code::InvalidRequest),
        ("ensure_product", json!({ "product_key": "a/b" }), Code::InvalidRequest),
        ("ensure_product", json!({ "product_key": "x".repeat(65) }), Code::InvalidRequest),
        ("products_link", json!({ "product_key": "none", "project_key": HOME }), Code::NotFound),
        ("products_link", json!({ "product_key": "shop", "project_key": "/none" }), Code::NotFound),
        ("search_messages_product", json!({ "product_key": "shop", "query": "x", "limit": 0 }), Code::InvalidRequest),
        ("fetch_inbox_product", json!({ "product_key": "shop", "agent_name": "BlueLake" }), Code::NotFound),
        ("summarize_thread_product", json!({ "product_key": "shop", "thread_id": "T" }), Code::NotFound),
    ] {
        assert_eq!(refusal(&on, &alice, tool, input.clone()).await, code, "{tool} {input}");
    }
}
