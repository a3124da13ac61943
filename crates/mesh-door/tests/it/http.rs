//! Requests that members sign.

use serde_json::json;
use waybill_kernel::entropy::OsEntropy;
use waybill_mesh_protocol::request_signature::{BodyHash, RequestNonce, Signed};
use waybill_mesh_protocol::{Identity, sign_request};

use crate::world::{World, dm};

#[tokio::test]
async fn only_what_a_member_has_signed_is_carried_out() {
    let world = World::start().await;
    let target = "/mesh/v1/members";
    let unsigned = world.request("GET", target, None, "").await;
    assert_eq!((unsigned.status, &unsigned.json["error"]), (401, &json!("unauthorized")));
    let signature = world.signature(&world.owner, "GET", target, b"");
    let good = world.request("GET", target, Some(&signature), "").await;
    assert_eq!((good.status, &good.json["members"][0]["name"]), (200, &json!("owner")));
    // Whoever has heard it cannot have it carried out again.
    let replayed = world.request("GET", target, Some(&signature), "").await;
    assert_eq!((replayed.status, &replayed.json["error"]), (403, &json!("signature_does_not_match")));
    for (method, signed, sent) in [("POST", b"{}".to_vec(), b"{ }".to_vec()), ("GET", b"".to_vec(), b"x".to_vec())] {
        let signature = world.signature(&world.owner, method, target, &signed);
        assert_eq!(world.request(method, target, Some(&signature), sent).await.status, 403);
    }
    let other = world.signature(&world.owner, "GET", "/mesh/v1/topics", b"");
    assert_eq!(world.request("GET", target, Some(&other), "").await.status, 403);
    let stranger = Identity::generate(&OsEntropy);
    assert_eq!(world.get(&stranger, target).await.status, 401);
    let late = waybill_kernel::Time::from_micros(world.now().micros() - 61_000_000);
    let nonce = RequestNonce::random(&OsEntropy);
    let late = sign_request(&world.owner, world.mesh, Signed::new("GET", target, b""), late, nonce);
    let late = world.request("GET", target, Some(&late), "").await;
    assert_eq!((late.status, &late.json["error"]), (403, &json!("request_time_too_skewed")));
    for broken in ["Bearer x", "Waybill-Member mesh=1", ""] {
        let refused = world.request("GET", target, Some(broken), "").await;
        assert!((400..=403).contains(&refused.status), "{broken}: {}", refused.status);
    }
}

#[tokio::test]
async fn a_request_says_nothing_about_who_signs_it() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    for body in [
        json!({ "name": "x", "member": world.mesh }),
        json!({ "name": "x", "mesh": world.mesh }),
        json!({ "name": "x", "unknown": 1 }),
        json!({}),
        json!([]),
    ] {
        let refused = world.post(&bob, "/mesh/v1/rename", &body).await;
        assert_eq!((refused.status, &refused.json["error"]), (400, &json!("invalid_request")), "{body}");
    }
    assert_eq!(world.get(&bob, "/mesh/v1/members?limit=x").await.status, 400);
    assert_eq!(world.get(&bob, "/mesh/v1/members?who=me").await.status, 400);
    assert_eq!(world.get(&bob, "/mesh/v1/nothing").await.status, 404);
    assert_eq!(world.get(&bob, "/mesh/v1/rename").await.status, 405);
    assert_eq!(world.post(&bob, "/mesh/v1/invites", &json!({})).await.status, 403, "only the owner invites");
    assert_eq!(world.post(&bob, "/mesh/v1/leave", &json!({})).await.status, 200);
    assert_eq!(world.get(&bob, "/mesh/v1/members").await.status, 403);
}

#[tokio::test]
async fn what_was_accepted_is_answered_after_its_sender_was_revoked() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let body = json!({ "client_message_id": "m-1", "envelope": dm(&world.owner, "last words") });
    assert_eq!(world.post(&bob, "/mesh/v1/messages", &body).await.status, 201);
    let target = format!("/mesh/v1/members/{}/revoke", bob.public_key());
    assert_eq!(world.post(&world.owner, &target, &json!({})).await.status, 200);
    assert_eq!(world.post(&bob, "/mesh/v1/messages", &body).await.status, 200);
    let body = json!({ "client_message_id": "m-2", "envelope": dm(&world.owner, "more words") });
    let refused = world.post(&bob, "/mesh/v1/messages", &body).await;
    assert_eq!((refused.status, &refused.json["error"]), (403, &json!("member_revoked")));
}

#[tokio::test]
async fn everybody_may_ask_what_the_broker_can_do() {
    let world = World::start().await;
    let compat = world.request("GET", "/mesh/v1/compat", None, "").await;
    assert_eq!((compat.status, &compat.json["features"]["client_message_id_dedupe"]["version"]), (200, &json!(2)));
    assert_eq!(world.request("POST", "/mesh/v1/compat", None, "{}").await.status, 405);
    let nowhere =
        world.request("POST", "/mesh/v1/join/challenge", None, json!({ "mesh": OWNERLESS }).to_string()).await;
    assert_eq!(nowhere.status, 404);
    let large = world.request("POST", "/mesh/v1/join", None, "x".repeat(10_000)).await;
    assert_eq!(large.status, 413);
}

const OWNERLESS: &str = "019a8d5e-0000-7000-8000-000000000000";

#[tokio::test]
async fn a_file_is_stored_and_read_chunk_by_chunk() {
    let world = World::start().await;
    let bob = world.join("bob").await;
    let content: Vec<u8> = (0..2_500_000_u32).flat_map(|number| (number as u8).to_le_bytes()).collect();
    let target = "/mesh/v1/files?persistent=false";
    let signature = world.signature(&world.owner, "POST", target, &content);
    let stored = world.request("POST", target, Some(&signature), content.clone()).await;
    assert_eq!(stored.status, 201, "{}", stored.json);
    let file = format!("/mesh/v1/files/{}", stored.json["file_id"].as_str().unwrap());
    let read = world.get(&bob, &file).await;
    assert_eq!(read.status, 200);
    assert!(read.body == content, "{} bytes came back", read.body.len());
    let listed = world.get(&bob, "/mesh/v1/files").await;
    assert_eq!(listed.json["files"][0]["size_bytes"], content.len());

    // With its digest in a header it is known before the first byte whether it was signed.
    let headers = |hash: BodyHash, signed: &[u8]| {
        format!(
            "Authorization: {}\r\nWaybill-Body-Sha256: {hash}\r\n",
            world.signature(&world.owner, "POST", target, signed)
        )
    };
    let said = headers(BodyHash::of(&content), &content);
    assert_eq!(world.raw("POST", target, &said, content.clone()).await.status, 201);
    let forged = headers(BodyHash::of(&content), b"something else");
    assert_eq!(world.raw("POST", target, &forged, content.clone()).await.status, 403);
    // What came is not what was signed: nobody can read it.
    let mut changed = content.clone();
    changed[1_000_000] ^= 1;
    let said = headers(BodyHash::of(&content), &content);
    assert_eq!(world.raw("POST", target, &said, changed.clone()).await.status, 403);
    let signature = world.signature(&world.owner, "POST", target, &content);
    assert_eq!(world.request("POST", target, Some(&signature), changed).await.status, 403);
    let listed = world.get(&bob, "/mesh/v1/files").await;
    assert_eq!(listed.json["files"].as_array().unwrap().len(), 2, "{}", listed.json);
    assert_eq!(world.get(&bob, &format!("/mesh/v1/files/{OWNERLESS}")).await.status, 404);
}
