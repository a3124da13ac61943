//! Which crate may depend on which. Arrows point inwards: a domain names no database, no HTTP and no MCP.

use serde_json::Value;

const TESTKIT: &str = "waybill-testkit";
/// For dev-dependencies only.
const FOR_TESTS: &[&str] = &[TESTKIT, "waybill-fuzz"];

/// A member and the members it may name. A new crate is added here, with its arrows, in the change that makes it.
const MEMBERS: &[(&str, &[&str])] = &[
    ("waybill-kernel", &[]),
    ("waybill-store", &["waybill-kernel"]),
    ("waybill-access", &["waybill-kernel", "waybill-store"]),
    ("waybill-tasks", &["waybill-kernel", "waybill-store"]),
    ("waybill-queues", &["waybill-kernel", "waybill-store"]),
    ("waybill-mail", &["waybill-kernel", "waybill-store", "waybill-checkout"]),
    // What daemons and the broker say to each other; both stand on it, and it does no I/O.
    ("waybill-mesh-protocol", &["waybill-kernel"]),
    // What members send to a queue is in the queue when it is accepted: one transaction, and the queue's own way in.
    ("waybill-mesh", &["waybill-kernel", "waybill-store", "waybill-mesh-protocol", "waybill-queues"]),
    // The local peer meets the broker only over the wire.
    ("waybill-daemon", &["waybill-kernel", "waybill-store", "waybill-mesh-protocol", "waybill-keeper"]),
    // How programs of others are started and ended: by the worker and by the daemon's hooks.
    ("waybill-keeper", &[]),
    ("waybill-archive", &["waybill-kernel"]),
    // Working trees of projects, which are read as the archive's own repositories are.
    ("waybill-checkout", &["waybill-kernel", "waybill-archive"]),
    // Between mail, which says what is to be archived, and the archive, which knows no database.
    ("waybill-archivist", &["waybill-kernel", "waybill-store", "waybill-mail", "waybill-archive"]),
    // From files to rows: the one place beside the archiver that knows both. Its tests go from rows to files first.
    ("waybill-reindex", &["waybill-kernel", "waybill-store", "waybill-archive", "waybill-mail", "waybill-archivist"]),
    // Which addresses others may make the program connect to.
    ("waybill-guard", &[]),
    // They tell of receipts and of meshes, and their secrets are boxed under the server's key.
    (
        "waybill-webhooks",
        &["waybill-kernel", "waybill-store", "waybill-access", "waybill-tasks", "waybill-mesh", "waybill-guard"],
    ),
    (
        "waybill-domains",
        &[
            "waybill-kernel",
            "waybill-store",
            "waybill-access",
            "waybill-tasks",
            "waybill-queues",
            "waybill-mail",
            "waybill-mesh",
            "waybill-webhooks",
        ],
    ),
    // The protocol of one domain stands above that domain, on what all doors share.
    ("waybill-sqs", &["waybill-kernel", "waybill-store", "waybill-access", "waybill-doors", "waybill-queues"]),
    (
        "waybill-mesh-door",
        &[
            "waybill-kernel",
            "waybill-store",
            "waybill-access",
            "waybill-doors",
            "waybill-mesh",
            "waybill-mesh-protocol",
        ],
    ),
    // The doors meet the domains only through the registry of operations, which the binary fills.
    ("waybill-doors", &["waybill-kernel", "waybill-store", "waybill-access"]),
    // The client meets the server only over the wire.
    ("waybill-client", &["waybill-kernel", "waybill-guard"]),
    ("waybill-heap", &[]),
    (
        "waybill",
        &[
            "waybill-kernel",
            "waybill-store",
            "waybill-access",
            "waybill-tasks",
            "waybill-webhooks",
            "waybill-domains",
            "waybill-queues",
            "waybill-mail",
            "waybill-archive",
            "waybill-archivist",
            "waybill-reindex",
            "waybill-checkout",
            "waybill-doors",
            "waybill-sqs",
            "waybill-mesh",
            "waybill-mesh-protocol",
            "waybill-mesh-door",
            "waybill-daemon",
            "waybill-keeper",
            "waybill-client",
            "waybill-guard",
            "waybill-heap",
        ],
    ),
    (
        TESTKIT,
        &[
            "waybill-kernel",
            "waybill-store",
            "waybill-access",
            "waybill-tasks",
            "waybill-queues",
            "waybill-mail",
            "waybill-mesh",
            "waybill-webhooks",
            "waybill-domains",
        ],
    ),
    ("waybill-fuzz", &[]),
    // Black boxes: they meet the product only as a program. Of the mesh they speak the protocol as a member that has no daemon,
    // whose keys and boxes nobody writes twice.
    ("waybill-bench", &["waybill-mesh-protocol"]),
    // Its faults are chosen by the generator of the fuzzers, and it signs requests as the bench does.
    ("waybill-chaos", &["waybill-bench", "waybill-fuzz"]),
    // It starts a server and prints a table as the bench does.
    ("waybill-hostile", &["waybill-bench"]),
    ("xtask", &[]),
];

/// An outside crate and the only members that may name it.
const CONFINED: &[(&str, &[&str])] = &[
    // Everything else of the system is asked for through rustix, which is safe.
    ("libc", &["waybill-heap"]),
    ("axum", &["waybill-doors", "waybill-bench"]),
    // The binary needs the client half for `waybill mcp`, its stdio bridge.
    ("rmcp", &["waybill-doors", "waybill"]),
    // The scheduler is a worker: its schedules are in a file of its own, not in the server's store.
    // The bench fills a database behind the server's back, where a million calls would take an hour.
    ("rusqlite", &["waybill-store", "waybill", "waybill-bench"]),
    // The test kit makes databases; the bench measures the database without us.
    ("tokio-postgres", &["waybill-store", TESTKIT, "waybill-bench"]),
    ("deadpool-postgres", &["waybill-store"]),
    ("refinery", &["waybill-store"]),
    // The one thing that servers share beside their database.
    ("redis", &["waybill-mesh-door"]),
    // Its interfaces change monthly.
    ("gix-hash", &["waybill-archive"]),
    ("gix-object", &["waybill-archive"]),
    ("gix-odb", &["waybill-archive"]),
    ("gix-zlib", &["waybill-archive"]),
];

/// Findings over the output of `cargo metadata --no-deps`.
pub fn check(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = MEMBERS.iter().find(|(member, _)| *member == name) else {
        return vec![format!("{name} is not in the table of members: say there what it may depend on")];
    };
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    dependencies.iter().filter_map(|dependency| check_edge(name, allowed, dependency)).collect()
}

fn check_edge(from: &str, allowed: &[&str], dependency: &Value) -> Option<String> {
    let to = dependency["name"].as_str().unwrap_or_default();
    let dev = dependency["kind"] == "dev";
    if FOR_TESTS.contains(&to) {
        return (!dev && !allowed.contains(&to))
            .then(|| format!("{from} depends on {to}, which is for dev-dependencies only"));
    }
    if MEMBERS.iter().any(|(member, _)| *member == to) {
        return (!allowed.contains(&to)).then(|| format!("{from} must not depend on {to}"));
    }
    // Dev-dependencies count too: a test that reaches around the store would pin its internals.
    let (_, users) = CONFINED.iter().find(|(confined, _)| *confined == to)?;
    (!users.contains(&from)).then(|| format!("{from} must not name {to}: only {} may", users.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(from: &str, to: &str, kind: Option<&str>) -> Vec<String> {
        check(&json!({"packages": [{"name": from, "dependencies": [{"name": to, "kind": kind}]}]}))
    }

    #[test]
    fn arrows_point_inwards() {
        for (from, to, kind, clean) in [
            ("waybill-store", "waybill-kernel", None, true),
            ("waybill-kernel", "waybill-store", None, false),
            ("waybill-doors", "waybill-access", None, true),
            ("waybill-doors", "waybill-tasks", None, false),
            ("waybill-doors", "waybill-tasks", Some("dev"), false),
            ("waybill-tasks", "waybill-access", None, false),
            ("waybill-queues", "waybill-tasks", None, false),
            ("waybill-webhooks", "waybill-tasks", None, true),
            ("waybill-mesh", "waybill-queues", None, true),
            ("waybill-queues", "waybill-mesh", None, false),
            ("waybill-archive", "waybill-kernel", None, true),
            ("waybill-archive", "waybill-store", None, false),
            ("waybill-mail", "waybill-archive", None, false),
            ("waybill-archivist", "waybill-archive", None, true),
            ("waybill-archivist", "waybill-doors", None, false),
            ("waybill-archive", "gix-odb", None, true),
            ("waybill-mail", "gix-odb", None, false),
            ("waybill-tasks", "waybill-webhooks", None, false),
            ("waybill", "waybill-tasks", None, true),
            ("waybill", "waybill-client", None, true),
            ("waybill-client", "waybill-store", None, false),
            ("waybill-client", "waybill-doors", Some("dev"), false),
            ("waybill-bench", "waybill-kernel", None, false),
            ("xtask", "waybill-testkit", None, false),
            ("waybill-store", "waybill-testkit", Some("dev"), true),
            ("waybill-store", "waybill-testkit", Some("build"), false),
            ("waybill-kernel", "waybill-fuzz", Some("dev"), true),
            ("waybill-kernel", "waybill-fuzz", None, false),
            ("waybill-chaos", "waybill-fuzz", None, true),
            ("waybill-hostile", "waybill-fuzz", None, false),
            ("waybill-doors", "axum", None, true),
            ("waybill-tasks", "axum", None, false),
            ("waybill", "rmcp", None, true),
            ("waybill", "axum", None, false),
            ("waybill-access", "rusqlite", Some("dev"), false),
            ("waybill-testkit", "tokio-postgres", None, true),
            ("waybill-testkit", "rusqlite", None, false),
            ("waybill-tasks", "serde", None, true),
        ] {
            assert_eq!(findings(from, to, kind).is_empty(), clean, "{from} -> {to} ({kind:?})");
        }
    }

    #[test]
    fn a_member_nobody_listed_is_a_finding() {
        assert_eq!(findings("waybill-surprise", "serde", None).len(), 1);
    }
}
