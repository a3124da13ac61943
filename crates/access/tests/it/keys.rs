//! The life of a key through its operations, on both engines.

use std::collections::HashSet;

use serde_json::json;
use waybill_access::ops::{CreateKey, CreateTenant, ListKeys, RevokeKey, RotateKey};
use waybill_kernel::Code;

use crate::world::{World, code};

async fn life_of_a_key(world: World) {
    let made = world.run::<CreateKey>(json!({"principal": "worker:w1", "expires_in_seconds": 100_000})).await.unwrap();
    let caller = world.access.authenticate(made.bearer()).await.unwrap();
    assert_eq!((caller.principal.to_string(), caller.roles.to_string()), ("worker:w1".into(), "worker".into()));

    world.pass(1000);
    let next = world.run::<RotateKey>(json!({"key_id": made.key_id, "overlap_seconds": 600})).await.unwrap();
    assert_eq!((&next.principal, &next.roles, &next.scopes), (&made.principal, &made.roles, &made.scopes));
    let lifetime = next.expires_at.unwrap().since(made.expires_at.unwrap()).as_secs();
    assert!((999..=1001).contains(&lifetime), "a successor lives as long as its predecessor was made for: {lifetime}");
    let again = world.run::<RotateKey>(json!({"key_id": made.key_id})).await;
    assert_eq!(code(again), Code::InvalidStateTransition);

    // Both are good during the overlap, the new one alone afterwards.
    assert_eq!((world.refusal(made.bearer()).await, world.refusal(next.bearer()).await), (None, None));
    world.pass(601);
    assert_eq!(world.refusal(made.bearer()).await, Some(Code::Unauthorized));
    assert_eq!(world.refusal(next.bearer()).await, None);

    let first = world.run::<RevokeKey>(json!({"key_id": next.key_id})).await.unwrap();
    let second = world.run::<RevokeKey>(json!({"key_id": next.key_id})).await.unwrap();
    assert_eq!((first.ok, second.ok, first.revoked_at), (true, false, second.revoked_at));
    assert_eq!(code(world.run::<RotateKey>(json!({"key_id": next.key_id})).await), Code::InvalidStateTransition);
    for result in [
        world.run::<RevokeKey>(json!({"key_id": "000000000000"})).await.map(drop),
        world.run::<RotateKey>(json!({"key_id": "000000000000"})).await.map(drop),
    ] {
        assert_eq!(code(result), Code::NotFound);
    }

    let list = world.run::<ListKeys>(json!({})).await.unwrap();
    let shown = serde_json::to_string(&list).unwrap();
    assert!(!shown.contains("argon2") && !shown.contains("aga_"), "{shown}");
    let ids: Vec<_> = list.keys.iter().map(|key| key.key_id).collect();
    assert_eq!(ids, [next.key_id, made.key_id, world.first_key.key_id], "newest first");
    assert_eq!(list.keys[0].revoked_at, Some(first.revoked_at));
    assert_eq!(list.keys[1].replaced_by, Some(next.key_id));
    assert_eq!(list.keys[2].created_by.to_string(), "system:asyncgate");
}

#[tokio::test]
async fn a_key_is_made_used_rotated_and_revoked_on_sqlite() {
    life_of_a_key(World::sqlite().await).await;
}

#[tokio::test]
async fn a_key_is_made_used_rotated_and_revoked_on_postgres() {
    life_of_a_key(World::postgres().await).await;
}

#[tokio::test]
async fn an_overlap_of_zero_ends_the_old_key_now() {
    let world = World::sqlite().await;
    let key = world.first_key.key.expose();
    let next = world.run::<RotateKey>(json!({"key_id": world.first_key.key_id, "overlap_seconds": 0})).await.unwrap();
    assert_eq!(next.expires_at, None);
    assert_eq!(world.refusal(key).await, Some(Code::Unauthorized));
    assert_eq!(world.refusal(next.bearer()).await, None);
    let longer = world.run::<RotateKey>(json!({"key_id": next.key_id, "overlap_seconds": 2_592_001})).await;
    assert_eq!(code(longer), Code::InvalidRequest);
}

async fn tenants_apart(world: World) {
    let tenant = world.run::<CreateTenant>(json!({"name": "acme"})).await.unwrap();
    let for_acme = |who: &str| json!({"principal": who, "role": "admin", "tenant": "acme"});
    let theirs = world.run::<CreateKey>(for_acme("human:boss")).await.unwrap();
    let boss = world.access.authenticate(theirs.bearer()).await.unwrap();
    assert_eq!(boss.tenant_id, tenant.tenant_id.0);
    assert_ne!(boss.tenant, world.admin.tenant);

    let seen = |keys: waybill_access::ops::Keys| keys.keys.iter().map(|key| key.key_id).collect::<Vec<_>>();
    assert_eq!(seen(world.run_as::<ListKeys>(&boss, json!({})).await.unwrap()), [theirs.key_id]);
    assert_eq!(seen(world.run::<ListKeys>(json!({})).await.unwrap()), [world.first_key.key_id]);

    let ours = json!({"key_id": world.first_key.key_id});
    assert_eq!(code(world.run_as::<RevokeKey>(&boss, ours.clone()).await), Code::NotFound);
    assert_eq!(code(world.run_as::<RotateKey>(&boss, ours).await), Code::NotFound);
    assert_eq!(code(world.run_as::<CreateKey>(&boss, for_acme("human:other")).await), Code::Forbidden);
    let default = json!({"principal": "human:x", "role": "admin", "tenant": "default"});
    assert_eq!(code(world.run_as::<CreateKey>(&boss, default).await), Code::Forbidden);
    let nowhere = json!({"principal": "human:x", "tenant": "nobody"});
    assert_eq!(code(world.run::<CreateKey>(nowhere).await), Code::NotFound);

    // By id as well as by name, and without either in the maker's own tenant.
    let by_id = json!({"principal": "agent:b", "tenant": tenant.tenant_id});
    world.run::<CreateKey>(by_id).await.unwrap();
    world.run_as::<CreateKey>(&boss, json!({"principal": "agent:c"})).await.unwrap();
    assert_eq!(world.run_as::<ListKeys>(&boss, json!({})).await.unwrap().keys.len(), 3);
    assert_eq!(world.run::<ListKeys>(json!({})).await.unwrap().keys.len(), 1);
}

#[tokio::test]
async fn one_tenants_keys_are_nothing_to_another_on_sqlite() {
    tenants_apart(World::sqlite().await).await;
}

#[tokio::test]
async fn one_tenants_keys_are_nothing_to_another_on_postgres() {
    tenants_apart(World::postgres().await).await;
}

#[tokio::test]
async fn pages_are_disjoint_and_complete() {
    let world = World::sqlite().await;
    for number in 0..4 {
        world.run::<CreateKey>(json!({"principal": format!("agent:{number}")})).await.unwrap();
    }
    let mut seen = HashSet::new();
    let mut cursor = None;
    let mut pages = Vec::new();
    loop {
        let page = world.run::<ListKeys>(json!({"limit": 2, "cursor": cursor})).await.unwrap();
        pages.push(page.keys.len());
        assert!(page.keys.iter().all(|key| seen.insert(key.key_id)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((pages, seen.len()), (vec![2, 2, 1], 5));
    assert_eq!(code(world.run::<ListKeys>(json!({"limit": 0})).await), Code::InvalidRequest);
    assert_eq!(code(world.run::<ListKeys>(json!({"cursor": "x"})).await), Code::InvalidCursor);
    let cursor = world.run::<ListKeys>(json!({"limit": 1})).await.unwrap().next_cursor;
    let mut other = world.admin.clone();
    other.tenant_id = waybill_kernel::id::Uuid::nil();
    assert_eq!(code(world.run_as::<ListKeys>(&other, json!({"cursor": cursor})).await), Code::InvalidCursor);
}
