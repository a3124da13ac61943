use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use waybill_access::Settings;
use waybill_access::sweeps::EndedKeys;
use waybill_kernel::{Code, Role};
use waybill_store::effects::{Holder, sweep_once};
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{ok, refusal};

waybill_testkit::both! {
    what_ran_is_shown_with_its_rows_and_its_lag,
    only_admins_of_the_default_tenant_may,
}

async fn what_ran_is_shown_with_its_rows_and_its_lag(on: TestStore) {
    assert_eq!(ok(&on, &on.admin, "list_sweeps", json!({})).await, json!({ "sweeps": [], "feeds": [], "jobs": [] }));
    let holder = Holder::new(&on.store);
    sweep_once(&on.store, &Arc::new(EndedKeys::new(&Settings::default())), holder).await.unwrap();
    let shown = ok(&on, &on.admin, "list_sweeps", json!({})).await["sweeps"].take();
    assert_eq!(shown.as_array().unwrap().len(), 1);
    let sweep = &shown[0];
    assert_eq!((&sweep["name"], &sweep["interval_ms"]), (&json!("keys.ended"), &json!(3_600_000)));
    assert_eq!((&sweep["total_rows"], &sweep["failures"], &sweep["lag_ms"]), (&json!(0), &json!(0), &json!(0)));
    assert_eq!(sweep["holder"], json!(holder.id.to_string()));
    assert!(sweep["last_finished_at"].is_string() && sweep.get("last_error").is_none(), "{sweep}");

    on.time.pass(Duration::from_secs(2 * 3600));
    let late = ok(&on, &on.admin, "list_sweeps", json!({})).await["sweeps"][0]["lag_ms"].as_i64().unwrap();
    assert!((3_600_000..=4_500_000).contains(&late), "an hour late, and up to a fifth of one: {late}");
}

async fn only_admins_of_the_default_tenant_may(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let system = caller(&on.admin, "system:sweeper", &[Role::System]).unwrap();
    for caller in [other, system] {
        assert_eq!(refusal(&on, &caller, "list_sweeps", json!({})).await, Code::Forbidden);
    }
}
