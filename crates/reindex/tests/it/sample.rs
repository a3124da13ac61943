//! The archive that the Python server has written comes in whole.

use serde_json::json;
use waybill_reindex::Tally;
use waybill_testkit::stores::{TestStore, readable};

use crate::support::{BACKEND, FRONT, import, inbox, ok, rows, sample};

waybill_testkit::both! {
    rule_42_the_sample_comes_in_with_its_numbers_kinds_and_times,
    rule_42_a_second_run_writes_nothing,
    rule_42_new_rows_are_numbered_behind_the_imported_ones,
    bcc_is_shown_to_nobody_else,
}

fn all(written: u64) -> Tally {
    Tally { written, ..Tally::default() }
}

async fn rule_42_the_sample_comes_in_with_its_numbers_kinds_and_times(on: TestStore) {
    let Some((_temp, root)) = sample() else { return };
    let report = import(&on, &root).await;
    assert_eq!(report.refused, []);
    assert_eq!((report.projects, report.agents), (all(2), all(4)));
    assert_eq!((report.messages, report.reservations), (all(17), all(3)));
    assert!(report.is_whole() && report.without_profile.is_empty());
    assert_eq!(report.not_in_archive.len(), 4, "what cannot be recovered is told");

    let agents =
        on.rows("SELECT agent, name, project, principal, created_at FROM mail_agents ORDER BY agent").await.unwrap();
    let of: Vec<_> =
        agents.iter().map(|row| (row.int(0).unwrap(), row.text(1).unwrap(), row.int(2).unwrap())).collect();
    assert_eq!(of, [(1, "GreenCastle", 1), (2, "BlueLake", 1), (3, "RedStone", 1), (4, "BrownBear", 2)]);
    assert!(agents.iter().all(|row| row.text(3).unwrap() == on.admin.principal.to_string()));
    assert_eq!(agents[0].int(4).unwrap(), 1_794_854_600_510_652);

    // As the database of that server has them.
    let sql = "SELECT message, agent, kind FROM mail_recipients ORDER BY message, agent";
    let recipients = on.rows(sql).await.unwrap();
    let of = |row: &waybill_store::Row| (row.int(0).unwrap(), row.int(1).unwrap(), row.text(2).unwrap().to_owned());
    let recipients: Vec<_> = recipients.iter().map(of).collect();
    let told = [(1, 2, "to"), (1, 3, "cc"), (2, 1, "to"), (2, 3, "bcc"), (3, 1, "to"), (4, 2, "to"), (5, 3, "to")];
    assert_eq!(recipients.len(), 19);
    for (found, (message, agent, kind)) in recipients.iter().zip(told) {
        assert_eq!(*found, (message, agent, kind.to_owned()));
    }
    let created = on.rows("SELECT created_at, thread FROM mail_messages WHERE message = 1").await.unwrap();
    assert_eq!((created[0].int(0).unwrap(), created[0].text(1).unwrap()), (1_794_854_601_001_411, "PLAN-1"));

    // It is in its sender's project, as a message across projects is here.
    let across = on.rows("SELECT project, sender, names FROM mail_messages WHERE message = 17").await.unwrap();
    assert_eq!((across[0].int(0).unwrap(), across[0].int(1).unwrap()), (1, 1));
    assert!(across[0].text(2).unwrap().contains("project:data-projects-front-end#BrownBear"));
    assert_eq!(on.count("SELECT intro FROM mail_messages WHERE message = 16").await.unwrap(), 1);

    let sql = "SELECT reservation, path, released_at FROM mail_reservations ORDER BY reservation";
    let held = on.rows(sql).await.unwrap();
    let of: Vec<_> =
        held.iter().map(|row| (row.int(0).unwrap(), row.text(1).unwrap(), row.int_opt(2).unwrap())).collect();
    assert_eq!(of, [(1, "src/**/*.rs", None), (2, "docs/plan.md", None), (3, "web/*.ts", Some(1_794_854_603_412_974))]);

    // Found by whoever looks for it.
    let mine = inbox(&on, BACKEND, "RedStone").await;
    assert_eq!(mine.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 5, 8, 11, 14]);
    assert_eq!((mine[0].1.as_str(), mine[1].1.as_str()), ("cc", "bcc"));
    assert_eq!(inbox(&on, FRONT, "BrownBear").await.len(), 2);
    let found = ok(&on, "search_messages", json!({ "project_key": BACKEND, "query": "umlaute" })).await;
    assert_eq!(found["result"][0]["id"], 1);
    let found = ok(&on, "search_messages", json!({ "project_key": FRONT, "query": "hello there" })).await;
    assert_eq!(found["result"][0]["id"], 17);
    let events = json!({ "project_key": BACKEND, "agent_name": "RedStone" });
    assert_eq!(ok(&on, "fetch_inbox_events", events).await["events"].as_array().unwrap().len(), 6);
    // Our own archive is told of all of it: 2 projects, 4 agents, 17 messages of which 2 are in two projects, 3 reservations.
    assert_eq!(on.count("SELECT count(*) FROM mail_archive_rows").await.unwrap(), 2 + 4 + 19 + 3);
}

async fn rule_42_a_second_run_writes_nothing(on: TestStore) {
    let Some((_temp, root)) = sample() else { return };
    import(&on, &root).await;
    let before = rows(&on).await;
    let report = import(&on, &root).await;
    assert_eq!((report.written(), report.messages.known, report.agents.known), (0, 17, 4));
    assert!(report.is_whole());
    assert_eq!(rows(&on).await, before);
}

async fn rule_42_new_rows_are_numbered_behind_the_imported_ones(on: TestStore) {
    let Some((_temp, root)) = sample() else { return };
    import(&on, &root).await;
    let path = json!({ "human_key": "/data/another" });
    assert_eq!(ok(&on, "ensure_project", path).await["id"], 3);
    let agent = json!({ "project_key": BACKEND, "program": "p", "model": "m", "name": "SilverFox" });
    assert_eq!(ok(&on, "register_agent", agent).await["id"], 5);
    let letter = json!({
        "project_key": BACKEND, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "x", "body_md": "y",
        "thread_id": "PLAN-1",
    });
    let sent = ok(&on, "send_message", letter).await;
    assert_eq!(sent["deliveries"][0]["payload"]["id"], 18);
    let paths = json!({ "project_key": BACKEND, "agent_name": "GreenCastle", "paths": ["new.rs"] });
    assert_eq!(ok(&on, "file_reservation_paths", paths).await["granted"][0]["id"], 4);
    // Who comes back is the same agent, with a token of its own.
    let again =
        json!({ "project_key": BACKEND, "program": "p", "model": "m", "name": "greencastle", "new_token": true });
    let again = ok(&on, "register_agent", again).await;
    assert_eq!(again["id"], 1);
    assert!(again["registration_token"].is_string());
}

/// That server shows secret recipients in inbox copies; here neither the other recipients nor their search find them.
async fn bcc_is_shown_to_nobody_else(on: TestStore) {
    let Some((_temp, root)) = sample() else { return };
    import(&on, &root).await;
    let caller = on.agent("stranger").map_err(|error| error.to_string()).unwrap();
    let caller = waybill_kernel::Caller {
        scopes: waybill_kernel::Scopes::new([waybill_kernel::Scope::MailRead, waybill_kernel::Scope::MailWrite]),
        ..caller
    };
    on.write("UPDATE mail_agents SET principal = 'agent:stranger' WHERE name = 'GreenCastle'").await.unwrap();
    let input = json!({ "project_key": BACKEND, "agent_name": "GreenCastle", "message_id": 2 });
    let shown = on.call(&caller, "get_message", input).await.map_err(readable).unwrap().json;
    assert_eq!(shown["to"], json!(["GreenCastle"]));
    assert!(!shown.to_string().contains("RedStone"), "{shown}");
}
