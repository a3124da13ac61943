//! What each operation is there for, row by row. The rows of one operation may build on those of the ones before it in
//! the registry.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::Row;

/// The largest payload, as compact JSON.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

pub struct Scenario {
    /// Arguments that `alice` may use: bad input is made by spoiling them.
    pub good: Json,
    pub rows: Vec<Row>,
}

pub fn of(operation: &str) -> Option<Scenario> {
    match operation {
        "create_task" => Some(create_task()),
        "get_task" => Some(get_task()),
        "list_tasks" => Some(list_tasks()),
        "cancel_task" => Some(cancel_task()),
        "list_open_obligations" => Some(list_open_obligations()),
        "list_receipts" => Some(list_receipts()),
        "get_receipt" => Some(get_receipt()),
        "ack_receipt" => Some(ack_receipt()),
        "get_config" => Some(get_config()),
        "bootstrap" => Some(bootstrap()),
        _ => None,
    }
}

fn create_task() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "create_task", args);
    let keyed = json!({ "type": "invoice", "idempotency_key": "invoice-4711", "payload": { "n": 1 } });
    let everything = json!({
        "type": "build", "payload": { "text": "ünï\u{1F600}", "list": [1, 2.5, null, true], "empty": {} },
        "requirements": { "capabilities": ["rust", "Linux"], "tags": ["nightly"] }, "priority": -7,
        "idempotency_key": "build-1", "max_attempts": 5, "retry_backoff_seconds": 60, "delay_seconds": 3600,
        "principal_instance_id": "run-9", "emit_assignment_receipt": false,
    });
    // Two quotes belong to the text.
    let largest = json!({ "type": "large", "payload": "x".repeat(PAYLOAD_BYTES_MAX - 2) });
    let too_large = json!({ "type": "large", "payload": "x".repeat(PAYLOAD_BYTES_MAX - 1) });
    let needs = |requirements: Json| json!({ "type": "echo", "requirements": requirements });
    Scenario {
        good: json!({ "type": "echo" }),
        rows: vec![
            row("the least there is", "alice", json!({ "type": "echo" })).keep("first", "task_id"),
            row("everything there is", "alice", everything).keep("full", "task_id"),
            row("with a key", "alice", keyed.clone()).keep("keyed", "task_id"),
            row("the same again", "alice", keyed.clone()).replay(),
            row("the same key with other words", "alice", json!({ "type": "x", "idempotency_key": "invoice-4711" }))
                .replay(),
            row("the same key from another principal of the tenant", "bob", keyed.clone()).replay(),
            row("the same key in another tenant", "stranger", keyed),
            row("by the admin", "admin", json!({ "type": "echo" })).keep("admins", "task_id"),
            row("by another agent", "bob", json!({ "type": "echo" })).keep("bobs", "task_id"),
            row("the largest payload", "bob", largest),
            row("a payload of one byte more", "bob", too_large).refused(Code::PayloadTooLarge),
            row("a null payload", "bob", json!({ "type": "echo", "payload": null })),
            row("an unknown requirement", "alice", needs(json!({ "cores": 4 }))).refused(Code::InvalidRequest),
            row("an empty capability", "alice", needs(json!({ "capabilities": [""] }))).refused(Code::InvalidRequest),
            row("too many tags", "alice", needs(json!({ "tags": vec!["t"; 65] }))).refused(Code::InvalidRequest),
            row("a NUL deep inside", "alice", json!({ "type": "echo", "payload": { "a": ["\u{0}"] } }))
                .refused(Code::InvalidRequest),
            row("a NUL in a name", "alice", json!({ "type": "echo", "payload": { "a\u{0}": 1 } }))
                .refused(Code::InvalidRequest),
        ],
    }
}

fn get_task() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "get_task", args);
    Scenario {
        good: json!({ "task_id": "$first" }),
        rows: vec![
            row("one's own", "alice", json!({ "task_id": "$full" })),
            row("without a wait", "alice", json!({ "task_id": "$first", "wait_seconds": 0 })),
            row("anybody's, for the admin", "admin", json!({ "task_id": "$first" })),
        ],
    }
}

fn list_tasks() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "list_tasks", args);
    Scenario {
        good: json!({}),
        rows: vec![
            row("one's own", "alice", json!({})),
            row("none yet", "carol", json!({})),
            row("of a state", "alice", json!({ "status": "queued" })),
            row("of a state that none is in", "alice", json!({ "status": "succeeded" })),
            row("of a type", "alice", json!({ "type": "invoice" })),
            row("by one's own name", "alice", json!({ "created_by": "agent:alice" })),
            row("by another's name", "alice", json!({ "created_by": "agent:bob" })).refused(Code::Forbidden),
            row("by another's name, for the admin", "admin", json!({ "created_by": "agent:bob" })),
            row("more than a page may have", "alice", json!({ "limit": 100_000 })),
            row("a first page", "alice", json!({ "limit": 1 })).keep("page2", "next_cursor"),
            row("a second page", "alice", json!({ "limit": 1, "cursor": "$page2" })).keep("page3", "next_cursor"),
            row("a last page", "alice", json!({ "limit": 1, "cursor": "$page3" })),
            row("a cursor of another filter", "alice", json!({ "status": "queued", "cursor": "$page2" }))
                .refused(Code::InvalidCursor),
            row("a cursor of another owner", "bob", json!({ "cursor": "$page2" })).refused(Code::InvalidCursor),
            row("a cursor of another tenant", "stranger", json!({ "cursor": "$page2" })).refused(Code::InvalidCursor),
        ],
    }
}

fn cancel_task() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "cancel_task", args);
    let get = |what: &str, who: &str, args: Json| Row::new(what, who, "get_task", args);
    Scenario {
        good: json!({ "task_id": "$first", "reason": "not needed" }),
        rows: vec![
            row("with a reason", "alice", json!({ "task_id": "$full", "reason": "nicht nötig" })),
            row("a second time", "alice", json!({ "task_id": "$full", "reason": "again" })),
            row("without a reason", "alice", json!({ "task_id": "$keyed" })),
            row("anybody's, by the admin", "admin", json!({ "task_id": "$bobs", "reason": "stopped" })),
            row("another's, which has ended", "alice", json!({ "task_id": "$bobs" })).refused(Code::Forbidden),
            get("an ended task", "alice", json!({ "task_id": "$full" })),
            // An ended task is answered at once, however long the caller would wait.
            get("an ended task, with a wait", "bob", json!({ "task_id": "$bobs", "wait_seconds": 20 })),
            Row::new(
                "the key of an ended task",
                "alice",
                "create_task",
                json!({
                    "type": "invoice", "idempotency_key": "invoice-4711",
                }),
            )
            .replay(),
        ],
    }
}

const NOBODY: &str = "01a1e0e7-2b84-7d12-9a6e-99fae6af2091";

fn list_open_obligations() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "list_open_obligations", args);
    Scenario {
        good: json!({}),
        rows: vec![
            row("one's own", "alice", json!({})).keep("newest_open", "cursor"),
            row("none", "carol", json!({})),
            row("a page", "alice", json!({ "limit": 1 })).keep("open1", "cursor"),
            row("the page after", "alice", json!({ "limit": 1, "since_receipt_id": "$open1" })),
            row("after a receipt that nobody has", "alice", json!({ "since_receipt_id": NOBODY }))
                .refused(Code::InvalidCursor),
            row("after another's receipt", "bob", json!({ "since_receipt_id": "$open1" })).refused(Code::InvalidCursor),
            row("another's", "bob", json!({ "principal_kind": "agent", "principal_id": "alice" }))
                .refused(Code::Forbidden),
            row("another's, for the admin", "admin", json!({ "principal_kind": "agent", "principal_id": "alice" })),
        ],
    }
}

fn list_receipts() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "list_receipts", args);
    Scenario {
        good: json!({}),
        rows: vec![
            row("one's own", "alice", json!({})).keep("receipt", "cursor"),
            row("none", "carol", json!({})),
            row("a page", "alice", json!({ "limit": 1 })).keep("receipt1", "cursor"),
            row("the page after", "alice", json!({ "limit": 1, "since_receipt_id": "$receipt1" })),
            row("of a task", "alice", json!({ "task_id": "$full" })),
            row("of another's task", "bob", json!({ "task_id": "$full" })).refused(Code::Forbidden),
            row("of a task that nobody has", "alice", json!({ "task_id": NOBODY })).refused(Code::NotFound),
            row("of another tenant's task", "stranger", json!({ "task_id": "$full" })).refused(Code::NotFound),
            row("another's", "bob", json!({ "to_kind": "agent", "to_id": "alice" })).refused(Code::Forbidden),
            row("another's, for the admin", "admin", json!({ "to_kind": "agent", "to_id": "alice" })),
            row("after another tenant's receipt", "stranger", json!({ "since_receipt_id": "$receipt1" }))
                .refused(Code::InvalidCursor),
        ],
    }
}

fn get_receipt() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "get_receipt", args);
    Scenario {
        good: json!({ "receipt_id": "$receipt1" }),
        rows: vec![
            row("one's own", "alice", json!({ "receipt_id": "$receipt1" })),
            row("anybody's, for the admin", "admin", json!({ "receipt_id": "$receipt1" })),
            row("another's", "bob", json!({ "receipt_id": "$receipt1" })).refused(Code::Forbidden),
            row("one that nobody has", "alice", json!({ "receipt_id": NOBODY })).refused(Code::NotFound),
            row("another tenant's", "stranger", json!({ "receipt_id": "$receipt1" })).refused(Code::NotFound),
        ],
    }
}

fn ack_receipt() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "ack_receipt", args);
    Scenario {
        good: json!({ "receipt_id": "$receipt1" }),
        rows: vec![
            row("one's own", "alice", json!({ "receipt_id": "$receipt1" })),
            row("a second time", "alice", json!({ "receipt_id": "$receipt1" })).replay(),
            row("another's", "bob", json!({ "receipt_id": "$receipt1" })).refused(Code::Forbidden),
            row("one that nobody has", "alice", json!({ "receipt_id": NOBODY })).refused(Code::NotFound),
            row("another tenant's", "stranger", json!({ "receipt_id": "$receipt1" })).refused(Code::NotFound),
        ],
    }
}

fn get_config() -> Scenario {
    Scenario { good: json!({}), rows: vec![Row::new("what the server is", "carol", "get_config", json!({}))] }
}

fn bootstrap() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "bootstrap", args);
    Scenario {
        good: json!({}),
        rows: vec![
            row("the first contact", "alice", json!({ "agent_id": "alice" })),
            row("another run", "alice", json!({ "agent_instance_id": "run-2", "max_items": 1 })),
            row("after a receipt", "alice", json!({ "since_receipt_id": "$receipt" })),
            row("another's", "bob", json!({ "principal_kind": "agent", "principal_id": "alice" }))
                .refused(Code::Forbidden),
        ],
    }
}
