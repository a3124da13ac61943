//! What the calls have left in the tables: tasks, results, and the chain of receipts that proves them.

use serde_json::{Map, Value as Json, json};
use waybill_kernel::id::Uuid;
use waybill_kernel::{Clock, Mode, Result};
use waybill_store::{Cell, Ctx, Row, Tx, Work};

use crate::world::World;

const UUID_BYTES: usize = 16;

/// Names and statements. Order is that of the calls: ids of tasks sort by creation, receipts by their place.
const TABLES: &[(&str, &str)] = &[
    (
        "tasks",
        "SELECT tenant, task_id, status, type, payload, owner, owner_instance, requirements, priority, attempt,
             max_attempts, retry_backoff_s, idempotency_key, CASE WHEN status = 'queued' THEN (next_eligible_at - updated_at) / 1000000 ELSE 0 END, assigned_receipt
         FROM tasks WHERE tenant > 0 ORDER BY task_id",
    ),
    (
        "results",
        "SELECT tenant, task_id, outcome, result, error, artifacts, delivery_proof, located, receipt_id
         FROM results WHERE tenant > 0 ORDER BY task_id",
    ),
    (
        "leases",
        "SELECT tenant, task_id, epoch, lease_id, worker, worker_instance, end_reason, digest
         FROM leases WHERE tenant > 0 ORDER BY task_id, epoch",
    ),
    ("task_progress", "SELECT tenant, task_id, progress FROM task_progress WHERE tenant > 0 ORDER BY task_id"),
    (
        "receipts",
        "SELECT tenant, receipt_id, receipt_type, sender, addressee, task_id, lease_id, parents, body, open
         FROM receipts WHERE tenant > 0 ORDER BY seq",
    ),
    (
        "receipt_parents",
        "SELECT p.tenant, p.parent_id, p.child_id, p.child_type
         FROM receipt_parents p JOIN receipts r ON r.tenant = p.tenant AND r.receipt_id = p.child_id
         WHERE p.tenant > 0 ORDER BY r.seq, p.parent_id",
    ),
];

/// Stops the server in order and reads what it has left.
pub async fn read(world: &mut World) -> Json {
    assert!(world.server.term().unwrap().success());
    let store = world.open_store(Clock::system()).await;
    let ledger = store.system().run(Dump).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    ledger
}

struct Dump;

impl Work for Dump {
    type Output = Json;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Json> {
        let mut tables = Map::new();
        for (name, select) in TABLES {
            let rows = tx.query(select, &[]).await?;
            tables.insert((*name).to_owned(), rows.iter().map(as_json).collect());
        }
        Ok(Json::Object(tables))
    }
}

fn as_json(row: &Row) -> Json {
    row.cells().iter().map(cell).collect()
}

fn cell(cell: &Cell) -> Json {
    match cell {
        Cell::Null => Json::Null,
        Cell::Int(number) => json!(number),
        // Stored JSON is compared by what it says.
        Cell::Text(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Cell::Bytes(bytes) if bytes.len() == UUID_BYTES => json!(Uuid::from_slice(bytes).unwrap().to_string()),
        Cell::Bytes(bytes) => json!(bytes),
    }
}
