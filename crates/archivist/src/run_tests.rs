use waybill_testkit::stores;

use super::*;

/// A turn that panics frees its own project, and nobody begins a second turn of another.
#[tokio::test]
async fn a_panic_frees_the_project_that_it_was_about() {
    let (on, folder) = (stores::open_sqlite().await.unwrap(), tempfile::tempdir().unwrap());
    let settings = Settings::default();
    let archive = Arc::new(Archive::new(folder.path().to_owned(), settings.limits()));
    let mut archivist = Archivist::new(on.store.clone(), archive, settings, ArchiveHealth::default());
    let (dying, other, now) = ((Tenant(1), 1), (Tenant(1), 2), Instant::now());
    for whose in [dying, other] {
        archivist.slot(whose, now).in_hand = true;
    }
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    archivist.begin(dying, async { panic!("this turn dies, as the test wants") });
    archivist.begin(other, async move {
        let _ = finished.await;
        Ended { whose: other, outcome: Ok(Done { wrote: true, ..Done::default() }) }
    });
    let ended = archivist.hands.join_next_with_id().await.unwrap();
    archivist.told(ended);
    assert!(!archivist.slot(dying, now).in_hand && archivist.slot(other, now).in_hand);
    finish.send(()).unwrap();
    let ended = archivist.hands.join_next_with_id().await.unwrap();
    archivist.told(ended);
    assert!(!archivist.slot(other, now).in_hand && archivist.tasks.is_empty());
}
