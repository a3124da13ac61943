//! Reservations, search and threads. Their project is their own, so that nothing here depends on the rows of other tools.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::Row;
use super::scenarios::Scenario;

const PROJECT: &str = "/data/projects/files";

pub fn of(operation: &str) -> Option<Scenario> {
    match operation {
        "file_reservation_paths" => Some(file_reservation_paths()),
        "check_file_reservation_conflicts" => Some(check_file_reservation_conflicts()),
        "renew_file_reservations" => Some(renew_file_reservations()),
        "release_file_reservations" => Some(release_file_reservations()),
        "force_release_file_reservation" => Some(force_release_file_reservation()),
        "search_messages" => Some(search_messages()),
        "summarize_thread" => Some(summarize_thread()),
        "acquire_build_slot" | "renew_build_slot" | "release_build_slot" => Some(build_slot(operation)),
        "ensure_product" => Some(ensure_product()),
        "products_link" => Some(products_link()),
        "search_messages_product" => Some(product_read("search_messages_product", json!({ "query": "red button" }))),
        "fetch_inbox_product" => Some(product_read("fetch_inbox_product", json!({ "agent_name": "BlueLake" }))),
        "summarize_thread_product" => Some(product_read("summarize_thread_product", json!({ "thread_id": "T-1" }))),
        _ => None,
    }
}

fn agent(name: &str, more: Json) -> Json {
    let mut all = json!({ "project_key": PROJECT, "agent_name": name });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn file_reservation_paths() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "file_reservation_paths", args);
    let mut rows = vec![Row::new("a project", "admin", "ensure_project", json!({ "human_key": PROJECT }))];
    for name in ["GreenCastle", "BlueLake"] {
        let args = json!({ "project_key": PROJECT, "program": "p", "model": "m", "name": name });
        rows.push(Row::new(name, "admin", "register_agent", args));
        let open = agent(name, json!({ "policy": "open" }));
        rows.push(Row::new("open to all", "admin", "set_contact_policy", open));
    }
    let keyed = agent("GreenCastle", json!({ "paths": ["src/*.rs"], "idempotency_key": "k", "reason": "R" }));
    rows.extend([
        row("under a key", keyed.clone()),
        row("the same again", keyed).replay(),
        row("the key for something else", agent("GreenCastle", json!({ "paths": ["x"], "idempotency_key": "k" })))
            .refused(Code::IdempotencyKeyConflict),
        row("what another holds", agent("BlueLake", json!({ "paths": ["src/a.rs", "docs"], "exclusive": null }))),
        row("nothing", agent("BlueLake", json!({ "paths": [] }))).refused(Code::EmptyPaths),
        row("everything", agent("BlueLake", json!({ "paths": ["**"] }))).refused(Code::SuspiciousPattern),
        row("no agent", agent("RedStone", json!({ "paths": ["a"] }))).refused(Code::NotFound),
    ]);
    Scenario { good: agent("BlueLake", json!({ "paths": ["free"] })), rows }
}

fn check_file_reservation_conflicts() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "check_file_reservation_conflicts", args);
    Scenario {
        good: agent("BlueLake", json!({ "paths": ["free"] })),
        rows: vec![
            row("held and free", agent("BlueLake", json!({ "paths": ["src/a.rs", "docs", "free"] }))),
            row("shared", agent("BlueLake", json!({ "paths": ["src/a.rs"], "exclusive": false }))),
        ],
    }
}

fn renew_file_reservations() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "renew_file_reservations", args);
    Scenario {
        good: agent("BlueLake", json!({})),
        rows: vec![
            row("all", agent("GreenCastle", json!({}))),
            row("of a path", agent("GreenCastle", json!({ "paths": ["./src//*.rs"], "extend_seconds": 60 }))),
            row("of none", agent("GreenCastle", json!({ "file_reservation_ids": [999_999] }))),
        ],
    }
}

fn release_file_reservations() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "release_file_reservations", args);
    Scenario {
        good: agent("BlueLake", json!({})),
        rows: vec![
            row("of a path", agent("GreenCastle", json!({ "paths": ["src/*.rs"] }))),
            row("once more", agent("GreenCastle", json!({ "paths": ["src/*.rs"] }))),
        ],
    }
}

fn force_release_file_reservation() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "force_release_file_reservation", args);
    let held = agent("BlueLake", json!({ "paths": ["lib"] }));
    Scenario {
        good: agent("GreenCastle", json!({ "file_reservation_id": 1 })),
        rows: vec![
            Row::new("held by another", "admin", "file_reservation_paths", held).keep("lib", "/granted/0/id"),
            Row::new(
                "released by it",
                "admin",
                "release_file_reservations",
                agent("BlueLake", json!({ "paths": ["lib"] })),
            ),
            row("what is over", agent("GreenCastle", json!({ "file_reservation_id": "$lib" }))),
            row("what is not there", agent("GreenCastle", json!({ "file_reservation_id": 999_999 })))
                .refused(Code::NotFound),
        ],
    }
}

fn search_messages() -> Scenario {
    let row = |what: &str, further: Json| {
        let mut args = json!({ "project_key": PROJECT });
        args.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        Row::new(what, "admin", "search_messages", args)
    };
    let letter = |subject: &str| {
        json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": subject,
                "body_md": "- [ ] press the red button", "thread_id": "T-1" })
    };
    Scenario {
        good: json!({ "project_key": PROJECT }),
        rows: vec![
            Row::new("a letter", "admin", "send_message", letter("Deploy")),
            Row::new("another", "admin", "send_message", letter("Rollback")),
            row("a word", json!({ "query": "button", "limit": 1 })).keep("found", "next_cursor"),
            row("the next page", json!({ "query": "button", "limit": 1, "cursor": "$found" })),
            row("the cursor of another query", json!({ "query": "red", "limit": 1, "cursor": "$found" }))
                .refused(Code::InvalidCursor),
            row("by hints", json!({ "query": "from:GreenCastle \"red button\" NOT deploy", "explain": true })),
            row("what does not parse", json!({ "query": "(deploy", "ranking": "recency", "include_body_md": true })),
            row(
                "by filters alone",
                json!({ "importance": ["normal"], "thread_id": "T-1", "date_start": "2001-01-01" }),
            ),
        ],
    }
}

fn summarize_thread() -> Scenario {
    let row = |what: &str, id: &str| {
        let args = json!({ "project_key": PROJECT, "thread_id": id, "include_examples": true });
        Row::new(what, "admin", "summarize_thread", args)
    };
    Scenario {
        good: json!({ "project_key": PROJECT, "thread_id": "T-1" }),
        rows: vec![
            row("a thread", "T-1"),
            row("a digest", "T-1, T-2"),
            row("what is not there", "T-9").refused(Code::NotFound),
        ],
    }
}

/// Each of the three, with what it needs before it.
fn build_slot(operation: &str) -> Scenario {
    let slot = |name: &str| agent(name, json!({ "slot": "build" }));
    let all = ["acquire_build_slot", "renew_build_slot", "release_build_slot"];
    let name = all.into_iter().find(|name| *name == operation).unwrap();
    Scenario {
        good: slot("BlueLake"),
        rows: vec![
            Row::new("for one", "admin", name, slot("GreenCastle")),
            Row::new("for another", "admin", name, slot("BlueLake")),
            Row::new("once more", "admin", name, slot("GreenCastle")),
            Row::new("no slot", "admin", name, agent("BlueLake", json!({ "slot": "" }))).refused(Code::InvalidRequest),
        ],
    }
}

fn ensure_product() -> Scenario {
    let row = |what: &str, args: Json| Row::new(what, "admin", "ensure_product", args);
    Scenario {
        good: json!({ "product_key": "shop" }),
        rows: vec![
            row("a product", json!({ "product_key": "shop", "name": "The shop" })),
            row("the same again", json!({ "product_key": "shop", "name": "Another name" })),
            row("no key", json!({ "product_key": "a b" })).refused(Code::InvalidRequest),
        ],
    }
}

fn products_link() -> Scenario {
    let row = |what: &str, key: &str| {
        Row::new(what, "admin", "products_link", json!({ "product_key": key, "project_key": PROJECT }))
    };
    Scenario {
        good: json!({ "product_key": "shop", "project_key": PROJECT }),
        rows: vec![
            row("a project", "shop"),
            row("the same again", "shop"),
            row("to no product", "none").refused(Code::NotFound),
        ],
    }
}

fn product_read(operation: &'static str, further: Json) -> Scenario {
    let of = |key: &str| {
        let mut args = json!({ "product_key": key });
        args.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        args
    };
    Scenario {
        good: of("shop"),
        rows: vec![
            Row::new("of a product", "admin", operation, of("shop")),
            Row::new("of none", "admin", operation, of("none")).refused(Code::NotFound),
        ],
    }
}
