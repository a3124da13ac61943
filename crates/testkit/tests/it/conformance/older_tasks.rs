//! Tasks that were waiting when their needs were a digest of type and capabilities are found by the same workers as before.

use serde_json::{Value as Json, json};
use waybill_store::migrate::{Engine, render};
use waybill_testkit::stores::TestStore;

use crate::support::{claim, plain_task, task, text, worker};

/// The migration that made keys of the digests.
const LINES: i32 = 11;

waybill_testkit::both! {
    tasks_from_before_the_lines_are_found_by_who_fits,
}

/// Back to what the rows were before, and through the migration again.
async fn migrate_again(on: &TestStore) {
    let digest = if on.database().is_ok() { "decode(md5(type || requirements), 'hex')" } else { "randomblob(16)" };
    on.write(&format!("UPDATE tasks SET needs = {digest}")).await.unwrap();
    let migration = waybill_domains::migrations().into_iter().find(|migration| migration.version == LINES).unwrap();
    let engine = if on.database().is_ok() { Engine::Postgres } else { Engine::Sqlite };
    let text = render(migration.sql, engine);
    // The index is there already.
    let statements: Vec<&str> = text.split(';').map(str::trim).filter(|sql| !sql.starts_with("CREATE INDEX")).collect();
    if let Ok(database) = on.database() {
        let again = format!("BEGIN; {}; COMMIT", statements.join(";"));
        return database.connect().await.unwrap().batch_execute(&again).await.unwrap();
    }
    for statement in statements.iter().filter(|statement| !statement.is_empty()) {
        on.write(statement).await.unwrap();
    }
}

async fn tasks_from_before_the_lines_are_found_by_who_fits(on: TestStore) {
    let needs = |capabilities: Json| json!({ "type": "work", "requirements": { "capabilities": capabilities } });
    let plain = plain_task(&on, &on.admin).await;
    let tagged = task(&on, &on.admin, json!({ "type": "b", "requirements": { "tags": ["capabilities"] } })).await;
    let gpu = task(&on, &on.admin, needs(json!(["gpu"]))).await;
    let both = task(&on, &on.admin, needs(json!(["net", "gpu"]))).await;
    migrate_again(&on).await;
    let newer = task(&on, &on.admin, needs(json!(["gpu"]))).await;

    let w = worker(&on, "w");
    let got = async |input: Json| {
        let leased = claim(&on, &w, input).await;
        leased.iter().map(|task| text(task, "task_id")).collect::<Vec<_>>()
    };
    assert_eq!(got(json!({ "capabilities": ["net"], "accept_types": ["work"] })).await, [plain]);
    assert_eq!(got(json!({ "max_tasks": 9 })).await, [tagged]);
    assert!(got(json!({ "capabilities": ["net"], "max_tasks": 9 })).await.is_empty());
    assert_eq!(got(json!({ "capabilities": ["gpu"], "max_tasks": 9 })).await, [gpu, newer]);
    assert_eq!(got(json!({ "capabilities": ["gpu", "net"], "accept_types": ["b", "work"] })).await, [both]);
}
