use serde_json::json;
use waybill_kernel::{Code, Role};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{ok, refusal, refused, text};

waybill_testkit::both! {
    the_secret_is_shown_once_and_stored_in_a_box,
    what_cannot_be_reached_or_read_is_refused,
    a_tenant_has_a_number_of_webhooks_at_most,
    only_admins_make_webhooks,
}

const URL: &str = "https://hooks.example/waybill";

async fn the_secret_is_shown_once_and_stored_in_a_box(on: TestStore) {
    let input = json!({ "url": URL, "kinds": ["task.failed", "task.completed"], "description": "the lamp" });
    let made = ok(&on, &on.admin, "create_webhook", input).await;
    assert_eq!(made["kinds"], json!(["task.completed", "task.failed"]));
    let secret = text(&made, "secret");
    assert_eq!((secret.len(), &secret[..6]), (6 + 44, "whsec_"));
    let shown = ok(&on, &on.admin, "list_webhooks", json!({})).await;
    assert_eq!(shown["webhooks"][0]["description"], "the lamp");
    assert!(!shown.to_string().contains("secret"));
    let rows = on.rows("SELECT secret FROM webhooks").await.unwrap();
    let stored = rows[0].bytes(0).unwrap();
    assert_eq!(stored.len(), 1 + 8 + 24 + 32 + 16);
    let other = ok(&on, &on.admin, "create_webhook", json!({ "url": URL })).await;
    assert_ne!(other["secret"], made["secret"]);
}

async fn what_cannot_be_reached_or_read_is_refused(on: TestStore) {
    for (url, code) in [
        ("", Code::InvalidRequest),
        ("hooks.example", Code::InvalidRequest),
        ("ftp://hooks.example/", Code::InvalidRequest),
        ("file:///etc/passwd", Code::InvalidRequest),
        ("https://user:secret@hooks.example/", Code::InvalidRequest),
        ("https://hooks.example:25/", Code::AddressRefused),
        ("http://127.0.0.1:8080/", Code::AddressRefused),
        ("http://2130706433/", Code::AddressRefused),
        ("http://[::ffff:10.0.0.1]/", Code::AddressRefused),
        ("http://169.254.169.254/latest", Code::AddressRefused),
    ] {
        assert_eq!(refusal(&on, &on.admin, "create_webhook", json!({ "url": url })).await, code, "{url}");
    }
    for input in [
        json!({}),
        json!({ "url": URL, "kinds": ["task.painted"] }),
        json!({ "url": URL, "kinds": vec!["task.failed"; 65] }),
        json!({ "url": URL, "description": "a\nb" }),
        json!({ "url": URL, "description": "x".repeat(501) }),
        json!({ "url": format!("{URL}{}", "x".repeat(2_048)) }),
        json!({ "url": URL, "minted": null }),
        json!({ "url": URL, "secret": "whsec_mine" }),
    ] {
        assert_eq!(refusal(&on, &on.admin, "create_webhook", input.clone()).await, Code::InvalidRequest, "{input}");
    }
    assert_eq!(on.count("SELECT count(*) FROM webhooks").await.unwrap(), 0);
}

async fn a_tenant_has_a_number_of_webhooks_at_most(on: TestStore) {
    for _ in 0..100 {
        ok(&on, &on.admin, "create_webhook", json!({ "url": URL })).await;
    }
    let error = refused(&on, &on.admin, "create_webhook", json!({ "url": URL })).await;
    assert_eq!((error.code(), error.detail("limit")), (Code::TooManyWebhooks, Some(&json!(100))));
    let other = on.tenant("other").await.unwrap();
    ok(&on, &other, "create_webhook", json!({ "url": URL })).await;
    let first = ok(&on, &on.admin, "list_webhooks", json!({ "limit": 1 })).await["webhooks"][0]["webhook_id"].take();
    ok(&on, &on.admin, "delete_webhook", json!({ "webhook_id": first })).await;
    ok(&on, &on.admin, "create_webhook", json!({ "url": URL })).await;
}

async fn only_admins_make_webhooks(on: TestStore) {
    for role in [Role::Agent, Role::Worker, Role::System, Role::Delegate] {
        let caller = stores::caller(&on.admin, "agent:x", &[role]).unwrap();
        for entry in on.registry.entries().filter(|entry| entry.spec().name.contains("webhook")) {
            assert!(!entry.spec().allows(&caller) && entry.spec().allows(&on.admin), "{role} {}", entry.spec().name);
            assert!(!entry.spec().tool);
        }
    }
}
