//! What each operation is there for, row by row. The rows of one operation may build on those of the ones before it in
//! the registry.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::Row;

/// The largest payload, as compact JSON.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const NOBODY: &str = "01a1e0e7-2b84-7d12-9a6e-99fae6af2091";

pub struct Scenario {
    /// Arguments that `alice` may use: bad input is made by spoiling them.
    pub good: Json,
    pub rows: Vec<Row>,
}

pub fn of(operation: &'static str) -> Option<Scenario> {
    match operation {
        "create_task" => Some(create_task()),
        "get_task" => Some(get_task()),
        "list_tasks" => Some(list_tasks()),
        "cancel_task" => Some(cancel_task()),
        "lease_next" => Some(lease_next()),
        "renew_lease" => Some(renew_lease()),
        "report_progress" => Some(report_progress()),
        "complete" => Some(complete()),
        "fail" => Some(fail()),
        "list_open_obligations" => Some(list_open_obligations()),
        "list_receipts" => Some(list_receipts()),
        "get_receipt" => Some(get_receipt()),
        "ack_receipt" => Some(ack_receipt()),
        "get_config" => Some(get_config()),
        "bootstrap" => Some(bootstrap()),
        "list_queues" => Some(list_queues()),
        "get_queue" => Some(get_queue()),
        "peek_messages" => Some(peek_messages()),
        _ => super::mail::of(operation).or_else(|| super::mail_files::of(operation)),
    }
}

fn create_task() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "create_task", args);
    let keyed = json!({ "type": "invoice", "idempotency_key": "invoice-4711", "payload": { "n": 1 } });
    let in_her_name = json!({ "type": "invoice", "idempotency_key": "invoice-4711", "created_by": "agent:alice" });
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
            row("the same key by the admin, in the owner's name", "admin", in_her_name).replay(),
            row("the same key from another principal of the tenant", "bob", keyed.clone()),
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
            row(
                "anybody's, by the admin, in another's name",
                "admin",
                json!({ "task_id": "$bobs", "reason": "stopped", "principal_kind": "agent", "principal_id": "alice" }),
            ),
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

fn lease_next() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "lease_next", args);
    let create =
        |name| Row::new("work for a worker", "alice", "create_task", json!({ "type": "lift" })).keep(name, "task_id");
    let lift = json!({ "accept_types": ["lift"], "capabilities": ["strong"], "worker_instance_id": "run-1" });
    let take = |name| row("one of a type", "wendy", lift.clone()).keep(name, "/tasks/0/lease_id");
    let needy = json!({ "type": "lift", "priority": 9, "requirements": { "capabilities": ["crane"] } });
    Scenario {
        good: json!({ "worker_id": "wendy", "accept_types": ["nothing of the kind"] }),
        rows: vec![
            Row::new("work that fits nobody here", "alice", "create_task", needy),
            create("lift1"),
            create("lift2"),
            create("lift3"),
            create("lift4"),
            create("lift5"),
            row("nothing of a type", "wendy", json!({ "accept_types": ["sing"] })),
            take("lease1"),
            take("lease2"),
            take("lease3"),
            take("lease4"),
            take("lease5"),
            row("nothing left", "wendy", lift.clone()),
            row("as another worker", "wendy", json!({ "worker_id": "walt" })).refused(Code::Forbidden),
            row("by the admin, for a worker", "admin", json!({ "worker_id": "walt", "accept_types": ["echo"] })),
            Row::new("what one works on", "wendy", "get_task", json!({ "task_id": "$lift1" })),
            Row::new("what another works on", "walt", "get_task", json!({ "task_id": "$lift1" }))
                .refused(Code::Forbidden),
            row("an empty capability", "wendy", json!({ "capabilities": [""] })).refused(Code::InvalidRequest),
        ],
    }
}

fn renew_lease() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "renew_lease", args);
    let lease = json!({ "task_id": "$lift1", "lease_id": "$lease1" });
    let stale = json!({ "task_id": "$lift1", "lease_id": "$lease2" });
    Scenario {
        good: json!({ "task_id": "$lift1", "lease_id": "$lease1", "extend_by_seconds": 60 }),
        rows: vec![
            row("one's own", "wendy", lease.clone()),
            row("another's", "walt", lease.clone()).refused(Code::LeaseInvalidOrExpired),
            row("by a lease of another task", "wendy", stale).refused(Code::LeaseInvalidOrExpired),
            row("in another tenant", "strange_worker", lease).refused(Code::NotFound),
        ],
    }
}

fn report_progress() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "report_progress", args);
    let report = |progress: Json| json!({ "task_id": "$lift1", "lease_id": "$lease1", "progress": progress });
    Scenario {
        good: report(json!(1)),
        rows: vec![
            row("a number", "wendy", report(json!(10))),
            row("an object", "wendy", report(json!({ "percent": 55, "step": "lifting" }))),
            row("a long report", "wendy", report(json!("x".repeat(50_000)))),
            row("too long a report", "wendy", report(json!("x".repeat(65_536)))).refused(Code::ReceiptTooLarge),
            Row::new("a task in work", "alice", "get_task", json!({ "task_id": "$lift1" })),
        ],
    }
}

fn complete() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "complete", args);
    let located = json!({
        "task_id": "$lift1", "lease_id": "$lease1", "result": { "lifted": true }, "artifacts": [{ "type": "note", "id": "n1" }],
    });
    let bare = json!({ "task_id": "$lift2", "lease_id": "$lease2", "result": 7 });
    let proven =
        json!({ "task_id": "$lift2", "lease_id": "$lease2", "result": 7, "delivery_proof": { "mode": "push" } });
    let many = json!({ "task_id": "$lift3", "lease_id": "$lease3", "artifacts": vec![json!({ "p": 1 }); 101] });
    let large = json!({
        "task_id": "$lift3", "lease_id": "$lease3", "result": "x".repeat(70_000), "artifacts": { "p": 1 },
    });
    Scenario {
        good: json!({ "task_id": "$lift1", "lease_id": "$lease1" }),
        rows: vec![
            row("with artifacts", "wendy", located.clone()),
            row("the same again", "wendy", located).replay(),
            row("other words", "wendy", json!({ "task_id": "$lift1", "lease_id": "$lease1", "result": 0 }))
                .refused(Code::InvalidStateTransition),
            row("without a place", "wendy", bare.clone()),
            row("without a place again", "wendy", bare).replay(),
            row("with a proof afterwards", "wendy", proven.clone()),
            row("with a proof again", "wendy", proven).replay(),
            row("too many artifacts", "wendy", many).refused(Code::ReceiptTooLarge),
            row("a large result", "wendy", large),
            Row::new("a result for its owner", "alice", "get_task", json!({ "task_id": "$lift1", "wait_seconds": 20 })),
        ],
    }
}

fn fail() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "fail", args);
    let again = json!({ "task_id": "$lift4", "lease_id": "$lease4", "error": { "why": "rain" }, "retryable": true });
    let done = json!({ "task_id": "$lift5", "lease_id": "$lease5", "error": "broken" });
    let long = json!({ "task_id": "$lift5", "lease_id": "$lease5", "error": "x".repeat(65_536) });
    Scenario {
        good: json!({ "task_id": "$lift5", "lease_id": "$lease5", "error": 1 }),
        rows: vec![
            row("for a while", "wendy", again.clone()),
            row("for a while, again", "wendy", again).replay(),
            row("with too much to say", "wendy", long).refused(Code::ReceiptTooLarge),
            row("for good", "wendy", done.clone()),
            row("for good, again", "wendy", done).replay(),
            row("a lease that has ended", "wendy", json!({ "task_id": "$lift1", "lease_id": "$lease1", "error": 1 }))
                .refused(Code::InvalidStateTransition),
            Row::new("a failed task", "alice", "get_task", json!({ "task_id": "$lift5" })),
            Row::new("a task that waits", "alice", "get_task", json!({ "task_id": "$lift4" })),
        ],
    }
}

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

/// May receive from queues, and no more.
const CONSUMER: &str = "agent/queues:receive";
const SENDER: &str = "agent/queues:send";

fn list_queues() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "list_queues", args);
    Scenario {
        good: json!({}),
        rows: vec![
            row("all queues", "admin", json!({})),
            row("some queues", CONSUMER, json!({ "prefix": "o" })),
            row("the first page", SENDER, json!({ "limit": 1 })).keep("queue_page", "next_cursor"),
            row("the second page", SENDER, json!({ "limit": 1, "cursor": "$queue_page" })),
            row("a page with another filter", SENDER, json!({ "prefix": "j", "cursor": "$queue_page" }))
                .refused(Code::InvalidCursor),
        ],
    }
}

fn get_queue() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "get_queue", args);
    Scenario {
        good: json!({ "queue": "jobs" }),
        rows: vec![
            row("a queue", "admin", json!({ "queue": "jobs" })),
            row("a FIFO queue", SENDER, json!({ "queue": "orders.fifo" })),
            row("a queue that there is not", "admin", json!({ "queue": "nowhere" })).refused(Code::QueueDoesNotExist),
            row("what is no name", "admin", json!({ "queue": "a b" })).refused(Code::QueueDoesNotExist),
        ],
    }
}

fn peek_messages() -> Scenario {
    let row = |what: &str, who: &str, args: Json| Row::new(what, who, "peek_messages", args);
    Scenario {
        good: json!({ "queue": "jobs" }),
        rows: vec![
            row("an empty queue", CONSUMER, json!({ "queue": "jobs", "limit": 100, "body_bytes": 256 })),
            row("by a sender", SENDER, json!({ "queue": "jobs" })).refused(Code::Forbidden),
            row("a queue that there is not", CONSUMER, json!({ "queue": "nowhere" })).refused(Code::QueueDoesNotExist),
        ],
    }
}
