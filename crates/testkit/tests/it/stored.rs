//! What is added at the end of a transaction: how many bytes are stored, and who is woken.

use serde_json::json;
use waybill_kernel::{Code, Mode, Result, Tenant};
use waybill_store::{Backend, Ctx, SqliteOptions, Store, Stored, Topic, Tx, Value, Work};
use waybill_testkit::stores::{self, TestStore, readable};

use crate::support::{claim, ok, task, worker};

waybill_testkit::both! {
    what_is_stored_is_counted_with_its_rows,
    work_for_several_tenants_counts_for_each,
    a_process_knows_what_it_has_committed_before_it_reads,
    a_call_that_would_wake_too_many_leaves_nothing,
}

async fn what_is_stored_is_counted_with_its_rows(on: TestStore) {
    let payload = json!({ "text": "x".repeat(1_000) });
    let wanted = json!({ "type": "work", "payload": payload, "idempotency_key": "k" });
    let task_id = task(&on, &on.admin, wanted.clone()).await;
    on.check_stored_bytes().await;
    let counted = "SELECT CAST(sum(bytes) AS BIGINT) FROM stored_bytes";
    let before = on.count(counted).await.unwrap();
    assert!(before > 1_000, "{before}");
    // A repeated call stores nothing.
    assert_eq!(task(&on, &on.admin, wanted).await, task_id);
    assert_eq!(on.count(counted).await.unwrap(), before);
    let w = worker(&on, "w");
    let lease_id = claim(&on, &w, json!({})).await[0]["lease_id"].clone();
    let done = json!({ "task_id": task_id, "lease_id": lease_id, "result": { "n": "y".repeat(500) },
        "artifacts": [{ "url": "https://a.example/" }] });
    ok(&on, &w, "complete", done).await;
    on.check_stored_bytes().await;
    assert!(on.count(counted).await.unwrap() > before + 500);
}

/// As a sweep that does something for several tenants.
struct ForTenants(Vec<(i64, usize)>);

impl Work for ForTenants {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute("UPDATE meta SET probe_us = $1 WHERE id = 1", &[Value::from(ctx.now)]).await?;
        for (tenant, bytes) in &self.0 {
            tx.as_tenant(Tenant(*tenant)).add(Stored::Blobs, *bytes);
        }
        Ok(())
    }
}

async fn work_for_several_tenants_counts_for_each(on: TestStore) {
    on.store.system().run(ForTenants(vec![(8, 5), (7, 10), (8, 1)])).await.map_err(readable).unwrap();
    on.store.system().run(ForTenants(vec![(9, 3)])).await.map_err(readable).unwrap();
    let sums = on.store.measure_stored_bytes().await.unwrap();
    let sums: Vec<_> = sums.into_iter().filter(|(_, kind, _)| *kind == Stored::Blobs).collect();
    let expected = [(7, 10), (8, 6), (9, 3)].map(|(tenant, bytes)| (Tenant(tenant), Stored::Blobs, bytes));
    assert_eq!(sums, expected);
}

async fn a_process_knows_what_it_has_committed_before_it_reads(on: TestStore) {
    on.store.system().run(ForTenants(vec![(7, 10)])).await.unwrap();
    let known = || on.store.stored_bytes(Tenant(7), Stored::Blobs);
    assert_eq!(known(), 10);
    on.store.measure_stored_bytes().await.unwrap();
    assert_eq!(known(), 10);
    on.store.system().run(ForTenants(vec![(7, 1)])).await.unwrap();
    assert_eq!(known(), 11);
}

struct WakeMany(u32);

impl Work for WakeMany {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.as_tenant(Tenant(7)).add(Stored::Rows, 1);
        tx.execute("UPDATE meta SET probe_us = 77 WHERE id = 1", &[]).await?;
        for number in 0..self.0 {
            tx.wake(Topic::new("test", Tenant(7), &number.to_be_bytes()), 1);
        }
        Ok(())
    }
}

async fn a_call_that_would_wake_too_many_leaves_nothing(on: TestStore) {
    let probed = "SELECT count(*) FROM meta WHERE probe_us = 77";
    let refusal = on.store.system().run(WakeMany(129)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidRequest);
    assert_eq!((on.count(probed).await.unwrap(), on.store.stored_bytes(Tenant(7), Stored::Rows)), (0, 0));
    on.store.system().run(WakeMany(128)).await.unwrap();
    assert_eq!((on.count(probed).await.unwrap(), on.store.stored_bytes(Tenant(7), Stored::Rows)), (1, 1));
}

/// Rows from before anything was counted.
const OLD_ROWS: &[&str] = &[
    "INSERT INTO messages (tenant, mid, id, body, md5, attributes, sent_at, sender) VALUES (1, 1, B, 'grüße', B, '{}', 0, 'a')",
    "INSERT INTO messages (tenant, mid, id, body, md5, sent_at, sender) VALUES (2, 2, B, 'b', B, 0, 'a')",
    "INSERT INTO results (tenant, task_id, outcome, result, completed_at) VALUES (1, B, 'succeeded', '\"ok\"', 0)",
    "INSERT INTO results (tenant, task_id, outcome, completed_at) VALUES (2, B, 'failed', 0)",
    "INSERT INTO archived_receipts (tenant, xact, seq, receipt_id, receipt_type, sender, addressee, parents, body, instance, \
     created_at, archived_at) VALUES (1, 1, 1, B, 't', 'a', 'a', B, '{\"a\":1}', 'i', 0, 0)",
    "INSERT INTO mail_messages (tenant, project, sender, sender_name, subject, body, importance, ack_required, names, created_at) \
     VALUES (1, 1, 1, 'A', 'subject', 'body', 'normal', 0, '{}', 0)",
    "INSERT INTO mail_attachments (tenant, message, position, name, media_type, sha256, content) \
     VALUES (1, 1, 0, 'f', 'a/b', B, B)",
    "INSERT INTO mesh_files (tenant, mesh_id, file_id, owner, meta, size_bytes, received_bytes, chunks, state, persistent, \
     created_at) VALUES (2, B, B, B, '', 12345, 0, 0, 'arriving', 0, 0)",
    "INSERT INTO mesh_messages (tenant, mesh_id, message_id, client_message_id, seq, sender, sender_key, envelope, mentions, \
     created_at) VALUES (2, B, B, 'c', 1, B, B, '{\"e\":1}', 0, 0)",
];

struct Write(&'static str);

impl Work for Write {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        tx.execute(self.0, &[]).await
    }
}

async fn counts_what_was_there(backend: Backend, bytes: &str) {
    let open = async |counting: bool| {
        let mut migrations = waybill_domains::migrations();
        migrations.retain(|migration| counting || migration.version < 72);
        let clock = std::sync::Arc::new(waybill_kernel::Clock::system());
        let entropy = std::sync::Arc::new(waybill_kernel::entropy::OsEntropy);
        Store::open(backend.clone(), &migrations, waybill_store::Settings::default(), clock, entropy).await.unwrap()
    };
    let before = open(false).await;
    for sql in OLD_ROWS {
        before
            .system()
            .run(Write(stores::leak(&sql.replace(" B,", &format!(" {bytes},")).replace(" B)", &format!(" {bytes})")))))
            .await
            .map_err(readable)
            .unwrap();
    }
    tokio::task::spawn_blocking(move || before.close()).await.unwrap();
    let after = open(true).await;
    let compare = || waybill_domains::CompareStored(waybill_store::StoreRole::Home);
    assert_eq!(after.system().run(compare()).await.map_err(readable).unwrap(), []);
    let sums = after.measure_stored_bytes().await.unwrap();
    let blobs =
        |tenant| sums.iter().find(|(of, kind, _)| *of == Tenant(tenant) && *kind == Stored::Blobs).map(|sum| sum.2);
    assert_eq!((blobs(1), blobs(2)), (Some(2), Some(12_345)));
    // The triggers are there as well.
    for sql in ["DELETE FROM messages", "DELETE FROM mesh_messages", "DELETE FROM mesh_files"] {
        assert!(after.system().run(Write(sql)).await.map_err(readable).unwrap() > 0);
        assert_eq!(after.system().run(compare()).await.map_err(readable).unwrap(), [], "{sql}");
    }
    tokio::task::spawn_blocking(move || after.close()).await.unwrap();
}

#[tokio::test]
async fn an_older_sqlite_database_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    counts_what_was_there(Backend::Sqlite(SqliteOptions::at(folder.path().join("waybill.db"))), "x'0102'").await;
}

#[tokio::test]
async fn an_older_postgres_database_is_counted_once() {
    let database = waybill_testkit::postgres::Postgres::shared().await.unwrap().database().await.unwrap();
    counts_what_was_there(Backend::Postgres(stores::postgres_options(&database.url)), "'\\x0102'").await;
}
