//! What happens to meshes is posted by the lines that receipts are posted by.

use serde_json::json;
use waybill_store::effects::Follow;
use waybill_testkit::race::mesh_keys;
use waybill_testkit::stores::TestStore;
use waybill_webhooks::{FanOut, Lines};

use crate::receiver::{Do, Receiver};
use crate::support::{deliveries, fan_out, ok, reach, settings, sweep, text, webhook};

waybill_testkit::both! {
    audit_events_of_meshes_are_posted_to_those_who_name_them,
    of_meshes_only_the_tenants_own_are_told,
}

const URL: &str = "https://hooks.example/";

async fn fan_out_all(on: &TestStore) {
    fan_out(on).await;
    sweep(on, Follow(FanOut::of_meshes(&settings()))).await;
}

async fn audit_events_of_meshes_are_posted_to_those_who_name_them(on: TestStore) {
    let receiver = Receiver::start(|_| Do::Answer(204)).await;
    let kinds = ["mesh.mesh_created", "mesh.member_revoked"];
    let (id, _) = webhook(&on, &on.admin, json!({ "url": receiver.url, "kinds": kinds })).await;
    let (receipts, _) = webhook(&on, &on.admin, json!({ "url": URL })).await;
    let made = ok(&on, &on.admin, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
    let policy = json!({ "mesh": "team", "connection_policy": "prefer_oldest" });
    ok(&on, &on.admin, "set_mesh_policy", policy).await;
    ok(&on, &on.admin, "revoke_mesh_member", json!({ "mesh": "team", "member": "alice" })).await;
    for _ in 0..2 {
        fan_out_all(&on).await;
    }
    assert!(deliveries(&on, &receipts).await.is_empty(), "all receipts are wanted, and no more");
    let mut told: Vec<_> = deliveries(&on, &id).await.iter().map(|delivery| text(delivery, "receipt_type")).collect();
    told.sort();
    assert_eq!(told, ["mesh.member_revoked", "mesh.mesh_created"]);
    assert_eq!(reach(&on, Lines::Healthy).await.done, 1);
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    let bodies: Vec<_> = requests.iter().map(crate::receiver::Request::json).collect();
    let created = bodies.iter().find(|body| body["type"] == "mesh.mesh_created").unwrap();
    let data = &created["data"];
    assert_eq!((&data["mesh"], &data["mesh_id"], &data["seq"]), (&json!("team"), &made["mesh_id"], &json!(1)));
    assert_eq!((&data["kind"], &data["member_id"]), (&json!("mesh_created"), &made["member_id"]));
    assert_eq!(created["timestamp"], data["at"]);
    let revoked = bodies.iter().find(|body| body["type"] == "mesh.member_revoked").unwrap();
    assert_eq!(revoked["data"]["data"]["by"], json!(on.admin.principal.to_string()));
}

async fn of_meshes_only_the_tenants_own_are_told(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let kinds = json!({ "url": URL, "kinds": ["mesh.mesh_created"] });
    let (ours, _) = webhook(&on, &on.admin, kinds.clone()).await;
    webhook(&on, &other, kinds).await;
    ok(&on, &other, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
    fan_out_all(&on).await;
    assert!(deliveries(&on, &ours).await.is_empty());
    assert_eq!(on.count("SELECT count(*) FROM webhook_deliveries").await.unwrap(), 1);
}
