use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::stores::TestStore;

use super::ledger::worker;
use crate::support::{ok, refusal};

waybill_testkit::both! {
    everybody_may_ask_what_the_server_is,
}

async fn everybody_may_ask_what_the_server_is(on: TestStore) {
    let expected = json!({
        "receipt_mode": "standalone", "memorygate_url": null, "instance_id": "",
        "capabilities": ["lease_based_execution", "receipt_emission"], "version": "0.3.0", "spec": "asyncgate/0.3.0",
    });
    for caller in [on.agent("alice").unwrap(), worker(&on, "w"), on.admin.clone()] {
        assert_eq!(ok(&on, &caller, "get_config", json!({})).await, expected);
    }
    assert_eq!(refusal(&on, &on.admin, "get_config", json!({ "x": 1 })).await, Code::InvalidRequest);
}
