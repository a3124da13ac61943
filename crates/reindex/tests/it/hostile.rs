//! Archives that are broken, contradict themselves or mean harm: refused file by file, told, and nothing overwritten.

use std::os::unix::fs::symlink;

use serde_json::json;
use waybill_kernel::Code;
use waybill_reindex::Report;
use waybill_testkit::stores::{TestStore, person};

use crate::support::{Written, import, import_for, inbox, ok, rows};

waybill_testkit::both! {
    broken_files_are_told_and_the_others_come_in,
    links_and_paths_that_leave_are_not_followed,
    two_files_with_one_number_are_both_refused,
    a_number_that_is_taken_is_refused_and_nothing_is_overwritten,
    numbers_that_are_none_are_refused_and_lift_nothing,
    names_of_others_are_kept_and_nobody_is_made_up_to_write_to,
    the_overseer_of_an_archive_is_an_admins_and_can_be_answered,
    a_projects_number_that_is_taken_gives_way,
    old_forms_of_that_server_are_read,
}

fn archive() -> Written {
    let written = Written::new();
    written.agent("w", 1, "GreenCastle");
    written.agent("w", 2, "BlueLake");
    written.message(1, json!({}));
    written
}

fn told(report: &Report, file: &str) -> String {
    let found = report.refused.iter().find(|refused| refused.file.ends_with(file));
    found.unwrap_or_else(|| panic!("nothing about {file}: {:?}", report.refused)).why.clone()
}

async fn broken_files_are_told_and_the_others_come_in(on: TestStore) {
    let written = archive();
    written.file("projects/w/messages/2026/11/t__x__2.md", "---json\n{ broken\n---\n\nx\n");
    written.file("projects/w/messages/2026/11/t__x__3.md", "no head at all");
    written.file("projects/w/messages/2026/11/t__x__4.md", [0xff, 0xfe]);
    written.file("projects/w/agents/RedStone/profile.json", "[]");
    written.file("projects/w/file_reservations/id-1.json", "{}");
    written.message(5, json!({ "importance": "shouting" }));
    written.message(6, json!({ "to": [] }));
    written.message(7, json!({ "subject": "a\u{0}b" }));
    written.message(8, json!({ "created": "yesterday" }));
    let huge = written.file("projects/w/messages/2026/11/t__x__9.md", "");
    std::fs::File::options().write(true).open(huge).unwrap().set_len(1 << 40).unwrap();
    written.message(10, json!({}));
    let report = import(&on, &written.root()).await;
    assert_eq!((report.messages.written, report.messages.refused), (2, 8));
    assert_eq!(report.refused_total, 10, "{:?}", report.refused);
    assert!(told(&report, "__9.md").contains("bytes"));
    assert!(told(&report, "__5.md").contains("importance"));
    assert!(!report.is_whole());
    assert_eq!(inbox(&on, "/w", "BlueLake").await.len(), 2);
}

async fn links_and_paths_that_leave_are_not_followed(on: TestStore) {
    let written = archive();
    let outside = written.temp.path().join("secret");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("key"), "the secret").unwrap();
    let other = Written::new();
    let message = other.message(3, json!({}));
    symlink(message, written.root().join("projects/w/messages/2026/11/t__x__3.md")).unwrap();
    symlink(other.root().join("projects/w"), written.root().join("projects/v")).unwrap();
    let leaving = |path: &str| json!([{ "type": "file", "media_type": "image/webp", "bytes": 1, "path": path }]);
    written.message(4, json!({ "attachments": leaving("projects/w/attachments/../../../../secret/key") }));
    written.message(5, json!({ "attachments": leaving(outside.join("key").to_str().unwrap()) }));
    symlink(&outside, written.root().join("projects/w/attachments")).unwrap();
    written.message(6, json!({ "attachments": leaving("projects/w/attachments/key") }));
    let report = import(&on, &written.root()).await;
    assert_eq!((report.projects.written, report.messages.written), (1, 4));
    assert!(told(&report, "t__x__3.md").contains("link") && told(&report, "projects/v").contains("link"));
    assert_eq!(report.attachments_lost.len(), 3, "{:?}", report.attachments_lost);
    assert_eq!(on.count("SELECT count(*) FROM mail_attachments").await.unwrap(), 0);
    assert!(!rows(&on).await.iter().any(|row| row.contains("secret")));
}

async fn two_files_with_one_number_are_both_refused(on: TestStore) {
    let written = archive();
    written.message_at("projects/w/messages/2026/11/a__x__2.md", 2, json!({ "subject": "one" }));
    written.message_at("projects/w/messages/2026/12/b__x__2.md", 2, json!({ "subject": "another" }));
    // The same twice is one, and a file that lies about its number is none.
    written.message_at("projects/w/messages/2026/11/a__x__3.md", 3, json!({}));
    written.message_at("projects/w/messages/2026/12/b__x__3.md", 3, json!({}));
    written.message_at("projects/w/messages/2026/12/b__x__4.md", 1, json!({ "subject": "in another's place" }));
    let report = import(&on, &written.root()).await;
    assert_eq!(report.messages.written, 2);
    assert!(told(&report, "a__x__2.md").contains("differ") && told(&report, "b__x__2.md").contains("differ"));
    assert!(told(&report, "b__x__4.md").contains("message 1"));
    assert_eq!(on.count("SELECT count(*) FROM mail_messages WHERE message = 2").await.unwrap(), 0);
    assert_eq!(on.count("SELECT count(*) FROM mail_messages WHERE subject = 'Note 1'").await.unwrap(), 1);
}

async fn a_number_that_is_taken_is_refused_and_nothing_is_overwritten(on: TestStore) {
    let written = archive();
    import(&on, &written.root()).await;
    let other = on.tenant("other").await.unwrap();
    let path = json!({ "human_key": "/v" });
    on.call(&other, "ensure_project", path).await.unwrap();
    for name in ["GreenCastle", "BlueLake"] {
        let input = json!({ "project_key": "/v", "program": "p", "model": "m", "name": name });
        on.call(&other, "register_agent", input).await.unwrap();
    }
    let input = json!({ "project_key": "/v", "agent_name": "BlueLake", "policy": "open" });
    on.call(&other, "set_contact_policy", input).await.unwrap();
    let letter = json!({ "project_key": "/v", "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "s", "body_md": "b" });
    let sent = on.call(&other, "send_message", letter).await.unwrap().json;
    assert_eq!(sent["deliveries"][0]["payload"]["id"], 2);
    let before = rows(&on).await;
    // One of this tenant's own, and one of another's, which nobody is shown.
    written.message(1, json!({ "subject": "in its place" }));
    written.message(2, json!({}));
    let report = import(&on, &written.root()).await;
    assert_eq!((report.messages.written, report.messages.refused), (0, 2));
    assert!(told(&report, "__1.md").contains("taken") && told(&report, "__2.md").contains("taken"));
    assert_eq!(rows(&on).await, before);
}

async fn numbers_that_are_none_are_refused_and_lift_nothing(on: TestStore) {
    let written = archive();
    for id in [0, -5, i64::MAX, (1 << 52) + 1] {
        written.message(id, json!({}));
    }
    written.agent("w", i64::MAX, "RedStone");
    let report = import(&on, &written.root()).await;
    assert_eq!((report.messages.written, report.messages.refused, report.agents.refused), (1, 4, 1));
    let letter = json!({
        "project_key": "/w", "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "s", "body_md": "b",
        "thread_id": "t",
    });
    ok(&on, "set_contact_policy", json!({ "project_key": "/w", "agent_name": "BlueLake", "policy": "open" })).await;
    assert_eq!(ok(&on, "send_message", letter).await["deliveries"][0]["payload"]["id"], 2);
}

async fn names_of_others_are_kept_and_nobody_is_made_up_to_write_to(on: TestStore) {
    let written = archive();
    written.agent("w", 3, "ops-lead_7");
    written.message(2, json!({ "from": "ops-lead_7", "to": ["bluelake", "Vanished"], "bcc": ["GREENCASTLE"] }));
    let report = import(&on, &written.root()).await;
    assert_eq!((report.agents.written, report.messages.written), (3, 2));
    assert_eq!(report.without_profile, ["Vanished of /w"]);
    assert_eq!(inbox(&on, "/w", "ops-lead_7").await, []);
    assert_eq!(inbox(&on, "/w", "Vanished").await, [(2, "to".to_owned())]);
    let names = on.rows("SELECT names, sender_name FROM mail_messages WHERE message = 2").await.unwrap();
    let told: serde_json::Value = serde_json::from_str(names[0].text(0).unwrap()).unwrap();
    assert_eq!(told, json!({ "to": ["BlueLake", "Vanished"], "cc": [], "bcc": ["GreenCastle"] }));
    assert_eq!(names[0].text(1).unwrap(), "ops-lead_7");
    let letter = json!({ "project_key": "/w", "sender_name": "GreenCastle", "to": ["Vanished"], "subject": "s", "body_md": "b" });
    let refused = on.call(&on.admin, "send_message", letter).await.unwrap_err();
    assert!(refused.message().contains("Retired"), "{refused}");
}

/// With a profile in /w, and named by a message alone in /v.
async fn the_overseer_of_an_archive_is_an_admins_and_can_be_answered(on: TestStore) {
    let written = archive();
    written.agent("w", 3, "HumanOverseer");
    written.agent("v", 4, "BlueLake");
    let order = json!({ "from": "humanoverseer", "project": "/v", "project_slug": "v" });
    written.message_at("projects/v/messages/2026/11/t__x__2.md", 2, order);
    written.message(3, json!({ "from": "HumanOverseer" }));
    let report = import_for(&on, &written.root(), "agent:alice").await;
    assert_eq!(report.messages.written, 3, "{:?}", report.refused);
    assert_eq!(report.without_profile, Vec::<String>::new(), "it is there, and not retired");
    let sql = "SELECT principal, policy, reaper_exempt, retired_at FROM mail_agents WHERE name_key = 'humanoverseer'";
    let overseers = on.rows(sql).await.unwrap();
    assert_eq!(overseers.len(), 2);
    let admin = on.admin.principal.to_string();
    for row in &overseers {
        assert_eq!((row.text(0).unwrap(), row.text(1).unwrap()), (admin.as_str(), "open"));
        assert_eq!((row.bool(2).unwrap(), row.int_opt(3).unwrap()), (true, None));
    }
    let alice = person(&on, "alice");
    for (project, message) in [("/v", 2), ("/w", 3)] {
        let answer =
            json!({ "project_key": project, "sender_name": "BlueLake", "message_id": message, "body_md": "Done." });
        on.call(&alice, "reply_message", answer).await.unwrap_or_else(|error| panic!("{project}: {error}"));
        let posing = json!({ "project_key": project, "sender_name": "HumanOverseer", "to": ["BlueLake"], "subject": "s",
            "body_md": "b" });
        assert_eq!(on.call(&alice, "send_message", posing).await.unwrap_err().code(), Code::Forbidden);
    }
}

async fn a_projects_number_that_is_taken_gives_way(on: TestStore) {
    ok(&on, "ensure_project", json!({ "human_key": "/mine" })).await;
    let agent = json!({ "project_key": "/mine", "program": "p", "model": "m", "name": "SilverFox" });
    ok(&on, "register_agent", agent).await;
    let written = archive();
    let report = import(&on, &written.root()).await;
    assert_eq!((report.projects.renumbered, report.agents.renumbered, report.agents.written), (1, 1, 2));
    assert!(report.is_whole());
    assert_eq!(inbox(&on, "/w", "BlueLake").await.len(), 1);
    assert_eq!(on.count("SELECT project FROM mail_agents WHERE name = 'SilverFox'").await.unwrap(), 1);
}

async fn old_forms_of_that_server_are_read(on: TestStore) {
    let written = archive();
    written.file("projects/w/attachments/ab/cd.webp", b"RIFF");
    written.file("projects/w/attachments/secret", b"beside");
    let attachments = json!([
        { "type": "inline", "media_type": "image/webp", "bytes": 2, "data_base64": "aGk=" },
        { "type": "file", "media_type": "image/webp", "bytes": 4, "path": "attachments/ab/cd.webp" },
        { "type": "file", "media_type": "image/webp", "bytes": 4, "path": "projects/w/attachments/ab/cd.webp" },
    ]);
    written.message(2, json!({ "to": "BlueLake", "cc": null, "attachments": attachments }));
    let report = import(&on, &written.root()).await;
    assert_eq!((report.messages.written, report.attachments_lost.len()), (2, 0), "{:?}", report.refused);
    let files = on.rows("SELECT name, media_type, content FROM mail_attachments ORDER BY position").await.unwrap();
    let of: Vec<_> = files.iter().map(|row| (row.text(0).unwrap(), row.bytes(2).unwrap())).collect();
    assert_eq!(of, [("attachment-1.webp", &b"hi"[..]), ("cd.webp", b"RIFF"), ("cd.webp", b"RIFF")]);
}
