//! A server to which a short silence is a long one.

use std::time::Duration;

use serde_json::json;
use waybill_testkit::stores::TestStore;

use crate::support::ok;

waybill_testkit::both! {
    waybill_tasks::Settings { session_silence_s: 20, ..waybill_tasks::Settings::default() } =>
    a_session_begins_after_the_silence_that_is_set_and_not_after_two_shorter_ones,
}

async fn a_session_begins_after_the_silence_that_is_set_and_not_after_two_shorter_ones(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    for (silence_s, sessions) in [(0, 1), (15, 1), (15, 1), (25, 2)] {
        on.time.pass(Duration::from_secs(silence_s));
        let seen = ok(&on, &alice, "bootstrap", json!({})).await;
        assert_eq!(seen["relationship"]["sessions_count"], sessions, "after {silence_s} s");
    }
}
