//! What others build on, as files: a difference is a decision about a public surface. `cargo xtask snapshots` writes
//! them anew; whoever reviews the change reads the difference.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Mode, Role, Scope};

use crate::world::{Reply, World, program};

const UPDATE: &str = "WAYBILL_UPDATE_SNAPSHOTS";

/// What a client puts before its model with every question.
const TASK_TOOLS_BYTES_MAX: usize = 12 << 10;

fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(found.lines()).position(|(kept, found)| kept != found);
    let differs = differs.unwrap_or_else(|| kept.lines().count().min(found.lines().count()));
    assert!(
        kept == found,
        "{name} differs from line {} on:\n  kept:  {}\n  found: {}\nIf it is meant, run `cargo xtask snapshots`.",
        differs + 1,
        kept.lines().nth(differs).unwrap_or("(the end)"),
        found.lines().nth(differs).unwrap_or("(the end)"),
    );
}

fn pretty(value: &Json) -> String {
    format!("{}\n", serde_json::to_string_pretty(value).unwrap())
}

#[tokio::test]
async fn the_openapi_document_and_the_tool_list_are_those_of_the_snapshot() {
    let world = World::start().await;
    let document = Reply::of(world.http.get(world.url("/openapi.json"))).await.json();
    compare("openapi.json", &pretty(&document));

    let registry = waybill_domains::registry();
    let paths = document["paths"].as_object().unwrap();
    let described: Vec<&str> = paths
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(described.len(), registry.entries().count() + registry.streams().count());
    for entry in registry.entries() {
        let spec = entry.spec();
        assert!(described.contains(&&*registry.id(spec)), "{} is missing", spec.name);
        let answers = &paths[spec.route.path][format!("{:?}", spec.route.method).to_lowercase()]["responses"];
        assert!(answers[spec.status.to_string()].is_object(), "{}: {answers}", spec.name);
        let replays = answers["200"]["headers"]["X-Idempotent-Replay"].is_object();
        assert_eq!(replays, entry.replays(), "{}", spec.name);
        assert!(replays || spec.status == 200 || answers["200"].is_null(), "{} is given a replay", spec.name);
    }
    let page = Reply::of(world.http.get(world.url("/docs"))).await;
    for path in paths.keys() {
        assert!(page.text.contains(&format!("<code>{path}</code>")), "{path} is not at /docs");
    }
    for code in Code::ALL {
        assert!(page.text.contains(code.entry().code), "{code} is not explained at /docs");
    }
    for name in described {
        assert!(page.text.contains(&format!("<a href=#{name}>")), "{name} is not in the contents of /docs");
        let section = page.text.split(&format!("<section id={name}>")).nth(1).unwrap_or_else(|| panic!("no {name}"));
        let section = section.split("</section>").next().unwrap();
        assert_eq!(section.matches("<pre>").count(), 2, "{name} has no example at /docs");
    }
    // In the order of the struct, with what is inside them and what may be.
    let create = page.text.split("<section id=create_task>").nth(1).unwrap().split("</section>").next().unwrap();
    let offsets =
        ["type", "payload", "requirements", "requirements.capabilities", "priority", "idempotency_key", "task_id"].map(
            |field| create.find(&format!("<td><code>{field}</code>")).unwrap_or_else(|| panic!("{field}: {create}")),
        );
    assert!(offsets.is_sorted(), "{offsets:?}");
    for part in ["1 to 200 characters", "1 to 1,000", "at most 64 entries", "POST /v1/tasks"] {
        assert!(create.contains(part), "{part} is not in {create}");
    }

    let admin = &world.server.admin_key;
    let listed = world.mcp(admin, "/mcp", "tools/list", &json!({})).await.json();
    compare("tools.json", &pretty(&listed["result"]["tools"]));
    let tasks = world.mcp(admin, "/mcp/tasks", "tools/list", &json!({})).await;
    assert!(tasks.text.len() < TASK_TOOLS_BYTES_MAX, "the tools of /mcp/tasks take {} bytes", tasks.text.len());
}

#[test]
fn the_error_catalogue_is_that_of_the_snapshot() {
    let mut table =
        "| code | HTTP | MCP | SQS | exit | what happened | what to do |\n|---|---|---|---|---|---|---|\n".to_owned();
    for code in Code::ALL {
        let entry = code.entry();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} |",
            entry.code, entry.http, entry.mcp, entry.sqs, entry.exit, entry.title, entry.cure
        );
    }
    compare("errors.md", &table);
}

#[test]
fn the_permission_matrix_is_that_of_the_snapshot() {
    let mark = |yes: bool| if yes { "x" } else { "" };
    let words = Role::ALL.iter().map(|role| role.as_str()).chain(Scope::ALL.iter().map(|scope| scope.as_str()));
    let words: Vec<_> = words.collect();
    let mut table = format!("| operation | route | tool | write | {} |\n", words.join(" | "));
    let _ = writeln!(table, "|---|---|---|---|{}", "---|".repeat(words.len()));
    let registry = waybill_domains::registry();
    for entry in registry.entries() {
        let spec = entry.spec();
        let roles = Role::ALL.iter().map(|role| mark(spec.roles.contains(role)));
        let scopes = Scope::ALL.iter().map(|scope| mark(spec.scopes.contains(scope)));
        let marks: Vec<_> = roles.chain(scopes).collect();
        let method = format!("{:?}", spec.route.method).to_uppercase();
        let (tool, write) = (mark(spec.tool), mark(spec.mode == Mode::Write));
        let _ = writeln!(
            table,
            "| {} | {method} {} | {tool} | {write} | {} |",
            registry.id(spec),
            spec.route.path,
            marks.join(" | ")
        );
    }
    let _ = writeln!(
        table,
        "\n`admin:write` stands for any of the scopes, `admin:read` for any of them where nothing is written. With \
         `tasks:lease` instead of `tasks:read`, get_task shows what the key's principal has leased."
    );
    compare("permissions.md", &table);
}

#[test]
fn the_help_of_the_program_is_that_of_the_snapshot() {
    for (name, args) in [("help.txt", vec!["--help"]), ("help-serve.txt", vec!["serve", "--help"])] {
        let ended = program(&args);
        assert_eq!(ended.exit, 0, "{}", ended.stderr);
        compare(name, &ended.stdout);
    }
}
