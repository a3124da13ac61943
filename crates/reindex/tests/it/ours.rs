//! From our own archive back to the rows that it was written from.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use waybill_archive::repo::Archive;
use waybill_archivist::reconcile;
use waybill_kernel::Caller;
use waybill_reindex::{Options, Report, Source, reindex};
use waybill_store::Row;
use waybill_store::effects::{Holder, sweep_once};
use waybill_testkit::stores::{self, TestStore, person, readable};

use crate::support::{Written, import as legacy_import, inbox, rows};

waybill_testkit::both! {
    rule_42_and_43_an_empty_database_and_the_archive_give_back_every_row,
    rule_42_what_the_database_has_stays_as_it_is,
    a_tenant_whose_name_is_cut_in_its_folder_is_found,
    agents_whose_names_are_cut_in_their_folders_have_what_is_theirs,
    a_tenant_may_be_called_as_a_folder_of_the_python_server,
    a_slug_means_the_project_that_the_archive_calls_so,
    a_project_whose_files_are_gone_is_read_from_its_repository,
    a_message_without_what_came_with_it_is_refused,
    files_of_ours_that_contradict_are_refused,
    a_policy_that_cannot_be_read_lets_nobody_new_write,
    imported_agents_have_time_to_show_that_they_live,
    the_archive_learns_what_came_in_for_agents_that_were_there,
}

const HOME: &str = "/data/projects/backend";
const OTHER: &str = "/data/projects/front end";

async fn beside(on: &TestStore) -> TestStore {
    if on.store.is_postgres() { stores::open_postgres().await.unwrap() } else { stores::open_sqlite().await.unwrap() }
}

async fn call(on: &TestStore, caller: &Caller, name: &str, input: Json) -> Json {
    on.time.pass(std::time::Duration::from_secs(1));
    on.call(caller, name, input.clone()).await.map_err(readable).unwrap_or_else(|e| panic!("{name} {input}: {e}")).json
}

/// Everything that mail has: two projects, cross-project mail, attachments, bcc, a reply, what was read, contacts, reservations, slots,
/// a product, a retired agent.
async fn lived_in(on: &TestStore) {
    let (alice, bob) = (person(on, "alice"), person(on, "bob"));
    for (caller, path, name) in [
        (&alice, HOME, "GreenCastle"),
        (&bob, HOME, "BlueLake"),
        (&alice, HOME, "RedStone"),
        (&bob, OTHER, "BrownBear"),
    ] {
        call(on, caller, "ensure_project", json!({ "human_key": path })).await;
        let input = json!({ "project_key": path, "program": "codex-cli", "model": "gpt", "name": name, "task_description": "t" });
        call(on, caller, "register_agent", input).await;
        let input = json!({ "project_key": path, "agent_name": name, "policy": "open" });
        call(on, caller, "set_contact_policy", input).await;
    }
    // A path whose slug is taken already.
    call(on, &alice, "ensure_project", json!({ "human_key": "/data/projects/front-end" })).await;
    let ask = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BrownBear", "to_project": OTHER, "reason": "api" });
    call(on, &alice, "request_contact", ask).await;
    let answer = json!({
        "project_key": OTHER, "to_agent": "BrownBear", "from_agent": "GreenCastle", "from_project": HOME, "accept": true,
    });
    call(on, &bob, "respond_contact", answer).await;
    let plan = json!({
        "project_key": HOME, "sender_name": "GreenCastle", "to": ["BlueLake", "project:data-projects-front-end#BrownBear"],
        "cc": ["RedStone"], "subject": "Plan: tests", "body_md": "---\nlook-alike\n---\n\r\n", "thread_id": "PLAN-1",
        "importance": "urgent", "ack_required": true,
        "attachments": [
            { "name": "a.txt", "content_base64": "aGVsbG8=", "media_type": "text/plain" },
            { "name": "b.bin", "content_base64": "AP8A" },
        ],
    });
    call(on, &alice, "send_message", plan).await;
    let quiet = json!({
        "project_key": HOME, "sender_name": "BlueLake", "to": ["GreenCastle"], "bcc": ["RedStone"], "subject": "Quiet word",
        "body_md": "hidden", "attachments": [{ "name": "a.txt", "content_base64": "aGVsbG8=" }],
    });
    let quiet = call(on, &bob, "send_message", quiet).await["deliveries"][0]["payload"]["id"].clone();
    let reply = json!({ "project_key": HOME, "sender_name": "GreenCastle", "message_id": quiet, "body_md": "Yes." });
    call(on, &alice, "reply_message", reply).await;
    let ack = json!({ "project_key": HOME, "agent_name": "BlueLake", "message_id": 2 });
    call(on, &bob, "acknowledge_message", ack).await;
    let read = json!({ "project_key": HOME, "agent_name": "RedStone", "message_id": quiet });
    call(on, &alice, "mark_message_read", read).await;
    let paths = json!({ "project_key": HOME, "agent_name": "GreenCastle", "paths": ["src/**/*.rs", "docs/plan.md"], "reason": "x" });
    call(on, &alice, "file_reservation_paths", paths).await;
    let release = json!({ "project_key": HOME, "agent_name": "GreenCastle", "paths": ["docs/plan.md"] });
    call(on, &alice, "release_file_reservations", release).await;
    let slot = json!({ "project_key": HOME, "agent_name": "GreenCastle", "slot": "frontend-build" });
    call(on, &alice, "acquire_build_slot", slot).await;
    call(on, &alice, "ensure_product", json!({ "product_key": "shop", "name": "The shop" })).await;
    call(on, &alice, "products_link", json!({ "product_key": "shop", "project_key": HOME })).await;
    call(on, &alice, "retire_agent", json!({ "project_key": HOME, "agent_name": "RedStone" })).await;
}

/// The archive of everything, as the archiver writes it.
async fn rebuilt(on: &TestStore, root: &Path) -> waybill_archivist::reconcile::Report {
    let archive = Arc::new(Archive::new(root.to_owned(), waybill_archivist::Settings::default().limits()));
    let report = reconcile::rebuild(&on.store, &archive, |_| {}).await.map_err(readable).unwrap();
    archive.close();
    report
}

async fn exported(on: &TestStore) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let report = rebuilt(on, temp.path()).await;
    assert!(report.consistent && report.written > 0, "{report:?}");
    temp
}

async fn import(on: &TestStore, root: &Path) -> Report {
    import_from(on, root, false).await
}

/// `archived` when our own archive is another one, and follows.
async fn import_from(on: &TestStore, root: &Path, archived: bool) -> Report {
    let (principal, admin) = ("human:somebody".to_owned(), on.admin.principal.to_string());
    let options = Options { tenant: on.admin.tenant, principal, admin, archived };
    let (tenants, refused) = waybill_reindex::tenants(&on.store, root).await.map_err(readable).unwrap();
    let [(folder, tenant)] = tenants.as_slice() else { panic!("{tenants:?}") };
    assert_eq!((*tenant, refused.count), (Some(on.admin.tenant), 0));
    let source = Source::ours(root, folder).map_err(readable).unwrap();
    reindex(&on.store, source, &options, &|_, _| true).await.map_err(readable).unwrap()
}

/// What an archive is made from, without what it has yet to write.
async fn archived(on: &TestStore) -> Vec<String> {
    let passing = ["mail_archive_rows", "mail_changes"];
    rows(on).await.into_iter().filter(|row| !passing.iter().any(|table| row.starts_with(table))).collect()
}

async fn tokens(on: &TestStore) -> Vec<Row> {
    on.rows("SELECT agent, token FROM mail_agents ORDER BY agent").await.unwrap()
}

async fn rule_42_and_43_an_empty_database_and_the_archive_give_back_every_row(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    assert_eq!(report.refused, []);
    assert_eq!(report.not_in_archive, Vec::<&str>::new(), "everything that matters is archived");
    let (before, after) = (archived(&on).await, archived(&empty).await);
    assert!(before.len() > 30);
    assert_eq!(after, before);
    assert_eq!(tokens(&empty).await, tokens(&on).await, "whoever had a token has it");
    assert_eq!(empty.count("SELECT count(*) FROM mail_archive_rows").await.unwrap(), 0, "its files are there already");

    let again = import(&empty, temp.path()).await;
    assert_eq!((again.written(), again.is_whole()), (0, true));
    assert_eq!(archived(&empty).await, before);
    // And the other way: the archive is what the new database says, to the byte, and nothing is written.
    let back = rebuilt(&empty, temp.path()).await;
    assert_eq!((back.consistent, back.written, back.removed), (true, 0, 0), "{back:?}");
    // Search is rebuilt, for those who were parties and for nobody else.
    let (alice, carol) = (person(&empty, "alice"), person(&empty, "carol"));
    let query = json!({ "project_key": HOME, "query": "hidden" });
    let found = call(&empty, &alice, "search_messages", query.clone()).await;
    assert_eq!(found["result"].as_array().unwrap().len(), 1);
    assert_eq!(call(&empty, &carol, "search_messages", query).await["result"], json!([]));
}

async fn rule_42_what_the_database_has_stays_as_it_is(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    // Newer than the archive: acknowledged, released and renamed since.
    let alice = person(&on, "alice");
    let ack = json!({ "project_key": HOME, "agent_name": "GreenCastle", "message_id": 3 });
    call(&on, &alice, "acknowledge_message", ack).await;
    call(&on, &alice, "release_file_reservations", json!({ "project_key": HOME, "agent_name": "GreenCastle" })).await;
    let before = rows(&on).await;
    let report = import(&on, temp.path()).await;
    assert_eq!((report.written(), report.is_whole()), (0, true));
    assert_eq!(rows(&on).await, before);
}

/// Sixty letters of two bytes each, which a folder writes with three characters a byte.
async fn a_tenant_whose_name_is_cut_in_its_folder_is_found(on: TestStore) {
    let renamed = async |on: &TestStore, name: &str| {
        on.write(&format!("UPDATE tenants SET name = '{name}' WHERE tenant = {}", on.admin.tenant.0)).await.unwrap();
    };
    let name = "Ж".repeat(60);
    renamed(&on, &name).await;
    lived_in(&on).await;
    let temp = exported(&on).await;
    assert!(!Source::is_legacy_at(temp.path()));
    let empty = beside(&on).await;
    let (found, _) = waybill_reindex::tenants(&empty.store, temp.path()).await.map_err(readable).unwrap();
    assert!(matches!(found.as_slice(), [(folder, None)] if folder.contains("%-")), "{found:?}");
    renamed(&empty, &name).await;
    let report = import(&empty, temp.path()).await;
    assert_eq!(report.refused, []);
    assert_eq!(archived(&empty).await, archived(&on).await);
}

async fn agents_whose_names_are_cut_in_their_folders_have_what_is_theirs(on: TestStore) {
    let (legacy, name) = (Written::new(), "Ж".repeat(100));
    legacy.agent("w", 5, &name);
    legacy.message(9, json!({ "from": name, "to": [name] }));
    legacy_import(&on, &legacy.root()).await;
    on.write("UPDATE mail_agents SET policy = 'open'").await.unwrap();
    on.write("UPDATE mail_recipients SET read_at = created_at + 1000000").await.unwrap();
    let temp = exported(&on).await;
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    assert_eq!((report.refused, report.read), (Vec::new(), 1));
    assert_eq!(archived(&empty).await, archived(&on).await);
}

async fn a_tenant_may_be_called_as_a_folder_of_the_python_server(on: TestStore) {
    on.write(&format!("UPDATE tenants SET name = 'projects' WHERE tenant = {}", on.admin.tenant.0)).await.unwrap();
    lived_in(&on).await;
    let temp = exported(&on).await;
    assert!(temp.path().join("projects/data-projects-backend").is_dir());
    assert!(!Source::is_legacy_at(temp.path()), "it is an archive of ours");
    let legacy = Written::new();
    assert!(!Source::is_legacy_at(&legacy.root()), "there is none");
    legacy.agent("w", 5, "SilverFox");
    assert!(Source::is_legacy_at(&legacy.root()));
}

/// In the database it is another project's: what is for an agent there must not reach an agent of the same name here.
async fn a_slug_means_the_project_that_the_archive_calls_so(on: TestStore) {
    lived_in(&on).await;
    let product = json!({ "product_key": "shop", "project_key": OTHER });
    call(&on, &person(&on, "alice"), "products_link", product).await;
    let temp = exported(&on).await;
    let other = beside(&on).await;
    let (here, eve) = ("/data/projects/front-end", person(&other, "eve"));
    let made = call(&other, &eve, "ensure_project", json!({ "human_key": here })).await;
    assert_eq!(made["slug"], "data-projects-front-end");
    let input = json!({ "project_key": here, "program": "codex-cli", "model": "gpt", "name": "BrownBear" });
    call(&other, &eve, "register_agent", input).await;
    let report = import(&other, temp.path()).await;
    assert_eq!(report.refused, []);
    assert_eq!(inbox(&other, here, "BrownBear").await, []);
    let got: Vec<String> = inbox(&other, OTHER, "BrownBear").await.into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(got, ["to", "to"], "the request for contact and the plan");
    let meant = format!("SELECT project FROM mail_projects WHERE human_key IN ('{HOME}', '{OTHER}') ORDER BY project");
    let linked = other.rows("SELECT project FROM mail_product_projects ORDER BY project").await.unwrap();
    assert_eq!(linked, other.rows(&meant).await.unwrap());
    let before = archived(&other).await;
    import(&other, temp.path()).await;
    assert_eq!(archived(&other).await, before, "a second run writes nothing");
}

async fn a_project_whose_files_are_gone_is_read_from_its_repository(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    for project in std::fs::read_dir(temp.path().join("default")).unwrap() {
        std::fs::remove_dir_all(project.unwrap().path().join("files")).unwrap();
    }
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    assert_eq!((report.refused, report.attachments_lost), (Vec::new(), Vec::new()));
    assert_eq!(archived(&empty).await, archived(&on).await);
    // With neither there is nothing to read, which is told.
    std::fs::remove_dir_all(temp.path().join("default/data-projects-backend/archive.git")).unwrap();
    let other = beside(&on).await;
    let report = import(&other, temp.path()).await;
    assert!(report.refused.iter().any(|refused| refused.why.contains("neither files nor a repository")));
}

async fn a_message_without_what_came_with_it_is_refused(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    let files = temp.path().join("default/data-projects-backend/files/attachments");
    let hello = walk(&files).into_iter().find(|path| std::fs::read(path).unwrap() == b"hello").unwrap();
    std::fs::write(hello, "hellO").unwrap();
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    assert_eq!(report.messages.refused, 2, "{:?}", report.refused);
    assert!(report.refused[0].why.contains("not what it was"), "{:?}", report.refused);
    assert_eq!(empty.count("SELECT count(*) FROM mail_attachments").await.unwrap(), 0);
}

async fn files_of_ours_that_contradict_are_refused(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    let home = temp.path().join("default/data-projects-backend/files");
    let message = walk(&home.join("messages")).into_iter().next().unwrap();
    // A message in the folder of another project, and a profile in the folder of another agent.
    let elsewhere = temp.path().join("default/data-projects-front-end/files/messages/2026/x__y__99.md");
    std::fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    let moved = std::fs::read_to_string(&message).unwrap().replacen("\"id\": 1", "\"id\": 99", 1);
    std::fs::write(&elsewhere, moved).unwrap();
    let profile = std::fs::read(home.join("agents/GreenCastle/profile.json")).unwrap();
    std::fs::write(home.join("agents/BlueLake/profile.json"), profile).unwrap();
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    let why = |file: &str| {
        let found = report.refused.iter().find(|refused| refused.file.ends_with(file));
        found.unwrap_or_else(|| panic!("{file}: {:?}", report.refused)).why.clone()
    };
    assert!(why("x__y__99.md").contains("another project"));
    assert!(why("BlueLake/profile.json").contains("another agent"));
    assert_eq!(report.without_profile, ["BlueLake of /data/projects/backend"]);
}

async fn a_policy_that_cannot_be_read_lets_nobody_new_write(on: TestStore) {
    lived_in(&on).await;
    let block = json!({ "project_key": HOME, "agent_name": "BlueLake", "policy": "block_all" });
    call(&on, &person(&on, "bob"), "set_contact_policy", block).await;
    let temp = exported(&on).await;
    let agents = temp.path().join("default/data-projects-backend/files/agents");
    // As long as that of an agent with thousands of contacts: JSON may end in spaces.
    let mut large = std::fs::read(agents.join("BlueLake/state.json")).unwrap();
    large.resize(large.len() + (6 << 20), b' ');
    std::fs::write(agents.join("BlueLake/state.json"), large).unwrap();
    std::fs::write(agents.join("GreenCastle/state.json"), "{").unwrap();
    std::fs::remove_file(agents.join("RedStone/state.json")).unwrap();
    let empty = beside(&on).await;
    let report = import(&empty, temp.path()).await;
    let refused: Vec<&str> = report.refused.iter().map(|refused| refused.file.as_str()).collect();
    assert_eq!(refused, ["default/data-projects-backend/agents/GreenCastle/state.json"]);
    let policies = empty.rows("SELECT name, policy FROM mail_agents ORDER BY name").await.unwrap();
    let of: Vec<_> = policies.iter().map(|row| (row.text(0).unwrap(), row.text(1).unwrap())).collect();
    let expected = [
        ("BlueLake", "block_all"),
        ("BrownBear", "open"),
        ("GreenCastle", "contacts_only"),
        ("RedStone", "contacts_only"),
    ];
    assert_eq!(of, expected);
    // What the Python server writes has no such files, and its agents are as they were there.
    let legacy = Written::new();
    legacy.agent("w", 5, "SilverFox");
    legacy.message(9, json!({ "from": "SilverFox", "to": ["SilverFox"] }));
    legacy_import(&empty, &legacy.root()).await;
    let policy = empty.rows("SELECT policy FROM mail_agents WHERE name = 'SilverFox'").await.unwrap();
    assert_eq!(policy[0].text(0).unwrap(), "auto");
}

/// They were last active long ago, elsewhere: the first sweep after a move retires none of them.
async fn imported_agents_have_time_to_show_that_they_live(on: TestStore) {
    const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
    lived_in(&on).await;
    let temp = exported(&on).await;
    let moved = beside(&on).await;
    moved.time.pass(40 * DAY);
    import(&moved, temp.path()).await;
    let active = "SELECT agent, active_at FROM mail_agents ORDER BY agent";
    assert_eq!(moved.rows(active).await.unwrap(), on.rows(active).await.unwrap(), "what is shown stays as it was");
    let retired = async || {
        let sweep = waybill_mail::sweeps::InactiveAgents::new(&waybill_mail::Settings::default()).unwrap();
        let done = sweep_once(&moved.store, &Arc::new(sweep), Holder::new(&moved.store)).await;
        done.map_err(readable).unwrap().rows
    };
    assert_eq!(retired().await, 0);
    moved.time.pass(20 * DAY);
    let again = json!({ "project_key": HOME, "program": "codex-cli", "model": "gpt", "name": "BlueLake" });
    call(&moved, &person(&moved, "bob"), "register_agent", again).await;
    moved.time.pass(11 * DAY);
    assert_eq!(retired().await, 2, "GreenCastle and BrownBear; BlueLake came back, RedStone was retired before");
}

/// Read marks, contacts, slots and links of agents and products that the database has already.
async fn the_archive_learns_what_came_in_for_agents_that_were_there(on: TestStore) {
    lived_in(&on).await;
    let temp = exported(&on).await;
    let other = beside(&on).await;
    other.time.pass(std::time::Duration::from_secs(86_400));
    import(&other, temp.path()).await;
    for forget in [
        "UPDATE mail_recipients SET read_at = NULL, ack_at = NULL",
        "DELETE FROM mail_contacts",
        "DELETE FROM mail_build_slots",
        "DELETE FROM mail_product_projects",
    ] {
        other.write(forget).await.unwrap();
    }
    // Its own archive has all of that, and has looked at what its agents did until now.
    let own = tempfile::tempdir().unwrap();
    assert!(rebuilt(&other, own.path()).await.consistent);
    for (caller, path, name) in [("alice", HOME, "GreenCastle"), ("bob", HOME, "BlueLake"), ("bob", OTHER, "BrownBear")]
    {
        let policy = json!({ "project_key": path, "agent_name": name, "policy": "auto" });
        call(&other, &person(&other, caller), "set_contact_policy", policy).await;
    }
    let settings = waybill_archivist::Settings {
        disk_warning_mb: 0,
        disk_critical_mb: 0,
        ..waybill_archivist::Settings::default()
    };
    let archive = Arc::new(Archive::new(own.path().to_owned(), settings.limits()));
    let health = waybill_mail::archive_health::ArchiveHealth::default();
    let mut archivist = waybill_archivist::Archivist::new(other.store.clone(), Arc::clone(&archive), settings, health);
    archivist.settle().await.map_err(readable).unwrap();
    let consistent = async || reconcile::check(&other.store, &archive, |_| {}).await.map_err(readable).unwrap();
    assert!(consistent().await.consistent);

    let report = import_from(&other, temp.path(), true).await;
    assert_eq!((report.agents.written, report.contacts.written, report.build_slots.written), (0, 1, 1));
    assert!(report.read > 0);
    assert!(!consistent().await.consistent);
    archivist.settle().await.map_err(readable).unwrap();
    let report = consistent().await;
    assert!(report.consistent, "{report:?}");
    // What is there already is no news.
    let changes =
        async || other.rows("SELECT agent, changes, archived FROM mail_changes ORDER BY agent").await.unwrap();
    let before = changes().await;
    import_from(&other, temp.path(), true).await;
    assert_eq!(changes().await, before);
    assert_eq!(other.count("SELECT count(*) FROM mail_archive_rows").await.unwrap(), 0);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
