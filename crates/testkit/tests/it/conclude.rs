//! The last writes of an operation: nobody waits for their answer, and they count all the same.

use waybill_kernel::{Code, Error, Mode, Result};
use waybill_store::{Ctx, Statement, Tx, Value, Work};
use waybill_testkit::both;
use waybill_testkit::stores::TestStore;

const ADD: &str = "INSERT INTO feeds (name, xact, seq, updated_at) VALUES ($1, 0, 0, 0)";
const MOVE: &str = "UPDATE feeds SET seq = seq + 1 WHERE name = $1";

fn refused() -> Error {
    Error::new(Code::ParentNotFound, "There was nothing to move.")
}

fn statement<'a>(sql: &'static str, name: &'a str) -> Statement<'a> {
    (sql, vec![Value::from(name)])
}

/// Adds a row at once, and concludes with another one and, if named, the move of a third, which is demanded.
#[derive(Clone, Copy, Default)]
struct Concluding {
    first: &'static str,
    last: &'static str,
    moved: Option<&'static str>,
    /// It concludes a second time, with this one.
    again: Option<&'static str>,
    /// It asks for something after all.
    then_counts: bool,
}

impl Work for Concluding {
    /// What it has counted.
    type Output = Option<i64>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<i64>> {
        if !self.first.is_empty() {
            tx.execute(ADD, &[self.first.into()]).await?;
        }
        let mut statements = vec![statement(ADD, self.last)];
        statements.extend(self.moved.map(|name| statement(MOVE, name)));
        let demanded: Vec<usize> = self.moved.iter().map(|_| 1).collect();
        tx.conclude(&statements, &demanded, refused).await?;
        if let Some(again) = self.again {
            tx.conclude(&[statement(ADD, again)], &[], refused).await?;
        }
        if !self.then_counts {
            return Ok(None);
        }
        let row = tx.query_opt("SELECT count(*) FROM feeds WHERE seq = 0", &[]).await?;
        row.ok_or_else(|| Error::internal("no count"))?.int(0).map(Some)
    }
}

struct Names;

impl Work for Names {
    type Output = Vec<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<String>> {
        let rows = tx.query("SELECT name FROM feeds ORDER BY name", &[]).await?;
        rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
    }
}

async fn run(on: &TestStore, work: Concluding) -> Result<Option<i64>> {
    on.store.system().run(work).await
}

async fn names(on: &TestStore) -> Vec<String> {
    on.store.system().run(Names).await.unwrap()
}

async fn what_is_concluded_is_committed_with_the_rest(on: TestStore) {
    let before = names(&on).await.len();
    run(&on, Concluding { first: "a", last: "b", ..Default::default() }).await.unwrap();
    run(&on, Concluding { last: "c", ..Default::default() }).await.unwrap();
    run(&on, Concluding { last: "d", moved: Some("a"), again: Some("e"), ..Default::default() }).await.unwrap();
    assert_eq!(names(&on).await.len(), before + 5, "{:?}", names(&on).await);
}

async fn whoever_asks_after_all_sees_what_was_concluded(on: TestStore) {
    let counted =
        run(&on, Concluding { first: "a", last: "b", then_counts: true, ..Default::default() }).await.unwrap();
    assert_eq!(counted, Some(names(&on).await.len() as i64));
    let moved = Concluding { first: "c", last: "d", moved: Some("a"), then_counts: true, ..Default::default() };
    let counted = run(&on, moved).await.unwrap();
    assert_eq!(counted, Some(names(&on).await.len() as i64 - 1), "one has moved away from 0");
}

async fn a_demanded_write_that_finds_no_row_undoes_everything(on: TestStore) {
    let before = names(&on).await;
    for (again, then_counts) in [(None, false), (Some("e"), false), (None, true)] {
        let work = Concluding { first: "a", last: "b", moved: Some("nobody"), again, then_counts };
        let error = run(&on, work).await.unwrap_err();
        assert_eq!(error.code(), Code::ParentNotFound, "{error:?}");
        assert_eq!(names(&on).await, before);
    }
    run(&on, Concluding { first: "a", last: "b", ..Default::default() }).await.unwrap();
}

async fn a_conclusion_that_the_database_refuses_undoes_everything(on: TestStore) {
    run(&on, Concluding { last: "b", ..Default::default() }).await.unwrap();
    let before = names(&on).await;
    let error = run(&on, Concluding { first: "a", last: "b", ..Default::default() }).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error:?}");
    assert_eq!(names(&on).await, before);
}

/// Makes a row and moves it, which is an order: as writes that go together, and one after the other.
struct Ordered {
    together: bool,
}

impl Work for Ordered {
    type Output = Vec<u64>;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<u64>> {
        let name = if self.together { "together" } else { "in turn" };
        let statements = [statement(ADD, name), statement(MOVE, name)];
        if self.together { tx.execute_together(&statements).await } else { tx.execute_all(&statements).await }
    }
}

async fn writes_that_go_together_do_not_see_each_other(on: TestStore) {
    assert_eq!(on.store.system().run(Ordered { together: false }).await.unwrap(), [1, 1]);
    assert_eq!(on.store.system().run(Ordered { together: true }).await.unwrap(), [1, 0]);
}

both! {
    writes_that_go_together_do_not_see_each_other,
    what_is_concluded_is_committed_with_the_rest,
    whoever_asks_after_all_sees_what_was_concluded,
    a_demanded_write_that_finds_no_row_undoes_everything,
    a_conclusion_that_the_database_refuses_undoes_everything,
}
