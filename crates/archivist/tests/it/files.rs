//! Which files each call leads to, and what is in them.

use serde_json::json;
use waybill_archive::layout::Message;
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_22_each_tool_has_the_files_that_it_should,
    rule_22_secret_recipients_stand_nowhere_that_others_read,
    rule_07_state_is_derived_from_changed_rows,
    who_an_agent_is_tells_of_its_commits,
    commits_show_nobody_elses_mail,
    contacts_stand_with_both_agents,
    mail_between_projects_is_filed_where_it_was_sent_and_where_it_arrived,
    attachments_are_files_of_their_own,
    threads_have_pages,
    products_are_in_the_archive_of_their_tenant,
}

async fn rule_22_each_tool_has_the_files_that_it_should(on: TestStore) {
    let world = World::new(on).await;
    let id = world.send("Plan: tests", json!({ "thread_id": "PLAN-1" })).await;
    let reserve = json!({ "project_key": HOME, "agent_name": "GreenCastle", "paths": ["src/a.rs", "src/b.rs"] });
    world.call(&world.alice, "file_reservation_paths", reserve).await;
    world.settle().await;
    world.judge().await;
    let files: Vec<String> = world.files().into_keys().collect();
    let has =
        |start: &str, end: &str| files.iter().filter(|path| path.starts_with(start) && path.ends_with(end)).count();
    assert_eq!(has("project.json", ""), 1);
    assert_eq!(has("agents/GreenCastle/profile.json", "") + has("agents/BlueLake/profile.json", ""), 2);
    let name = format!("__plan-tests__{id}.md");
    for folder in ["messages/2", "agents/GreenCastle/outbox/", "agents/BlueLake/inbox/"] {
        assert_eq!(has(folder, &name), 1, "{folder} in {files:?}");
    }
    assert_eq!(has("messages/threads/", ".md"), 1);
    assert_eq!(has("file_reservations/", ".json"), 2);
    let message = Message::read(world.file(&["messages/2", &name]).1.as_bytes()).unwrap();
    assert_eq!((message.from.as_str(), message.body.as_str()), ("GreenCastle", "Hello."));
    let profile = world.json(&["agents/GreenCastle/profile.json"]);
    assert_eq!(profile["token_sha256"].as_str().unwrap().len(), 64);
    assert!(profile.get("registration_token").is_none(), "{profile}");
    assert_eq!(world.json(&["project.json"])["tenant"]["name"], "default");
}

async fn rule_22_secret_recipients_stand_nowhere_that_others_read(on: TestStore) {
    let world = World::new(on).await;
    world.agent(&world.bob, HOME, "RedStone").await;
    world.settle().await;
    let before = world.log();
    world.send("Quiet", json!({ "bcc": ["RedStone"], "thread_id": "Q-1" })).await;
    world.settle().await;
    world.judge().await;
    let log = world.log();
    let new = log.strip_suffix(&before).unwrap();
    assert!(new.contains("mail: GreenCastle -> BlueLake | Quiet") && !new.contains("RedStone"), "{new}");
    for (path, content) in world.files() {
        let knows = content.contains("RedStone");
        let may = path.starts_with("messages/2") || path.contains("GreenCastle/outbox") || path.contains("RedStone/");
        assert!(!knows || may, "{path} tells who was written to in secret");
    }
    assert!(world.file(&["messages/2"]).1.contains("RedStone"), "the canonical file has it");
    world.file(&["agents/RedStone/inbox"]);
}

async fn rule_07_state_is_derived_from_changed_rows(on: TestStore) {
    let world = World::new(on).await;
    let (one, two) = (world.send("a", json!({})).await, world.send("b", json!({ "ack_required": true })).await);
    let reserve = json!({ "project_key": HOME, "agent_name": "BlueLake", "paths": ["src/a.rs", "src/b.rs"] });
    world.call(&world.bob, "file_reservation_paths", reserve).await;
    world.settle().await;
    let of = |id: i64| json!({ "project_key": HOME, "agent_name": "BlueLake", "message_id": id });
    world.call(&world.bob, "mark_message_read", of(one)).await;
    world.call(&world.bob, "acknowledge_message", of(two)).await;
    let release = json!({ "project_key": HOME, "agent_name": "BlueLake", "paths": ["src/a.rs"] });
    world.call(&world.bob, "release_file_reservations", release).await;
    let policy = json!({ "project_key": HOME, "agent_name": "BlueLake", "policy": "contacts_only" });
    world.call(&world.bob, "set_contact_policy", policy).await;
    let slot = json!({ "project_key": HOME, "agent_name": "BlueLake", "slot": "frontend/build" });
    world.call(&world.bob, "acquire_build_slot", slot).await;
    assert_eq!(world.on.count("SELECT count(*) FROM mail_archive_rows").await.unwrap(), 0, "no row for any of these");
    world.settle().await;
    world.judge().await;
    let seen = world.json(&["agents/BlueLake/state/0.json"]);
    let seen = seen.as_array().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen[0]["read_ts"].is_string() && seen[0]["ack_ts"].is_null(), "{seen:?}");
    assert!(seen[1]["read_ts"].is_string() && seen[1]["ack_ts"].is_string(), "{seen:?}");
    assert_eq!(world.json(&["agents/BlueLake/state.json"])["contact_policy"], "contacts_only");
    let released = world.files().values().filter(|text| text.contains("released_ts")).count();
    assert_eq!(released, 1, "of two reservations one was released");
    assert_eq!(world.json(&["build_slots/"])["slot"], "frontend/build");
    let log = world.log();
    assert!(log.lines().next().unwrap().starts_with("BlueLake|state: BlueLake|"), "{log}");
}

async fn contacts_stand_with_both_agents(on: TestStore) {
    let world = World::new(on).await;
    world.agent(&world.bob, OTHER, "RedStone").await;
    let ask = json!({
        "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "RedStone", "to_project": OTHER, "reason": "work",
    });
    world.call(&world.alice, "request_contact", ask).await;
    world.settle().await;
    let answer = json!({
        "project_key": OTHER, "to_agent": "RedStone", "from_agent": "GreenCastle", "from_project": HOME, "accept": true,
    });
    world.call(&world.bob, "respond_contact", answer).await;
    world.settle().await;
    world.judge().await;
    let here = &world.json(&["agents/GreenCastle/state.json"])["contacts"][0];
    assert_eq!((here["status"].as_str(), here["to_project"].as_str()), (Some("approved"), Some(OTHER)));
    let there =
        files_of(&waybill_archive::repo::ProjectKey::new("default", OTHER_SLUG).below(&world.root()).join("files"));
    let there: serde_json::Value = serde_json::from_str(&there["agents/RedStone/state.json"]).unwrap();
    assert_eq!(there["contacts"][0]["from_project"], HOME);
    assert_eq!(there["contacts"][0]["status"], "approved");
}

async fn mail_between_projects_is_filed_where_it_was_sent_and_where_it_arrived(on: TestStore) {
    let world = World::new(on).await;
    world.agent(&world.bob, OTHER, "RedStone").await;
    let ask = json!({
        "project_key": HOME, "requester": "GreenCastle", "target": "RedStone", "to_project": OTHER, "auto_accept": true,
        "reason": "work",
    });
    let handshake = world.on.call(&world.on.admin.clone(), "macro_contact_handshake", ask).await;
    if handshake.is_err() {
        // By the two calls that the macro is made of.
        let ask = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "RedStone", "to_project": OTHER, "reason": "work" });
        world.call(&world.alice, "request_contact", ask).await;
        let answer = json!({
            "project_key": OTHER, "to_agent": "RedStone", "from_agent": "GreenCastle", "from_project": HOME, "accept": true,
        });
        world.call(&world.bob, "respond_contact", answer).await;
    }
    let to = format!("project:{OTHER_SLUG}#RedStone");
    world.send("Across", json!({ "to": [to, "BlueLake"] })).await;
    world.settle().await;
    world.judge().await;
    world.file(&["messages/2", "__across__"]);
    let there =
        files_of(&waybill_archive::repo::ProjectKey::new("default", OTHER_SLUG).below(&world.root()).join("files"));
    let copy = there.keys().filter(|path| path.contains("__across__")).collect::<Vec<_>>();
    assert_eq!(copy.len(), 1, "{copy:?}");
    assert!(copy[0].starts_with("agents/RedStone/inbox/"), "{copy:?}");
}

async fn attachments_are_files_of_their_own(on: TestStore) {
    let world = World::new(on).await;
    let file = json!({ "name": "a.txt", "content_base64": "aGVsbG8gd29ybGQ=", "media_type": "text/plain" });
    world.send("With a file", json!({ "attachments": [file] })).await;
    world.settle().await;
    world.judge().await;
    let (path, content) = world.file(&["attachments/"]);
    assert_eq!(content, "hello world");
    let message = Message::read(world.file(&["messages/2"]).1.as_bytes()).unwrap();
    assert!(path.ends_with(&message.attachments[0].sha256), "{path}");
}

async fn threads_have_pages(on: TestStore) {
    let world = World::new(on).await;
    for n in 0..5 {
        world.send(&format!("note {n}"), json!({ "thread_id": "PLAN-1" })).await;
        if n == 2 {
            world.settle().await;
        }
    }
    world.settle().await;
    world.judge().await;
    let (_, page) = world.file(&["messages/threads/", "PLAN-1"]);
    let subjects: Vec<&str> = page.lines().filter(|line| line.starts_with("### ")).collect();
    assert_eq!(subjects, ["### note 0", "### note 1", "### note 2", "### note 3", "### note 4"]);
}

async fn products_are_in_the_archive_of_their_tenant(on: TestStore) {
    let world = World::new(on).await;
    world.call(&world.alice, "ensure_product", json!({ "product_key": "shop" })).await;
    world.call(&world.alice, "products_link", json!({ "product_key": "shop", "project_key": HOME })).await;
    world.settle().await;
    world.judge().await;
    let own =
        files_of(&waybill_archive::repo::ProjectKey::new("default", "_tenant").below(&world.root()).join("files"));
    let product: serde_json::Value = serde_json::from_str(own.values().next().unwrap()).unwrap();
    assert_eq!((product["key"].as_str(), product["projects"][0]["slug"].as_str()), (Some("shop"), Some(SLUG)));
}

async fn who_an_agent_is_tells_of_its_commits(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    world.send("Plan", json!({})).await;
    world.settle().await;
    let whois = |name: &str| json!({ "project_key": HOME, "agent_name": name, "include_recent_commits": true, "commit_limit": 1 });
    let shown = world.call(&world.alice, "whois", whois("GreenCastle")).await;
    assert_eq!(shown["recent_commits"][0]["subject"], "mail: GreenCastle -> BlueLake | Plan", "{shown}");
    assert_eq!(shown["recent_commits"].as_array().map(Vec::len), Some(1));
    let other = world.call(&world.alice, "whois", whois("BlueLake")).await;
    assert_ne!(other["recent_commits"][0]["commit"], shown["recent_commits"][0]["commit"]);
    let plain = json!({ "project_key": HOME, "agent_name": "GreenCastle" });
    assert!(world.call(&world.alice, "whois", plain).await.get("recent_commits").is_none());
}

/// A third principal learns that an agent wrote, and neither to whom nor about what.
async fn commits_show_nobody_elses_mail(on: TestStore) {
    let world = World::new(on).await;
    world.settle().await;
    world.send("Secret plan", json!({})).await;
    world.settle().await;
    let whois =
        |path: &str| json!({ "project_key": path, "agent_name": "GreenCastle", "include_recent_commits": true });
    let carol = person(&world.on, "carol");
    let shown = world.call(&carol, "whois", whois(HOME)).await;
    assert_eq!(shown["recent_commits"][0]["subject"], "mail: GreenCastle", "{shown}");
    let text = shown.to_string();
    assert!(!text.contains("Secret plan") && !text.contains("BlueLake") && text.contains("GreenCastle"), "{text}");
    let admin = world.on.admin.clone();
    for sees in [&world.alice, &admin] {
        let shown = world.call(sees, "whois", whois(HOME)).await;
        assert_eq!(shown["recent_commits"][0]["subject"], "mail: GreenCastle -> BlueLake | Secret plan", "{shown}");
    }
    // Mail from another project is of no agent of this one, though it has one of that name.
    world.agent(&world.bob, OTHER, "RedStone").await;
    world.agent(&carol, OTHER, "GreenCastle").await;
    world.settle().await;
    let ask = json!({
        "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "RedStone", "to_project": OTHER, "reason": "hush",
    });
    world.call(&world.alice, "request_contact", ask).await;
    world.settle().await;
    let log = git(
        &waybill_archive::repo::ProjectKey::new("default", OTHER_SLUG).below(&world.root()).join("archive.git"),
        &["log", "--format=%an|%s|%b"],
    );
    assert!(log.contains(&format!("mail: project:{SLUG}#GreenCastle -> ")), "{log}");
    let shown = world.call(&carol, "whois", whois(OTHER)).await;
    let subjects: Vec<&str> =
        shown["recent_commits"].as_array().unwrap().iter().map(|one| one["subject"].as_str().unwrap()).collect();
    assert!(!subjects.is_empty() && subjects.iter().all(|subject| !subject.starts_with("mail: ")), "{subjects:?}");
}
