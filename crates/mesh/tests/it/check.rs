//! The orphan check finds each kind of damage, and nothing in a store that is well.

use std::collections::BTreeSet;

use waybill_mesh::ops::manage::{CheckMesh, MeshCheck};
use waybill_mesh::sweeps::{OldIds, OldMessages};
use waybill_mesh::{NightlyCheck, Settings};
use waybill_testkit::stores::TestStore;

use crate::support::{count, create_topic, dm, join, ok, pass, plain_mesh, post, sent, subscribe, sweep};

mod usual {
    use super::*;

    waybill_testkit::both! {
        the_check_finds_each_kind_of_damage_and_nothing_in_a_healthy_store,
        what_was_pruned_or_has_expired_is_no_damage,
        the_nightly_check_walks_over_all_meshes_and_begins_again,
    }
}

async fn check(on: &TestStore) -> MeshCheck {
    ok(on, &on.admin, CheckMesh { mesh: "team".parse().unwrap(), cursor: None }).await
}

async fn kinds(on: &TestStore) -> BTreeSet<&'static str> {
    check(on).await.findings.iter().map(|finding| finding.kind).collect()
}

/// Messages of every form: direct, posted, mentioning, acknowledged by nobody.
async fn fill(on: &TestStore) {
    let alice = plain_mesh(on).await;
    let bob = join(on, &alice, "bob").await;
    create_topic(on, &alice, "jobs").await;
    subscribe(on, &bob, "jobs").await;
    for number in 0..4 {
        sent(on, &alice, &format!("d{number}"), dm(&bob, "x")).await;
        let mut envelope = post("jobs", "y");
        envelope.mentions = vec![bob.key()];
        sent(on, &alice, &format!("p{number}"), envelope).await;
    }
}

async fn the_check_finds_each_kind_of_damage_and_nothing_in_a_healthy_store(on: TestStore) {
    fill(&on).await;
    let healthy = check(&on).await;
    // Eight ids, messages, rows of history and deliveries, and four mentions.
    assert_eq!((healthy.findings.len(), healthy.looked_at), (0, 36));
    for (damage, repair, found) in [
        (
            "UPDATE mesh_dedupe SET message_id = sender WHERE client_message_id = 'd0'",
            "UPDATE mesh_dedupe SET message_id = (SELECT g.message_id FROM mesh_messages g WHERE g.client_message_id = 'd0') \
             WHERE client_message_id = 'd0'",
            &["dedupe_without_message", "message_without_dedupe", "delivery_without_dedupe"][..],
        ),
        (
            "UPDATE mesh_dedupe SET history_available = 0 WHERE client_message_id = 'd0'",
            "UPDATE mesh_dedupe SET history_available = 1 WHERE client_message_id = 'd0'",
            &["pruned_message_there"],
        ),
        (
            "UPDATE mesh_messages SET client_message_id = 'other' WHERE client_message_id = 'd0'",
            "UPDATE mesh_messages SET client_message_id = 'd0' WHERE client_message_id = 'other'",
            &["dedupe_of_another_message", "message_without_dedupe", "delivery_without_dedupe"],
        ),
        (
            "UPDATE mesh_history SET message_id = sender WHERE seq = 1",
            "UPDATE mesh_history SET message_id = (SELECT g.message_id FROM mesh_messages g WHERE g.seq = 1) WHERE seq = 1",
            &["history_without_message", "message_without_history"],
        ),
        (
            "UPDATE mesh_deliveries SET message_id = member_id WHERE seq = 1",
            "UPDATE mesh_deliveries SET message_id = (SELECT g.message_id FROM mesh_messages g WHERE g.seq = 1) WHERE seq = 1",
            &["delivery_without_message"],
        ),
        (
            "UPDATE mesh_messages SET mentions = 2 WHERE client_message_id = 'p0'",
            "UPDATE mesh_messages SET mentions = 1 WHERE client_message_id = 'p0'",
            &["mentions_differ"],
        ),
        (
            "UPDATE mesh_mentions SET message_id = member_id WHERE message_id = (SELECT g.message_id FROM mesh_messages g \
             WHERE g.client_message_id = 'p0')",
            "UPDATE mesh_mentions SET message_id = (SELECT g.message_id FROM mesh_messages g WHERE g.client_message_id = 'p0') \
             WHERE message_id = member_id",
            &["mentions_differ", "mention_without_message"],
        ),
    ] {
        on.write(damage).await.unwrap();
        assert_eq!(kinds(&on).await, found.iter().copied().collect(), "{damage}");
        on.write(repair).await.unwrap();
        assert_eq!(kinds(&on).await, BTreeSet::new(), "{repair}");
    }
    // Rows that are gone, each of which somebody misses.
    for (damage, found) in [
        ("DELETE FROM mesh_mentions", &["mentions_differ"][..]),
        ("DELETE FROM mesh_history WHERE seq = 2", &["mentions_differ", "message_without_history"]),
        (
            "DELETE FROM mesh_dedupe WHERE client_message_id = 'd3'",
            &["mentions_differ", "message_without_history", "message_without_dedupe", "delivery_without_dedupe"],
        ),
        (
            "DELETE FROM mesh_messages",
            &["dedupe_without_message", "history_without_message", "delivery_without_message"],
        ),
    ] {
        on.write(damage).await.unwrap();
        assert_eq!(kinds(&on).await, found.iter().copied().collect(), "{damage}");
    }
    let ids = check(&on).await.findings;
    assert!(ids.iter().any(|finding| finding.kind == "dedupe_without_message" && finding.id == "p1"), "{ids:?}");
}

async fn what_was_pruned_or_has_expired_is_no_damage(on: TestStore) {
    fill(&on).await;
    let settings = Settings { message_retention_s: 10 * 86_400, dedupe_retention_days: 7, ..Settings::default() };
    // As if they had been accepted under these settings.
    on.write("UPDATE mesh_dedupe SET expires_at = first_seen_at + 604800000000").await.unwrap();
    on.write("UPDATE mesh_messages SET dedupe_until = created_at + 604800000000").await.unwrap();
    pass(&on, 8 * 86_400);
    sweep(&on, OldMessages::new(&settings)).await;
    sweep(&on, OldIds::new(&settings)).await;
    assert_eq!((count(&on, "mesh_dedupe").await, count(&on, "mesh_messages").await), (0, 8));
    assert_eq!(check(&on).await.findings, []);
    pass(&on, 3 * 86_400);
    sweep(&on, OldMessages::new(&settings)).await;
    assert_eq!(count(&on, "mesh_messages").await, 0);
    assert_eq!(check(&on).await.findings, []);
}

async fn the_nightly_check_walks_over_all_meshes_and_begins_again(on: TestStore) {
    let settings = Settings::default();
    assert_eq!(sweep(&on, NightlyCheck::new(&settings)).await, 0);
    fill(&on).await;
    let stranger = on.tenant("other").await.unwrap();
    crate::support::mesh_of(&on, &stranger, "theirs", true).await;
    for _ in 0..3 {
        sweep(&on, NightlyCheck::new(&settings)).await;
        assert_eq!(count(&on, "mesh_check_walk").await, 0, "the walk did not come to its end");
    }
}
