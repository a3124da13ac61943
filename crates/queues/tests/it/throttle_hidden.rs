//! Where only admins see and set throttles, and everybody is held to them.

use waybill_kernel::{Caller, Code, Role};
use waybill_queues::Settings;
use waybill_queues::ops::get_queue_attributes::GetQueueAttributes;
use waybill_testkit::both;
use waybill_testkit::stores::{TestStore, caller};

use crate::support::{JOBS, attributes_of, body, call, jobs, queue};
use crate::throttle::{SENDS, send_many, set};

both! {
    super::hidden() =>
    rule_19_only_admins_see_and_set_throttles_and_everybody_is_held_to_them,
}

fn hidden() -> Settings {
    Settings { throttle_attributes_admin_only: true, ..Settings::default() }
}

fn get(name: &str) -> GetQueueAttributes {
    GetQueueAttributes { queue_url: JOBS.to_owned(), attribute_names: vec![name.to_owned()] }
}

async fn rule_19_only_admins_see_and_set_throttles_and_everybody_is_held_to_them(on: TestStore) {
    let agent: Caller = caller(&on.admin, "agent:alice", &[Role::Agent]).unwrap();
    jobs(&on, &SENDS).await;
    assert_eq!(attributes_of(&on, "jobs", &["All"]).await["ThrottleSendCapacity"], "10");
    let all = call(&on, &agent, get("All")).await.unwrap().attributes;
    assert!(all.contains_key("VisibilityTimeout") && !all.keys().any(|name| name.starts_with("Throttle")), "{all:?}");
    let refusals = [
        call(&on, &agent, get("ThrottleSendCapacity")).await.map(drop),
        call(&on, &agent, set(&[("ThrottleSendCapacity", "20")])).await.map(drop),
        call(&on, &agent, queue("mine", &SENDS)).await.map(drop),
        call(&on, &agent, queue("jobs", &SENDS)).await.map(drop),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().code(), Code::InvalidAttributeName);
    }
    call(&on, &agent, set(&[("VisibilityTimeout", "7")])).await.unwrap();
    call(&on, &agent, queue("mine", &[])).await.unwrap();
    send_many(&on, 5).await;
    for _ in 0..5 {
        call(&on, &agent, body("m")).await.unwrap();
    }
    for who in [&agent, &on.admin] {
        assert_eq!(call(&on, who, body("m")).await.map(drop).unwrap_err().code(), Code::Throttling);
    }
}
