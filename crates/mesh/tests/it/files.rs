//! Files come and go in chunks, and only to those they are for.

use waybill_kernel::Code;
use waybill_mesh::Settings;
use waybill_mesh::ops::files::{BeginFile, CHUNK_BYTES, FinishFile, GetChunk, GetFile, ListFiles, PutChunk};
use waybill_mesh::sweeps::OldFiles;
use waybill_mesh_protocol::FileId;
use waybill_testkit::stores::TestStore;

use crate::support::{
    Person, create_topic, join, mesh_of, ok, pass, plain_mesh, refused, run, subscribe, sweep, topic,
};

mod usual {
    use super::*;

    waybill_testkit::both! { a_file_is_read_as_it_was_written, a_file_is_for_those_it_was_shared_with }
}

mod small {
    use super::*;

    waybill_testkit::both! {
        waybill_mesh::Settings { blob_bytes: 100, files_bytes_max: 150, ..waybill_mesh::Settings::default() } => room_for_files_is_bounded
    }
}

mod few {
    use super::*;

    waybill_testkit::both! {
        waybill_mesh::Settings { files_max: 2, ..waybill_mesh::Settings::default() } => a_mesh_has_so_many_files_however_small_they_are
    }
}

mod capped {
    use super::*;

    waybill_testkit::both! {
        waybill_store::StoredCaps { rows: 0, blobs: 150 } => a_tenant_has_room_for_so_many_bytes_in_all_its_meshes
    }
}

fn begin(who: &Person, size_bytes: u64) -> BeginFile {
    let (mesh, member) = (who.mesh(), who.id());
    BeginFile { mesh, member, size_bytes, meta: "m".to_owned(), topic: None, to: None, persistent: false }
}

fn put(who: &Person, file: FileId, position: u64, bytes: Vec<u8>) -> PutChunk {
    PutChunk { mesh: who.mesh(), member: who.id(), file, position, bytes }
}

async fn share(on: &TestStore, who: &Person, file: BeginFile) -> FileId {
    let size = usize::try_from(file.size_bytes).unwrap();
    let begun = ok(on, who.caller(), file).await;
    ok(on, who.caller(), put(who, begun.file_id, 0, vec![7; size])).await;
    ok(on, who.caller(), FinishFile { mesh: who.mesh(), member: who.id(), file: begun.file_id }).await;
    begun.file_id
}

async fn a_file_is_read_as_it_was_written(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let begun = ok(&on, alice.caller(), begin(&alice, CHUNK_BYTES + 3)).await;
    assert_eq!((begun.chunks, begun.chunk_bytes), (2, CHUNK_BYTES));
    let file = begun.file_id;
    let chunk: Vec<u8> = (0..CHUNK_BYTES).map(|byte| (byte % 251) as u8).collect();
    let finish = || FinishFile { mesh: alice.mesh(), member: alice.id(), file };
    let get = |position| GetChunk { mesh: bob.mesh(), member: bob.id(), file, position };
    // Out of order, of another length, by another.
    assert_eq!(refused(&on, alice.caller(), put(&alice, file, 1, vec![1; 3])).await, Code::InvalidRequest);
    assert_eq!(refused(&on, alice.caller(), put(&alice, file, 0, vec![1; 3])).await, Code::InvalidRequest);
    assert_eq!(refused(&on, bob.caller(), put(&bob, file, 0, chunk.clone())).await, Code::NotFound);
    ok(&on, alice.caller(), put(&alice, file, 0, chunk.clone())).await;
    ok(&on, alice.caller(), put(&alice, file, 0, chunk.clone())).await;
    assert_eq!(refused(&on, alice.caller(), finish()).await, Code::InvalidStateTransition);
    assert_eq!(refused(&on, bob.caller(), get(0)).await, Code::NotFound, "it is not there as a whole");
    let stored = ok(&on, alice.caller(), put(&alice, file, 1, vec![9; 3])).await;
    assert_eq!(stored.received_bytes, CHUNK_BYTES + 3);
    ok(&on, alice.caller(), finish()).await;
    assert_eq!(refused(&on, alice.caller(), finish()).await, Code::InvalidStateTransition);
    assert_eq!(ok(&on, bob.caller(), get(0)).await.bytes, chunk);
    assert_eq!(ok(&on, bob.caller(), get(1)).await.bytes, [9; 3]);
    assert_eq!(refused(&on, bob.caller(), get(2)).await, Code::NotFound);
    pass(&on, Settings::default().file_retention_s);
    assert_eq!(refused(&on, bob.caller(), get(0)).await, Code::NotFound, "its time is over");
}

async fn a_file_is_for_those_it_was_shared_with(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    let all = share(&on, &alice, begin(&alice, 5)).await;
    let of_topic = share(&on, &alice, BeginFile { topic: Some(topic("jobs")), ..begin(&alice, 5) }).await;
    let of_carol = share(&on, &alice, BeginFile { to: Some(carol.key()), persistent: true, ..begin(&alice, 5) }).await;
    for (who, files) in
        [(&alice, vec![of_carol, of_topic, all]), (&bob, vec![of_topic, all]), (&carol, vec![of_carol, all])]
    {
        let list = ListFiles { mesh: who.mesh(), member: who.id(), limit: None, before: None };
        let seen: Vec<_> = ok(&on, who.caller(), list).await.files.iter().map(|file| file.file_id).collect();
        assert_eq!(seen, files);
        for file in [all, of_topic, of_carol] {
            let get = GetFile { mesh: who.mesh(), member: who.id(), file };
            if files.contains(&file) {
                assert_eq!(ok(&on, who.caller(), get).await.meta, "m");
            } else {
                assert_eq!(refused(&on, who.caller(), get).await, Code::NotFound);
            }
        }
    }
    let foreign = BeginFile { topic: Some(topic("jobs")), ..begin(&carol, 5) };
    assert_eq!(refused(&on, carol.caller(), foreign).await, Code::NotSubscribed);
}

async fn room_for_files_is_bounded(on: TestStore) {
    let alice = plain_mesh(&on).await;
    assert_eq!(refused(&on, alice.caller(), begin(&alice, 101)).await, Code::PayloadTooLarge);
    assert_eq!(refused(&on, alice.caller(), begin(&alice, 0)).await, Code::InvalidRequest);
    ok(&on, alice.caller(), begin(&alice, 100)).await;
    assert_eq!(refused(&on, alice.caller(), begin(&alice, 51)).await, Code::TooManyFiles);
    ok(&on, alice.caller(), begin(&alice, 50)).await;
}

async fn a_mesh_has_so_many_files_however_small_they_are(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let other = mesh_of(&on, &on.admin, "other", true).await;
    for _ in 0..2 {
        ok(&on, alice.caller(), begin(&alice, 1)).await;
    }
    assert_eq!(refused(&on, alice.caller(), begin(&alice, 1)).await, Code::TooManyFiles);
    ok(&on, other.caller(), begin(&other, 1)).await;
    // What never arrives gives its place back.
    let settings = Settings::default();
    pass(&on, settings.file_arrival_s + 60);
    sweep(&on, OldFiles::new(&settings)).await;
    ok(&on, alice.caller(), begin(&alice, 1)).await;
}

async fn a_tenant_has_room_for_so_many_bytes_in_all_its_meshes(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let other = mesh_of(&on, &on.admin, "other", true).await;
    ok(&on, alice.caller(), begin(&alice, 100)).await;
    let refusal = run(&on, other.caller(), begin(&other, 51)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::TooManyStoredBytes);
    let told = ["limit", "used", "kind"].map(|name| refusal.detail(name).unwrap().to_string());
    assert_eq!(told, ["150", "100", "\"blobs\""]);
    ok(&on, other.caller(), begin(&other, 50)).await;
    assert_eq!(refused(&on, alice.caller(), begin(&alice, 1)).await, Code::TooManyStoredBytes);
    // What never arrives gives its room back.
    let settings = Settings::default();
    pass(&on, settings.file_arrival_s + 60);
    sweep(&on, OldFiles::new(&settings)).await;
    on.check_stored_bytes().await;
    ok(&on, alice.caller(), begin(&alice, 150)).await;
}
