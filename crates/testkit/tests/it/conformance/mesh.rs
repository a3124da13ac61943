//! What operators do with meshes, as every door calls it: by name, with JSON. What members do is in the tests of meshes.

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::race::mesh_keys;
use waybill_testkit::stores::TestStore;

use crate::support::{ok, refusal};

waybill_testkit::both! {
    a_mesh_is_made_listed_shown_set_and_checked,
    a_stranger_finds_no_mesh_of_ours,
    what_is_no_mesh_is_refused,
    an_operator_revokes_members_and_closes_meshes,
}

async fn a_mesh_is_made_listed_shown_set_and_checked(on: TestStore) {
    let new = |slug: &str| json!({ "slug": slug, "name": "alice", "keys": mesh_keys() });
    let made = ok(&on, &on.admin, "create_mesh", new("team")).await;
    assert_eq!((&made["plaintext"], &made["connection_policy"]), (&json!(false), &json!("prefer_newest")));
    assert_eq!(ok(&on, &on.admin, "create_mesh", new("team")).await, made, "the answer to the first call was lost");
    let bob = json!({ "slug": "team", "name": "bob", "keys": mesh_keys() });
    assert_eq!(refusal(&on, &on.admin, "create_mesh", bob).await, Code::AlreadyExists);
    ok(&on, &on.admin, "create_mesh", new("crew")).await;
    let first = ok(&on, &on.admin, "list_meshes", json!({ "limit": 1 })).await;
    assert_eq!(first["meshes"][0]["slug"], "crew");
    let rest = ok(&on, &on.admin, "list_meshes", json!({ "cursor": first["next_cursor"] })).await;
    assert_eq!((rest["meshes"].as_array().map(Vec::len), &rest["meshes"][0]["slug"]), (Some(1), &json!("team")));
    assert_eq!(rest.get("next_cursor"), None);
    let policy = json!({ "mesh": "team", "connection_policy": "allow_concurrent" });
    ok(&on, &on.admin, "set_mesh_policy", policy).await;
    let shown = ok(&on, &on.admin, "get_mesh", json!({ "mesh": "team" })).await;
    assert_eq!((&shown["connection_policy"], &shown["members"]), (&json!("allow_concurrent"), &json!(1)));
    assert_eq!((&shown["owner_name"], &shown["owner_key"]), (&json!("alice"), &mesh_keys()["ed25519"]));
    let check = ok(&on, &on.admin, "check_mesh", json!({ "mesh": "team" })).await;
    assert_eq!((&check["findings"], &check["looked_at"], check.get("next_cursor")), (&json!([]), &json!(0), None));
}

async fn a_stranger_finds_no_mesh_of_ours(on: TestStore) {
    ok(&on, &on.admin, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
    let stranger = on.tenant("other").await.unwrap();
    assert_eq!(ok(&on, &stranger, "list_meshes", json!({})).await["meshes"], json!([]));
    for (name, input) in [
        ("get_mesh", json!({ "mesh": "team" })),
        ("check_mesh", json!({ "mesh": "team" })),
        ("set_mesh_policy", json!({ "mesh": "team", "connection_policy": "prefer_oldest" })),
        ("revoke_mesh_member", json!({ "mesh": "team", "member": "alice" })),
        ("close_mesh", json!({ "mesh": "team" })),
    ] {
        assert_eq!(refusal(&on, &stranger, name, input).await, Code::NotFound, "{name}");
    }
    // The name is the tenant's own.
    ok(&on, &stranger, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
}

async fn what_is_no_mesh_is_refused(on: TestStore) {
    let mut foreign = mesh_keys();
    foreign["x25519"] = json!("00".repeat(32));
    for (name, input, code) in [
        ("create_mesh", json!({ "slug": "Team", "name": "alice", "keys": mesh_keys() }), Code::InvalidRequest),
        ("create_mesh", json!({ "slug": "team", "name": "", "keys": mesh_keys() }), Code::InvalidRequest),
        ("create_mesh", json!({ "slug": "team", "name": "alice" }), Code::InvalidRequest),
        (
            "create_mesh",
            json!({ "slug": "team", "name": "alice", "keys": mesh_keys(), "secret": 1 }),
            Code::InvalidRequest,
        ),
        // The box key is not signed by the other one.
        ("create_mesh", json!({ "slug": "team", "name": "alice", "keys": foreign }), Code::SignatureDoesNotMatch),
        ("list_meshes", json!({ "limit": 0 }), Code::InvalidRequest),
        ("list_meshes", json!({ "cursor": "00" }), Code::InvalidCursor),
        ("get_mesh", json!({ "mesh": "nobody" }), Code::NotFound),
        ("set_mesh_policy", json!({ "mesh": "nobody", "connection_policy": "prefer_oldest" }), Code::NotFound),
        ("set_mesh_policy", json!({ "mesh": "nobody", "connection_policy": "any" }), Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, &on.admin, name, input.clone()).await, code, "{name} {input}");
    }
    ok(&on, &on.admin, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
    for cursor in ["", "zz", "09", "0200", "04ff"] {
        let check = json!({ "mesh": "team", "cursor": cursor });
        assert_eq!(refusal(&on, &on.admin, "check_mesh", check).await, Code::InvalidCursor, "{cursor}");
    }
}

async fn an_operator_revokes_members_and_closes_meshes(on: TestStore) {
    ok(&on, &on.admin, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
    let nobody = json!({ "mesh": "team", "member": "bob" });
    assert_eq!(refusal(&on, &on.admin, "revoke_mesh_member", nobody).await, Code::MemberUnknown);
    let alice = json!({ "mesh": "team", "member": "alice" });
    let revoked = ok(&on, &on.admin, "revoke_mesh_member", alice.clone()).await;
    assert_eq!(revoked["revoked"], true);
    // The name is nobody's now; the key says who was meant.
    assert_eq!(refusal(&on, &on.admin, "revoke_mesh_member", alice).await, Code::MemberUnknown);
    let by_key = json!({ "mesh": "team", "member": mesh_keys()["ed25519"] });
    assert_eq!(ok(&on, &on.admin, "revoke_mesh_member", by_key).await["revoked"], false);
    let by = on.admin.principal.to_string();
    let said = format!("SELECT count(*) FROM mesh_events WHERE kind = 'member_revoked' AND data LIKE '%{by}%'");
    assert_eq!(on.count(&said).await.unwrap(), 1);
    ok(&on, &on.admin, "create_mesh", json!({ "slug": "crew", "name": "alice", "keys": mesh_keys() })).await;
    let closed = ok(&on, &on.admin, "close_mesh", json!({ "mesh": "crew" })).await;
    assert_eq!((&closed["revoked"], &closed["remaining"]), (&json!(1), &json!(0)));
    let again = ok(&on, &on.admin, "close_mesh", json!({ "mesh": "crew" })).await;
    assert_eq!((&again["revoked"], &again["remaining"]), (&json!(0), &json!(0)));
    assert_eq!(ok(&on, &on.admin, "get_mesh", json!({ "mesh": "crew" })).await["members"], 0);
}
