use serde_json::json;
use waybill_kernel::{Code, Role};
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{ok, pages, refusal, text};

waybill_testkit::both! {
    pages_are_disjoint_and_oldest_first,
    only_admins_of_the_default_tenant_may,
    bad_cursors_and_limits_are_refused,
}

async fn pages_are_disjoint_and_oldest_first(on: TestStore) {
    let names = ["default", "z", "a", "Z", "ä"];
    for name in &names[1..] {
        on.tenant(name).await.unwrap();
    }
    let pages = pages(&on, &on.admin, "list_tenants", json!({ "limit": 2 }), "tenants", "name").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat(), names);
}

async fn only_admins_of_the_default_tenant_may(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let system = caller(&on.admin, "system:sweeper", &[Role::System]).unwrap();
    for caller in [other, system] {
        assert_eq!(refusal(&on, &caller, "list_tenants", json!({})).await, Code::Forbidden);
    }
}

async fn bad_cursors_and_limits_are_refused(on: TestStore) {
    on.tenant("other").await.unwrap();
    let cursor = text(&ok(&on, &on.admin, "list_tenants", json!({ "limit": 1 })).await, "next_cursor");
    assert_eq!(ok(&on, &on.admin, "list_tenants", json!({ "cursor": cursor })).await["tenants"][0]["name"], "other");
    for wrong in ["", "00", &cursor[2..], &format!("{cursor}00")] {
        let code = refusal(&on, &on.admin, "list_tenants", json!({ "cursor": wrong })).await;
        assert_eq!(code, Code::InvalidCursor, "{wrong:?}");
    }
    assert_eq!(refusal(&on, &on.admin, "list_tenants", json!({ "limit": 0 })).await, Code::InvalidRequest);
}
