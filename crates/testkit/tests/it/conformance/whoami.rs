use serde_json::json;
use waybill_kernel::{Code, Role, Scope, Scopes};
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{ok, refusal};

waybill_testkit::both! {
    a_key_is_told_what_it_is_good_for,
}

async fn a_key_is_told_what_it_is_good_for(on: TestStore) {
    let roles = [Role::Delegate, Role::Worker, Role::Agent];
    let mut scheduler = caller(&on.admin, "service:scheduler", &roles).unwrap();
    scheduler.scopes = Scopes::new([Scope::TasksLease, Scope::TasksWrite]);
    let expected = json!({
        "principal": "service:scheduler", "roles": ["agent", "worker", "delegate"],
        "scopes": ["tasks:write", "tasks:lease"],
    });
    assert_eq!(ok(&on, &scheduler, "whoami", json!({})).await, expected);
    assert_eq!(ok(&on, &on.admin, "whoami", json!({})).await["roles"], json!(["admin"]));
    assert_eq!(refusal(&on, &on.admin, "whoami", json!({ "x": 1 })).await, Code::InvalidRequest);
}
