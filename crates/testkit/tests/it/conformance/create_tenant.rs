use futures_util::future::join_all;
use serde_json::json;
use waybill_kernel::{Code, Role};
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{ok, refusal};

waybill_testkit::both! {
    a_tenant_gets_an_id_a_number_and_the_free_tier,
    a_name_is_taken_once_even_by_many_at_once,
    many_at_once_get_a_number_each,
    only_admins_of_the_default_tenant_may,
    bad_names_are_refused_and_nothing_written,
}

async fn a_tenant_gets_an_id_a_number_and_the_free_tier(on: TestStore) {
    let made = ok(&on, &on.admin, "create_tenant", json!({ "name": "Ünsal & Söhne" })).await;
    assert_eq!((&made["name"], &made["tier"]), (&json!("Ünsal & Söhne"), &json!("free")));
    let paid = ok(&on, &on.admin, "create_tenant", json!({ "name": "acme", "tier": "paid" })).await;
    assert_eq!(paid["tier"], "paid");
    let rows = on.rows("SELECT tenant, name FROM tenants ORDER BY tenant").await.unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.int(0).unwrap(), row.text(1).unwrap())).collect();
    assert_eq!(seen, [(1, "default"), (2, "Ünsal & Söhne"), (3, "acme")]);
}

async fn a_name_is_taken_once_even_by_many_at_once(on: TestStore) {
    let calls = (0..10).map(|_| on.call(&on.admin, "create_tenant", json!({ "name": "acme" })));
    let answers = join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(|error| error.code() == Code::AlreadyExists));
    assert_eq!(refusal(&on, &on.admin, "create_tenant", json!({ "name": "default" })).await, Code::AlreadyExists);
    // Case and spelling make another name, on both engines.
    ok(&on, &on.admin, "create_tenant", json!({ "name": "ACME" })).await;
    assert_eq!(on.count("SELECT count(*) FROM tenants").await.unwrap(), 3);
}

async fn many_at_once_get_a_number_each(on: TestStore) {
    let names: Vec<_> = (0..10).map(|number| format!("tenant-{number}")).collect();
    let calls = names.iter().map(|name| on.call(&on.admin, "create_tenant", json!({ "name": name })));
    assert!(join_all(calls).await.iter().all(Result::is_ok));
    let rows = on.rows("SELECT tenant FROM tenants ORDER BY tenant").await.unwrap();
    let numbers: Vec<_> = rows.iter().map(|row| row.int(0).unwrap()).collect();
    assert_eq!(numbers, (1..=11).collect::<Vec<_>>());
}

async fn only_admins_of_the_default_tenant_may(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let agent = caller(&on.admin, "agent:a", &[Role::Agent, Role::System]).unwrap();
    for caller in [other, agent] {
        assert_eq!(refusal(&on, &caller, "create_tenant", json!({ "name": "mine" })).await, Code::Forbidden);
        // No way to ask which names there are.
        assert_eq!(refusal(&on, &caller, "create_tenant", json!({ "name": "default" })).await, Code::Forbidden);
    }
}

async fn bad_names_are_refused_and_nothing_written(on: TestStore) {
    for wrong in ["", " acme", "a\u{0}b", "a\nb", &"x".repeat(65), "0198c0de-0000-7000-8000-000000000000"] {
        let code = refusal(&on, &on.admin, "create_tenant", json!({ "name": wrong })).await;
        assert_eq!(code, Code::InvalidRequest, "{wrong:?}");
    }
    let tier = json!({ "name": "acme", "tier": "golden" });
    assert_eq!(refusal(&on, &on.admin, "create_tenant", tier).await, Code::InvalidRequest);
    assert_eq!(on.count("SELECT count(*) FROM tenants").await.unwrap(), 1);
}
