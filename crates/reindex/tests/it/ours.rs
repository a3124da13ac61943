//! From our own archive back to the rows that it was written from.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};
use waybill_archive::layout::{self, *};
use waybill_archive::names::{self, ArchivePath};
use waybill_kernel::{Caller, Role, Scope, Scopes, Time, hex};
use waybill_reindex::{Options, Report, Source, reindex};
use waybill_store::Row;
use waybill_testkit::stores::{self, TestStore, readable};

use crate::support::rows;

waybill_testkit::both! {
    rule_42_and_43_an_empty_database_and_the_archive_give_back_every_row,
    rule_42_what_the_database_has_stays_as_it_is,
    a_message_without_what_came_with_it_is_refused,
    files_of_ours_that_contradict_are_refused,
}

const HOME: &str = "/data/projects/backend";
const OTHER: &str = "/data/projects/front end";

async fn beside(on: &TestStore) -> TestStore {
    if on.store.is_postgres() { stores::open_postgres().await.unwrap() } else { stores::open_sqlite().await.unwrap() }
}

fn person(on: &TestStore, name: &str) -> Caller {
    let scopes = Scopes::new([Scope::MailRead, Scope::MailWrite]);
    Caller { scopes, ..stores::caller(&on.admin, &format!("agent:{name}"), &[Role::Agent]).unwrap() }
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

/// The archive of the default tenant as the files of a database's rows.
struct Exporter<'a> {
    on: &'a TestStore,
    root: &'a Path,
}

fn time(row: &Row, at: usize) -> Time {
    row.time(at).unwrap()
}

fn text(row: &Row, at: usize) -> String {
    row.text(at).unwrap().to_owned()
}

impl Exporter<'_> {
    async fn rows(&self, sql: &str) -> Vec<Row> {
        self.on.rows(sql).await.map_err(readable).unwrap()
    }

    fn put(&self, slug: &str, path: &ArchivePath, content: &[u8]) {
        let path = self.root.join("default").join(names::part(slug)).join("files").join(path.as_str());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    async fn all(&self) {
        for row in self.rows("SELECT project, slug, human_key, created_at FROM mail_projects").await {
            let (id, slug, human_key) = (row.int(0).unwrap(), text(&row, 1), text(&row, 2));
            let file = ProjectFile { id, slug: slug.clone(), human_key, created_ts: time(&row, 3), tenant: None };
            self.put(&slug, &project_path().unwrap(), &file.write().unwrap());
        }
        self.agents().await;
        self.messages().await;
        self.rest().await;
    }

    async fn agents(&self) {
        let sql = "SELECT a.agent, a.name, a.program, a.model, a.task, a.attachments_policy, a.reaper_exempt, a.principal, a.token, \
            a.created_at, a.active_at, a.retired_at, a.project, p.slug, a.policy FROM mail_agents a JOIN mail_projects p ON p.project = a.project";
        for row in self.rows(sql).await {
            let (id, name, slug) = (row.int(0).unwrap(), text(&row, 1), text(&row, 13));
            let profile = Profile {
                id,
                name: name.clone(),
                program: text(&row, 2),
                model: text(&row, 3),
                task_description: text(&row, 4),
                attachments_policy: text(&row, 5),
                reaper_exempt: row.bool(6).unwrap(),
                principal: Some(text(&row, 7)),
                token_sha256: Some(hex::encode(row.bytes(8).unwrap())),
                inception_ts: time(&row, 9),
                last_active_ts: time(&row, 10),
                retired_ts: row.time_opt(11).unwrap(),
                project_id: row.int(12).unwrap(),
            };
            self.put(&slug, &profile_path(&name).unwrap(), &profile.write().unwrap());
            let state =
                State { contact_policy: text(&row, 14), contacts: self.contacts(id, row.int(12).unwrap()).await };
            self.put(&slug, &state_path(&name).unwrap(), &state.write().unwrap());
            self.seen(id, &name, &slug).await;
        }
    }

    async fn contacts(&self, agent: i64, project: i64) -> Vec<Contact> {
        let sql = format!(
            "SELECT f.name, fp.project, fp.human_key, t.name, tp.project, tp.human_key, c.status, c.reason, c.created_at, c.updated_at, \
             c.expires_at FROM mail_contacts c JOIN mail_agents f ON f.agent = c.from_agent JOIN mail_projects fp ON fp.project = f.project \
             JOIN mail_agents t ON t.agent = c.to_agent JOIN mail_projects tp ON tp.project = t.project \
             WHERE c.from_agent = {agent} OR c.to_agent = {agent}"
        );
        let foreign = |row: &Row, at: usize| (row.int(at).unwrap() != project).then(|| text(row, at + 1));
        let of = |row: &Row| Contact {
            from: text(row, 0),
            from_project: foreign(row, 1),
            to: text(row, 3),
            to_project: foreign(row, 4),
            status: text(row, 6),
            reason: text(row, 7),
            created_ts: time(row, 8),
            updated_ts: time(row, 9),
            expires_ts: row.time_opt(10).unwrap(),
        };
        self.rows(&sql).await.iter().map(of).collect()
    }

    async fn seen(&self, agent: i64, name: &str, slug: &str) {
        let sql = format!(
            "SELECT message, read_at, ack_at FROM mail_recipients WHERE agent = {agent} AND (read_at IS NOT NULL OR ack_at IS NOT NULL)"
        );
        let rows = self.rows(&sql).await;
        let of = |row: &Row| {
            let times = Delivered { read_ts: row.time_opt(1).unwrap(), ack_ts: row.time_opt(2).unwrap() };
            (row.int(0).unwrap(), times)
        };
        let seen: BTreeMap<_, _> = rows.iter().map(of).collect();
        if let Some(first) = seen.keys().next() {
            self.put(slug, &seen_path(name, *first).unwrap(), &Seen(seen.clone()).write().unwrap());
        }
    }

    async fn messages(&self) {
        let sql = "SELECT m.message, m.sender_name, m.names, m.subject, m.thread, m.reply_to, m.importance, m.ack_required, m.intro, \
            m.created_at, p.human_key, p.slug, m.attachments, m.body FROM mail_messages m JOIN mail_projects p ON p.project = m.project";
        for row in self.rows(sql).await {
            let names: BTreeMap<String, Vec<String>> = serde_json::from_str(row.text(2).unwrap()).unwrap();
            let attachments: Vec<AttachmentRef> =
                row.text_opt(12).unwrap().map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
            let message = Message {
                id: row.int(0).unwrap(),
                from: text(&row, 1),
                from_project: None,
                to: names["to"].clone(),
                cc: names["cc"].clone(),
                bcc: names["bcc"].clone(),
                subject: text(&row, 3),
                thread_id: row.text_opt(4).unwrap().map(str::to_owned),
                reply_to: row.int_opt(5).unwrap(),
                importance: text(&row, 6),
                ack_required: row.bool(7).unwrap(),
                intro: row.bool(8).unwrap(),
                created: time(&row, 9),
                project: text(&row, 10),
                project_slug: text(&row, 11),
                attachments,
                body: text(&row, 13),
            };
            let path = canonical_path(message.id, message.created, &message.subject).unwrap();
            self.put(&message.project_slug, &path, &message.write().unwrap());
            let copy = inbox_path("BlueLake", message.id, message.created, &message.subject).unwrap();
            self.put(&message.project_slug, &copy, &message.write_for_inbox().unwrap());
            let sql = format!("SELECT sha256, content FROM mail_attachments WHERE message = {}", message.id);
            for file in self.rows(&sql).await {
                let path = attachment_path(&hex::encode(file.bytes(0).unwrap())).unwrap();
                self.put(&message.project_slug, &path, file.bytes(1).unwrap());
            }
        }
    }

    async fn rest(&self) {
        let sql = "SELECT r.reservation, a.name, r.path, r.exclusive, r.reason, r.created_at, r.expires_at, r.released_at, p.human_key, p.slug \
            FROM mail_reservations r JOIN mail_agents a ON a.agent = r.agent JOIN mail_projects p ON p.project = r.project";
        for row in self.rows(sql).await {
            let held = layout::Reservation {
                id: row.int(0).unwrap(),
                agent: text(&row, 1),
                path_pattern: text(&row, 2),
                exclusive: row.bool(3).unwrap(),
                reason: text(&row, 4),
                created_ts: time(&row, 5),
                expires_ts: time(&row, 6),
                released_ts: row.time_opt(7).unwrap(),
                project: text(&row, 8),
            };
            self.put(&text(&row, 9), &reservation_path(held.id).unwrap(), &held.write().unwrap());
        }
        let sql = "SELECT s.slot, a.name, s.exclusive, s.acquired_at, s.expires_at, s.released_at, p.slug FROM mail_build_slots s \
            JOIN mail_agents a ON a.agent = s.agent JOIN mail_projects p ON p.project = s.project";
        for row in self.rows(sql).await {
            let held = BuildSlot {
                slot: text(&row, 0),
                agent: text(&row, 1),
                exclusive: row.bool(2).unwrap(),
                acquired_ts: time(&row, 3),
                expires_ts: time(&row, 4),
                released_ts: row.time_opt(5).unwrap(),
            };
            self.put(&text(&row, 6), &build_slot_path(&held.slot, &held.agent).unwrap(), &held.write().unwrap());
        }
        for row in self.rows("SELECT product, key, name, created_at FROM mail_products").await {
            let id = row.int(0).unwrap();
            let sql = format!(
                "SELECT p.slug, l.linked_at FROM mail_product_projects l JOIN mail_projects p ON p.project = l.project WHERE l.product = {id}"
            );
            let linked = self.rows(&sql).await;
            let projects =
                linked.iter().map(|row| LinkedProject { slug: text(row, 0), linked_ts: time(row, 1) }).collect();
            let product = Product { id, key: text(&row, 1), name: text(&row, 2), created_ts: time(&row, 3), projects };
            self.put(TENANT, &product_path(id).unwrap(), &product.write().unwrap());
        }
    }
}

async fn exported(on: &TestStore) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    Exporter { on, root: place.path() }.all().await;
    place
}

async fn import(on: &TestStore, root: &Path) -> Report {
    let options = Options { tenant: on.admin.tenant, principal: "human:somebody".to_owned(), archived: false };
    let (tenants, refused) = Source::tenants(root).map_err(readable).unwrap();
    assert_eq!((tenants.len(), refused.count), (1, 0));
    let source = Source::ours(root, &tenants[0].1).map_err(readable).unwrap();
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
    let place = exported(&on).await;
    let empty = beside(&on).await;
    let report = import(&empty, place.path()).await;
    assert_eq!(report.refused, []);
    assert_eq!(report.not_in_archive, Vec::<&str>::new(), "everything that matters is archived");
    let (before, after) = (archived(&on).await, archived(&empty).await);
    assert!(before.len() > 30);
    assert_eq!(after, before);
    assert_eq!(tokens(&empty).await, tokens(&on).await, "whoever had a token has it");
    assert_eq!(empty.count("SELECT count(*) FROM mail_archive_rows").await.unwrap(), 0, "its files are there already");

    let again = import(&empty, place.path()).await;
    assert_eq!((again.written(), again.is_whole()), (0, true));
    assert_eq!(archived(&empty).await, before);
    // Search is rebuilt, for those who were parties and for nobody else.
    let (alice, carol) = (person(&empty, "alice"), person(&empty, "carol"));
    let query = json!({ "project_key": HOME, "query": "hidden" });
    let found = call(&empty, &alice, "search_messages", query.clone()).await;
    assert_eq!(found["result"].as_array().unwrap().len(), 1);
    assert_eq!(call(&empty, &carol, "search_messages", query).await["result"], json!([]));
}

async fn rule_42_what_the_database_has_stays_as_it_is(on: TestStore) {
    lived_in(&on).await;
    let place = exported(&on).await;
    // Newer than the archive: acknowledged, released and renamed since.
    let alice = person(&on, "alice");
    let ack = json!({ "project_key": HOME, "agent_name": "GreenCastle", "message_id": 3 });
    call(&on, &alice, "acknowledge_message", ack).await;
    call(&on, &alice, "release_file_reservations", json!({ "project_key": HOME, "agent_name": "GreenCastle" })).await;
    let before = rows(&on).await;
    let report = import(&on, place.path()).await;
    assert_eq!((report.written(), report.is_whole()), (0, true));
    assert_eq!(rows(&on).await, before);
}

async fn a_message_without_what_came_with_it_is_refused(on: TestStore) {
    lived_in(&on).await;
    let place = exported(&on).await;
    let files = place.path().join("default/data-projects-backend/files/attachments");
    let hello = walk(&files).into_iter().find(|path| std::fs::read(path).unwrap() == b"hello").unwrap();
    std::fs::write(hello, "hellO").unwrap();
    let empty = beside(&on).await;
    let report = import(&empty, place.path()).await;
    assert_eq!(report.messages.refused, 2, "{:?}", report.refused);
    assert!(report.refused[0].why.contains("not what it was"), "{:?}", report.refused);
    assert_eq!(empty.count("SELECT count(*) FROM mail_attachments").await.unwrap(), 0);
}

async fn files_of_ours_that_contradict_are_refused(on: TestStore) {
    lived_in(&on).await;
    let place = exported(&on).await;
    let home = place.path().join("default/data-projects-backend/files");
    let message = walk(&home.join("messages")).into_iter().next().unwrap();
    // A message in the folder of another project, and a profile in the folder of another agent.
    let elsewhere = place.path().join("default/data-projects-front-end/files/messages/2026/x__y__99.md");
    std::fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    let moved = std::fs::read_to_string(&message).unwrap().replacen("\"id\": 1", "\"id\": 99", 1);
    std::fs::write(&elsewhere, moved).unwrap();
    let profile = std::fs::read(home.join("agents/GreenCastle/profile.json")).unwrap();
    std::fs::write(home.join("agents/BlueLake/profile.json"), profile).unwrap();
    let empty = beside(&on).await;
    let report = import(&empty, place.path()).await;
    let why = |file: &str| {
        let found = report.refused.iter().find(|refused| refused.file.ends_with(file));
        found.unwrap_or_else(|| panic!("{file}: {:?}", report.refused)).why.clone()
    };
    assert!(why("x__y__99.md").contains("another project"));
    assert!(why("BlueLake/profile.json").contains("another agent"));
    assert_eq!(report.without_profile, ["BlueLake of /data/projects/backend"]);
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
