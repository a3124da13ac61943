//! A message ends by the handle of its latest receive, and by no other.

use waybill_kernel::Code;
use waybill_queues::ops::delete_message::DeleteMessage;
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

use crate::support::{delete, jobs, ok, pass, queue, receive, refused, rows, send};

both! {
    a_message_is_deleted_once_and_for_all,
    a_stale_handle_deletes_nothing,
    a_handle_of_another_queue_is_none,
}

async fn a_message_is_deleted_once_and_for_all(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    // The latest handle works after its time too.
    pass(&on, 20);
    for _ in 0..2 {
        ok(&on, delete(&message)).await;
    }
    assert_eq!(rows(&on).await, (0, 0));
}

async fn a_stale_handle_deletes_nothing(on: TestStore) {
    jobs(&on, &[("VisibilityTimeout", "10")]).await;
    send(&on, "m").await;
    let first = receive(&on, 1).await.remove(0);
    pass(&on, 11);
    let second = receive(&on, 1).await.remove(0);
    ok(&on, delete(&first)).await;
    assert_eq!(rows(&on).await, (1, 1));
    ok(&on, delete(&second)).await;
    assert_eq!(rows(&on).await, (0, 0));
}

async fn a_handle_of_another_queue_is_none(on: TestStore) {
    jobs(&on, &[]).await;
    ok(&on, queue("other", &[])).await;
    send(&on, "m").await;
    let message = receive(&on, 1).await.remove(0);
    let elsewhere = DeleteMessage { queue_url: "http://h/other".to_owned(), ..delete(&message) };
    let malformed = DeleteMessage { receipt_handle: "AQ".to_owned(), ..delete(&message) };
    on.write("UPDATE queues SET generation = generation + 1 WHERE name = 'jobs'").await.unwrap();
    on.write("UPDATE parts SET generation = generation + 1 WHERE queue = 'jobs'").await.unwrap();
    let mut texts = Vec::new();
    for bad in [elsewhere, malformed, delete(&message)] {
        let error = refused(&on, bad).await;
        assert_eq!(error.code(), Code::ReceiptHandleIsInvalid);
        texts.push(error.message().to_owned());
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert_eq!(rows(&on).await, (1, 1));
}
