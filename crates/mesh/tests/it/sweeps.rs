//! What is over goes, each in its own time.

use waybill_mesh::Settings;
use waybill_mesh::ops::files::{BeginFile, FinishFile, PutChunk};
use waybill_mesh::sweeps::{OldFiles, OldIds, OldMessages, Over};
use waybill_testkit::stores::{TestStore, readable};

use crate::support::{call, count, dm, issue, join, ok, pass, plain_mesh, request, rows, send, sent, signed, sweep};

waybill_testkit::both! {
    messages_and_their_ids_age_apart,
    an_id_that_is_kept_for_ever_never_goes,
    files_go_with_their_chunks_unless_they_are_kept,
    members_for_a_time_invites_and_events_go,
}

const DAY: u64 = 86_400;

async fn messages_and_their_ids_age_apart(on: TestStore) {
    let settings = Settings::default();
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let mut envelope = dm(&bob, "x");
    envelope.mentions = vec![bob.key()];
    let first = sent(&on, &alice, "old", envelope.clone()).await;
    pass(&on, 50 * DAY);
    sent(&on, &alice, "young", dm(&bob, "y")).await;
    sweep(&on, OldMessages::new(&settings)).await;
    assert_eq!(rows(&on).await, [2, 2, 2, 2, 1], "nothing is too old yet");
    pass(&on, 41 * DAY);
    sweep(&on, OldMessages::new(&settings)).await;
    sweep(&on, OldIds::new(&settings)).await;
    assert_eq!(rows(&on).await, [2, 1, 1, 1, 0]);
    // The id is still used, and its message is said to be gone.
    let (again, _) = send(&on, &alice, "old", envelope.clone()).await.map_err(readable).unwrap();
    assert_eq!((again.broker_message_id, again.history_available), (first.broker_message_id, Some(false)));
    pass(&on, 275 * DAY);
    sweep(&on, OldIds::new(&settings)).await;
    assert_eq!(count(&on, "mesh_dedupe").await, 1);
    // From now on it is the id of something new.
    assert_ne!(sent(&on, &alice, "old", envelope).await.broker_message_id, first.broker_message_id);
}

async fn an_id_that_is_kept_for_ever_never_goes(on: TestStore) {
    let alice = plain_mesh(&on).await;
    sent(&on, &alice, "a", dm(&alice, "x")).await;
    on.write("UPDATE mesh_dedupe SET expires_at = NULL").await.unwrap();
    pass(&on, 50 * 365 * DAY);
    sweep(&on, OldIds::new(&Settings::default())).await;
    assert_eq!(count(&on, "mesh_dedupe").await, 1);
}

async fn files_go_with_their_chunks_unless_they_are_kept(on: TestStore) {
    let settings = Settings::default();
    let alice = plain_mesh(&on).await;
    let (mesh, member) = (alice.mesh(), alice.id());
    for (persistent, is_whole) in [(false, true), (true, true), (false, false)] {
        let begin = BeginFile { mesh, member, size_bytes: 3, meta: String::new(), topic: None, to: None, persistent };
        let file = ok(&on, alice.caller(), begin).await.file_id;
        ok(&on, alice.caller(), PutChunk { mesh, member, file, position: 0, bytes: vec![1; 3] }).await;
        if is_whole {
            ok(&on, alice.caller(), FinishFile { mesh, member, file }).await;
        }
    }
    for (seconds, left) in [(settings.file_arrival_s + 60, 2), (settings.file_retention_s, 1), (3_650 * DAY, 1)] {
        pass(&on, seconds);
        sweep(&on, OldFiles::new(&settings)).await;
        on.check_stored_bytes().await;
        let found = (count(&on, "mesh_files").await, count(&on, "mesh_file_chunks").await);
        assert_eq!(found, (left, left), "after {seconds} s more");
    }
}

async fn members_for_a_time_invites_and_events_go(on: TestStore) {
    let settings = Settings::default();
    let alice = plain_mesh(&on).await;
    let invite = signed(&alice, &issue(&on, &alice, 2).await);
    let guest = waybill_mesh_protocol::Identity::generate(&waybill_kernel::entropy::OsEntropy);
    let (caller, mut join) = request(&on, &invite, &guest, "guest").await;
    join.ttl_s = Some(7_200);
    call(&on, &caller, join).await.map_err(readable).unwrap();
    let live = "SELECT count(*) FROM mesh_members WHERE state = 'live'";
    sweep(&on, Over::new(&settings)).await;
    assert_eq!(on.count(live).await.unwrap(), 2);
    pass(&on, 7_200);
    sweep(&on, Over::new(&settings)).await;
    assert_eq!(on.count(live).await.unwrap(), 1);
    assert_eq!(count(&on, "mesh_invites").await, 1);
    pass(&on, settings.invite_s);
    sweep(&on, Over::new(&settings)).await;
    assert_eq!(count(&on, "mesh_invites").await, 0);
    let left = on.count("SELECT count(*) FROM mesh_events WHERE kind = 'member_left'").await.unwrap();
    assert_eq!(left, 1);
    pass(&on, settings.events_retention_s);
    sweep(&on, Over::new(&settings)).await;
    assert_eq!(count(&on, "mesh_events").await, 0);
}
