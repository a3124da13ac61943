//! Mail as clients and people meet it: its tools by profile, its resources, and `waybill mail …`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use crate::world::{Ended, Engine, World, program};

const PROJECT: &str = "/data/projects/backend";
const MINIMAL: [&str; 8] = [
    "acknowledge_message",
    "ensure_project",
    "fetch_inbox",
    "file_reservation_paths",
    "register_agent",
    "release_file_reservations",
    "reply_message",
    "send_message",
];
/// What a client puts before its model with every question.
const CORE_TOOLS_BYTES_MAX: usize = 16 << 10;

fn mail(world: &World, args: &[&str]) -> Ended {
    let url = world.url("");
    program(&[&["mail"], args, &["--url", &url, "--key", &world.server.admin_key]].concat())
}

/// In the project, with the answer as JSON.
fn asked(world: &World, args: &[&str]) -> Json {
    let ended = mail(world, &[args, &["--project", PROJECT, "--json"]].concat());
    assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
    ended.json()
}

/// A new agent, and its name.
fn registered(world: &World) -> String {
    let ended = mail(world, &["register", "--project", PROJECT, "--task", "tests"]);
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    ended.stdout.trim().to_owned()
}

async fn a_day_of_two_agents(engine: Engine) {
    let world = World::with(engine, "", &[]).await;
    let (one, two) = (registered(&world), registered(&world));
    assert_ne!(one, two);
    assert_eq!(asked(&world, &["register", "--agent", &one])["name"], json!(one), "who comes back is the same");

    let granted = asked(&world, &["reserve", "src/*.rs", "README.md", "--reason", "the API", "--agent", &one]);
    assert_eq!(granted["granted"].as_array().unwrap().len(), 2, "{granted}");
    let met = mail(&world, &["reserve", "src/a.rs", "docs/a.md", "--project", PROJECT, "--agent", &two]);
    met.must_be_cured(Code::AlreadyExists, "What they do not hold was reserved.", "a file of another's");
    assert!(
        met.stdout.contains("docs/a.md") && met.stderr.contains(&one) && met.stderr.contains("the API"),
        "{}",
        met.stderr
    );

    let unasked = mail(&world, &["send", "--project", PROJECT, "--agent", &two, "--to", &one, "--subject", "x", "x"]);
    assert!(unasked.exit != 0 && unasked.stderr.contains("CONTACT_REQUIRED"), "{}", unasked.stderr);
    let requested = asked(&world, &["contact", &one, "--reason", "a.rs", "--agent", &two]);
    assert_eq!(requested["status"], "pending", "{requested}");
    assert_eq!(asked(&world, &["answer", &two, "--agent", &one])["status"], "approved");
    asked(&world, &["ack", &requested["intro_message_id"].to_string(), "--agent", &one]);

    let sent = asked(
        &world,
        &["send", "--to", &one, "--subject", "May I?", "--ack", "--thread", "FEAT-1", "I need a.rs.", "--agent", &two],
    );
    let id = sent["deliveries"][0]["payload"]["id"].to_string();
    let listed = mail(&world, &["inbox", "--unread", "--project", PROJECT, "--agent", &one]);
    assert!(listed.stdout.contains("May I?") && listed.stdout.contains("wanted"), "{}", listed.stdout);
    let read = mail(&world, &["read", &id, "--project", PROJECT, "--agent", &one]);
    let letter = format!("Message: {id}\nFrom: {two}\nTo: {one}\nSubject: May I?\nThread: FEAT-1\n");
    assert!(read.stdout.starts_with(&letter) && read.stdout.contains("\n\nI need a.rs."), "{}", read.stdout);
    assert_eq!(asked(&world, &["inbox", "--unread", "--agent", &one])["result"], json!([]), "what was read is read");

    let replied = asked(&world, &["reply", &id, "At noon.", "--agent", &one]);
    assert_eq!((&replied["subject"], &replied["to"]), (&json!("Re: May I?"), &json!([two])));
    assert_eq!(asked(&world, &["ack", &id, "--agent", &one])["acknowledged"], true);
    let found = asked(&world, &["search", "noon"]);
    assert_eq!(found["result"][0]["id"], replied["id"], "{found}");
    let thread = mail(&world, &["thread", "FEAT-1", "--project", PROJECT]);
    let offsets = ["I need a.rs.", "At noon."].map(|text| thread.stdout.find(text));
    assert!(offsets[0].is_some() && offsets[0] < offsets[1], "{}", thread.stdout);

    assert_eq!(asked(&world, &["release", "--agent", &one])["released"], 2);
    let agents = mail(&world, &["agents", "--project", PROJECT]);
    assert!(agents.stdout.contains(&one) && agents.stdout.contains(&two), "{}", agents.stdout);
    let projects = mail(&world, &["projects"]);
    assert!(projects.stdout.contains(PROJECT), "{}", projects.stdout);
}

#[tokio::test]
async fn the_commands_of_mail_do_a_day_of_two_agents_on_sqlite() {
    a_day_of_two_agents(Engine::Sqlite).await;
}

#[tokio::test]
async fn the_commands_of_mail_do_a_day_of_two_agents_on_postgresql() {
    a_day_of_two_agents(Engine::Postgres).await;
}

#[tokio::test]
async fn a_list_that_is_cut_says_so_and_goes_on_by_its_cursor() {
    let world = World::start().await;
    let (one, _two) = (registered(&world), registered(&world));
    for subject in ["first", "second", "third"] {
        asked(&world, &["send", "--to", &one, "--agent", &one, "--thread", "T-1", "--subject", subject, "The plan."]);
    }
    for list in [&["search", "plan", "--limit", "2"], &["thread", "T-1", "--limit", "2"]] {
        let page = mail(&world, &[&list[..], &["--project", PROJECT]].concat());
        assert_eq!(page.exit, 0, "{}", page.stderr);
        let told = page.stderr.lines().find_map(|line| line.strip_prefix("There are more: --cursor "));
        let cursor = told.unwrap_or_else(|| panic!("{list:?}: {}", page.stderr));
        let rest = mail(&world, &[&list[..], &["--cursor", cursor, "--project", PROJECT]].concat());
        assert!(page.stdout.contains("third") && page.stdout.contains("second"), "{list:?}: {}", page.stdout);
        assert!(rest.stdout.contains("first") && !rest.stdout.contains("second"), "{list:?}: {}", rest.stdout);
        assert!(!rest.stderr.contains("--cursor"), "{list:?}: {}", rest.stderr);
    }
    let agents = mail(&world, &["agents", "--limit", "1", "--project", PROJECT]);
    assert!(agents.stderr.contains("raise --limit"), "{}", agents.stderr);
    let all = mail(&world, &["agents", "--project", PROJECT]);
    assert!(!all.stderr.contains("raise --limit"), "{}", all.stderr);
}

#[tokio::test]
async fn mail_of_an_agent_is_searched_with_its_token_and_read_by_whoever_wrote_it() {
    let world = World::start().await;
    let agent = asked(&world, &["register"]);
    let (name, token) = (agent["name"].as_str().unwrap(), agent["registration_token"].as_str().unwrap());
    let sent = asked(&world, &["send", "--to", name, "--agent", name, "--subject", "Note", "The plan."]);
    let id = sent["deliveries"][0]["payload"]["id"].to_string();

    let key = world.key(json!({ "principal": "agent:other", "scopes": ["mail:read", "mail:write"] })).await;
    let url = world.url("");
    let search = [
        "mail",
        "search",
        "plan",
        "--agent",
        name,
        "--project",
        PROJECT,
        "--json",
        "--url",
        url.as_str(),
        "--key",
        key.as_str(),
    ];
    assert_ne!(program(&search).exit, 0, "another key's agent");
    let found = program(&[&search[..], &["--token", token]].concat());
    assert_eq!(found.exit, 0, "{}", found.stderr);
    assert_eq!(found.json()["result"][0]["id"].to_string(), id);

    // To itself: it has written the message and got it.
    asked(&world, &["read", &id, "--agent", name]);
    assert_eq!(asked(&world, &["inbox", "--unread", "--agent", name])["result"], json!([]));
    let other = registered(&world);
    asked(&world, &["policy", "open", "--agent", &other]);
    let sent = asked(&world, &["send", "--to", &other, "--agent", name, "--subject", "Note", "For you."]);
    let id = sent["deliveries"][0]["payload"]["id"].to_string();
    assert_eq!(
        asked(&world, &["read", &id, "--agent", name])["subject"],
        "Note",
        "what one has sent alone has no mark"
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_command_of_mail_is_told() {
    let world = World::start().await;
    let nobody = mail(&world, &["inbox", "--project", PROJECT]);
    nobody.must_be_cured(Code::InvalidRequest, "AGENT_NAME", "no agent");
    let one = registered(&world);
    let unknown = mail(&world, &["inbox", "--project", "/data/projects/other", "--agent", &one]);
    assert_eq!(unknown.exit, i32::from(Code::NotFound.entry().exit), "{}", unknown.stderr);
    let stranger =
        mail(&world, &["send", "--project", PROJECT, "--agent", &one, "--to", "Nobody", "--subject", "x", "x"]);
    assert!(stranger.exit != 0 && stranger.stderr.contains("Nobody"), "{}", stranger.stderr);
    let slug = mail(&world, &["register", "--project", "no-such-slug"]);
    assert_ne!(slug.exit, 0, "{}", slug.stdout);
}

#[tokio::test]
async fn profiles_say_how_many_tools_there_are() {
    let world = World::start().await;
    let admin = &world.server.admin_key;
    let tools = async |path: &str| {
        let mut names = world.tools(admin, path).await;
        names.sort();
        names
    };
    assert_eq!(tools("/mcp/mail?profile=minimal").await, MINIMAL);
    let (core, full) = (tools("/mcp/mail").await, tools("/mcp/mail?profile=full").await);
    assert_eq!(core, tools("/mcp/mail?profile=core").await);
    assert!(MINIMAL.iter().all(|name| core.contains(&(*name).to_owned())), "{core:?}");
    assert!(core.iter().all(|name| full.contains(name)) && core.len() < full.len(), "{core:?} {full:?}");
    assert!(core.contains(&"search_messages".to_owned()) && !core.contains(&"list_agents".to_owned()));

    let listed = world.mcp(admin, "/mcp/mail", "tools/list", &json!({})).await;
    assert!(listed.text.len() <= CORE_TOOLS_BYTES_MAX, "the tools of /mcp/mail take {} bytes", listed.text.len());

    // Where all domains are served, the name says which.
    let all = tools("/mcp").await;
    assert!(all.contains(&"mail.send_message".to_owned()) && all.contains(&"create_task".to_owned()), "{all:?}");
    assert!(!all.contains(&"send_message".to_owned()) && !all.contains(&"mail.list_agents".to_owned()));

    let call = json!({ "name": "list_agents", "arguments": { "project_key": PROJECT } });
    let outside = world.mcp(admin, "/mcp/mail", "tools/call", &call).await.json();
    let told = outside["error"]["message"].as_str().unwrap_or_else(|| panic!("{outside}"));
    assert!(told.contains("profile core") && told.contains("?profile=full"), "{told}");
    let inside = world.mcp(admin, "/mcp/mail?profile=full", "tools/call", &call).await.json();
    assert_eq!(inside["result"]["structuredContent"]["error"], "not_found", "{inside}");
}

#[tokio::test]
async fn resources_of_mail_are_what_rest_reads() {
    let world = World::start().await;
    let admin = &world.server.admin_key;
    let (one, two) = (registered(&world), registered(&world));
    assert_eq!(asked(&world, &["policy", "contacts_only", "--agent", &one])["policy"], "contacts_only");
    asked(&world, &["reserve", "src/*.rs", "--agent", &one]);
    let unasked = ["send", "--project", PROJECT, "--agent", &two, "--to", &one, "--subject", "x", "x"];
    let refused = mail(&world, &unasked);
    assert!(refused.exit != 0 && refused.stderr.contains("CONTACT_REQUIRED"), "{}", refused.stderr);
    assert_eq!(asked(&world, &["contact", &one, "--reason", "a.rs", "--agent", &two])["status"], "pending");
    assert_eq!(asked(&world, &["answer", &two, "--agent", &one])["status"], "approved");
    asked(&world, &["ack", "1", "--agent", &one]);

    let sent = asked(
        &world,
        &[
            "send",
            "--to",
            &one,
            "--subject",
            "Hello",
            "--importance",
            "urgent",
            "--thread",
            "T-1",
            "Text.",
            "--agent",
            &two,
        ],
    );
    let id = sent["deliveries"][0]["payload"]["id"].to_string();
    let (project, slug) = ("%2Fdata%2Fprojects%2Fbackend", "data-projects-backend");
    let of = format!("project_key={project}&agent_name={one}");
    for (uri, route) in [
        (format!("inbox/{one}?project={PROJECT}"), format!("/v1/mail/mailbox/inbox?{of}")),
        (
            format!("inbox/{one}?project={project}&limit=1&urgent_only=true&include_bodies=true"),
            format!("/v1/mail/mailbox/inbox?{of}&limit=1&urgent_only=true&include_bodies=true"),
        ),
        (
            format!("outbox/{two}?project={slug}"),
            format!("/v1/mail/mailbox/outbox?project_key={slug}&agent_name={two}"),
        ),
        (format!("mailbox/{one}?project={project}"), format!("/v1/mail/mailbox/mailbox?{of}")),
        (format!("views/urgent-unread/{one}?project={project}"), format!("/v1/mail/mailbox/urgent-unread?{of}")),
        (format!("views/ack-required/{one}?project={project}"), format!("/v1/mail/mailbox/ack-required?{of}")),
        (format!("views/ack-overdue/{one}?project={project}"), format!("/v1/mail/mailbox/ack-overdue?{of}")),
        (format!("views/acks-stale/{one}?project={project}"), format!("/v1/mail/mailbox/acks-stale?{of}")),
        (format!("thread/T-1?project={project}"), format!("/v1/mail/threads/T-1?project_key={project}")),
        (format!("message/{id}?project={project}"), format!("/v1/mail/messages/{id}?project_key={project}")),
        ("projects".to_owned(), "/v1/mail/projects".to_owned()),
        ("tooling/projects".to_owned(), "/v1/mail/projects".to_owned()),
        (format!("project/{slug}"), format!("/v1/mail/projects/{slug}")),
        (format!("identity/{project}"), format!("/v1/mail/projects/{project}")),
        (format!("agents/{project}"), format!("/v1/mail/agents?project_key={project}")),
        (format!("file_reservations/{slug}"), format!("/v1/mail/file_reservations?project_key={slug}")),
    ] {
        let params = json!({ "uri": format!("resource://{uri}") });
        let read = world.mcp(admin, "/mcp/mail", "resources/read", &params).await.json();
        let text = read["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{uri}: {read}"));
        let rest = world.get(admin, &route).await;
        assert_eq!((rest.status, text), (200, rest.text.as_str()), "{uri}");
    }
    let inbox = json!({ "uri": format!("resource://inbox/{one}?project={project}&urgent_only=true") });
    let read = world.mcp(admin, "/mcp", "resources/read", &inbox).await.json();
    assert!(read["result"]["contents"][0]["text"].as_str().unwrap().contains("Hello"), "{read}");
    let without_project = json!({ "uri": format!("resource://inbox/{one}") });
    let refused = world.mcp(admin, "/mcp/mail", "resources/read", &without_project).await.json();
    assert!(refused["error"]["data"]["template"].as_str().unwrap().contains("{?project"), "{refused}");
}

/// As clients of the existing servers call, and as they read what went wrong.
#[tokio::test]
async fn clients_of_existing_servers_are_understood() {
    let world = World::start().await;
    let admin = &world.server.admin_key;
    let tool = async |name: &str, arguments: Json| {
        let params = json!({ "name": name, "arguments": arguments });
        world.mcp(admin, "/mcp/mail?profile=full", "tools/call", &params).await.json()["result"].clone()
    };
    let made =
        tool("ensure_project", json!({ "human_key": PROJECT, "identity_mode": "git-remote", "format": "toon" })).await;
    assert_eq!(made["structuredContent"]["identity_mode"], "dir", "{made}");
    for (name, arguments, kind) in [
        ("whois", json!({ "project_key": PROJECT, "agent_name": "NobodyHere", "format": null }), "NOT_FOUND"),
        ("whois", json!({ "project_key": PROJECT }), "MISSING_FIELD"),
        ("fetch_inbox", json!({ "project_key": PROJECT, "agent_name": "A", "limit": "many" }), "TYPE_ERROR"),
        ("ensure_project", json!({ "human_key": "backend" }), "INVALID_ARGUMENT"),
        (
            "register_agent",
            json!({ "project_key": PROJECT, "program": "p", "model": "m", "name": "claude" }),
            "INVALID_AGENT_NAME",
        ),
    ] {
        let refused = tool(name, arguments).await;
        let error = &refused["structuredContent"];
        assert_eq!((&refused["isError"], &error["type"]), (&json!(true), &json!(kind)), "{refused}");
        assert_eq!(error["recoverable"], true, "{refused}");
        assert!(error["data"].is_object() && error["message"].is_string() && error["error"].is_string(), "{refused}");
    }
    let read = json!({ "uri": "resource://projects?format=json" });
    let read = world.mcp(admin, "/mcp/mail", "resources/read", &read).await.json();
    assert!(read["result"]["contents"][0]["text"].as_str().unwrap().contains(PROJECT), "{read}");
    // Figures by tool, under the names that they have there.
    let shown = world.get(admin, "/metrics").await.text;
    assert!(shown.contains("waybill_mail_tool_calls_total{tool=\"whois\"} 1"), "{shown}");
    for name in ["tool_errors_total", "tool_latency_us"] {
        assert!(shown.contains(&format!("waybill_mail_{name}")), "{name}: {shown}");
    }
}

/// An answer over MCP is several times as long as what it says, and is refused where a key has too much waiting: whatever was
/// marked as read by then would be lost.
#[tokio::test]
async fn large_mail_is_shown_over_mcp_before_it_is_read() {
    let world = World::start().await;
    let key = world.key(json!({ "principal": "agent:reader", "scopes": ["mail:read", "mail:write"] })).await;
    let tool = async |name: &str, arguments: Json| {
        let params = json!({ "name": name, "arguments": arguments });
        let reply = world.mcp(&key, "/mcp/mail?profile=full", "tools/call", &params).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text.chars().take(500).collect::<String>());
        let answer = reply.json();
        assert!(!answer["result"]["isError"].as_bool().unwrap_or_default(), "{name}: {answer}");
        answer["result"]["structuredContent"].clone()
    };
    tool("ensure_project", json!({ "human_key": PROJECT })).await;
    let profile = json!({ "project_key": PROJECT, "program": "p", "model": "m", "name": "GreenCastle" });
    tool("register_agent", profile).await;
    // Texts that are long, and texts that JSON makes long.
    let large = STANDARD.encode(vec![7; 1_400_000]);
    let mut sent = Vec::new();
    for text in ["x".repeat(1 << 20), "\"\n".repeat(300_000)].iter().cycle().take(8) {
        let message = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["GreenCastle"], "subject": "s",
            "body_md": text });
        sent.push(tool("send_message", message).await["deliveries"][0]["payload"]["id"].as_i64().unwrap());
    }
    let unread = json!({ "project_key": PROJECT, "agent_name": "GreenCastle", "unread_only": true,
        "include_bodies": true, "mark_read": true, "limit": 100 });
    let mut shown = Vec::new();
    loop {
        let page = tool("fetch_inbox", unread.clone()).await;
        let ids = page["result"].as_array().unwrap().iter().map(|message| message["id"].as_i64().unwrap());
        shown.extend(ids);
        if page["has_more"] != true {
            break;
        }
    }
    shown.reverse();
    assert_eq!(shown, sent, "every message once");

    let file = json!({ "project_key": PROJECT, "sender_name": "GreenCastle", "to": ["GreenCastle"], "subject": "s",
        "body_md": "b", "attachments": [{ "name": "a.bin", "content_base64": large }] });
    let id = tool("send_message", file).await["deliveries"][0]["payload"]["id"].clone();
    let input = json!({ "project_key": PROJECT, "message_id": id, "position": 0 });
    assert_eq!(tool("get_attachment", input).await["content_base64"], json!(large));
    let route = format!("/v1/mail/messages/{id}/attachments/0?project_key=data-projects-backend");
    assert_eq!(world.get(&key, &route).await.json()["content_base64"], json!(large));
    let uri = json!({ "uri": format!("resource://attachment/{id}/0?project=data-projects-backend") });
    let read = world.mcp(&key, "/mcp/mail", "resources/read", &uri).await.json();
    assert!(read["result"]["contents"][0]["text"].as_str().unwrap().contains(&large[..1_000]));
}

/// An operator may let the server work in a folder that holds its data folder, as a home does.
#[tokio::test]
async fn the_data_folder_is_closed_to_mail() {
    const CURE: &str = "Name a file or folder outside of the server's own folders.";
    // Servers of tests have their data folders beneath it.
    let root = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).canonicalize().unwrap();
    let root = root.parent().unwrap();
    let settings = format!("[mail]\nallow_ephemeral_projects = true\nproject_roots = [{root:?}]\n");
    let world = World::with(Engine::Sqlite, &settings, &[]).await;
    let (admin, data) = (&world.server.admin_key, world.server.data_dir.as_path());
    let (beside, name) = (data.parent().unwrap(), data.file_name().unwrap().to_str().unwrap());
    std::fs::write(beside.join("notes.md"), "hello").unwrap();
    let send = async |project: &std::path::Path, file: &str| {
        world.admin_post("/v1/mail/projects", &json!({ "human_key": project })).await;
        let agent = json!({ "project_key": project, "program": "x", "model": "y", "name": "GreenCastle" });
        world.admin_post("/v1/mail/agents", &agent).await;
        let message = json!({
            "project_key": project, "sender_name": "GreenCastle", "to": ["GreenCastle"], "subject": "x", "body_md": "y",
            "attachment_paths": [file],
        });
        world.post(admin, "/v1/mail/messages", &message).await
    };
    for file in ["admin.key", "server.key", "waybill.db"] {
        assert!(data.join(file).exists(), "{file}");
        send(data, file).await.must_be_cured(Code::Forbidden, CURE, file);
        send(beside, &format!("{name}/{file}")).await.must_be_cured(Code::Forbidden, CURE, file);
    }
    let install = json!({ "project_key": beside, "code_repo_path": data });
    let refused = world.post(admin, "/v1/mail/guard/install", &install).await;
    refused.must_be_cured(Code::Forbidden, CURE, "the guard");
    let sent = send(beside, "notes.md").await;
    assert!(sent.status < 300, "{}", sent.text);
    assert_eq!(sent.json()["attachments"][0]["name"], "notes.md", "{}", sent.text);
}
