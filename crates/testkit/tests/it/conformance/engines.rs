//! What every operation has in common, and what the engines must not let shine through.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Error, Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};
use waybill_testkit::stores::{self, TestStore};

use crate::support::refusal;

waybill_testkit::both! {
    every_operation_refuses_a_field_it_does_not_know,
    text_is_ordered_and_compared_by_its_bytes,
    values_come_back_as_they_were_bound,
    a_failed_operation_leaves_nothing_behind,
}

async fn every_operation_refuses_a_field_it_does_not_know(on: TestStore) {
    for entry in on.registry.entries() {
        let name = entry.spec().name;
        let code = refusal(&on, &on.admin, name, json!({ "no_such_field": 1 })).await;
        assert_eq!(code, Code::InvalidRequest, "{name}");
    }
}

async fn text_is_ordered_and_compared_by_its_bytes(on: TestStore) {
    let mut names =
        ["a", "B", "b", "Z", "_", "-", "aa", "a b", "ä", "é", "e\u{301}", "\u{fb33}", "😀", "ß", "ss", "1", "10"];
    for name in names {
        on.tenant(name).await.unwrap();
    }
    names.sort_unstable();
    let rows = on.rows("SELECT name FROM tenants WHERE tenant > 1 ORDER BY name").await.unwrap();
    assert_eq!(rows.iter().map(|row| row.text(0).unwrap()).collect::<Vec<_>>(), names);
    let rows = on.rows_with("SELECT count(*) FROM tenants WHERE tenant > 1 AND name < $1", &["b"]).await.unwrap();
    let below = names.iter().filter(|name| **name < "b").count();
    assert_eq!(rows[0].int(0).unwrap(), below as i64);
}

/// Writes one result and reads it back; `fail` afterwards.
struct Echo {
    fail: bool,
}

impl Work for Echo {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const INSERT: &str =
            "INSERT INTO results (tenant, task_id, outcome, error, completed_at) VALUES ($1, $2, $3, $4, $5)";
        let id = ctx.ids.next();
        for (nth, number, text, error) in [
            (0_u8, i64::MAX, "", Some("")),
            (1, i64::MIN, "ü😀\u{1}\u{7f}\\x00'\"", None),
            (2, 0, " \t\n ", Some("NULL")),
        ] {
            let mut bytes = id.as_bytes().to_vec();
            bytes.extend([0, nth, 255]);
            let params = [7.into(), Value::from(&bytes[..]), text.into(), error.into(), number.into()];
            assert_eq!(tx.execute(INSERT, &params).await?, 1);
            let select = "SELECT task_id, outcome, error, completed_at FROM results WHERE tenant = $1 AND task_id = $2";
            let row = tx.query_opt(select, &[7.into(), Value::from(&bytes[..])]).await?;
            let row = row.ok_or_else(|| Error::internal("it was not found by its bytes"))?;
            assert_eq!((row.bytes(0)?, row.text(1)?), (&bytes[..], text));
            assert_eq!((row.text_opt(2)?, row.int(3)?), (error, number));
        }
        if self.fail { Err(Error::new(Code::NotFound, "on purpose")) } else { Ok(()) }
    }
}

async fn values_come_back_as_they_were_bound(on: TestStore) {
    on.store.system().run(Echo { fail: false }).await.unwrap();
    assert_eq!(on.count("SELECT count(*) FROM results").await.unwrap(), 3);
}

async fn a_failed_operation_leaves_nothing_behind(on: TestStore) {
    let error = on.store.system().run(Echo { fail: true }).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "on purpose"));
    assert_eq!(on.count("SELECT count(*) FROM results").await.unwrap(), 0);
}

/// Fails with a serialization failure the first two times.
struct Contended {
    runs: Arc<AtomicU32>,
    ids: Arc<Mutex<Vec<Vec<Uuid>>>>,
}

impl Work for Contended {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        self.ids.lock().unwrap().push(vec![ctx.ids.next(), ctx.ids.next()]);
        if self.runs.fetch_add(1, Ordering::Relaxed) < 2 {
            tx.execute("DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''40001''; END'", &[]).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_run_after_a_serialization_failure_mints_the_same_ids() {
    let on = stores::open_postgres().await.unwrap();
    let (runs, ids) = (Arc::default(), Arc::<Mutex<Vec<_>>>::default());
    on.store.system().run(Contended { runs: Arc::clone(&runs), ids: Arc::clone(&ids) }).await.unwrap();
    let ids = ids.lock().unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), ids.len()), (3, 3));
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
}
