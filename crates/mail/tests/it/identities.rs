//! Projects, agents and their names.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    rule_13_a_project_is_made_once_however_often_and_by_however_many,
    rule_14_an_agent_is_registered_once_however_often_and_by_however_many,
    rule_15_a_taken_name_is_refused_and_of_two_one_wins,
    a_project_is_found_by_path_and_slug_and_slugs_do_not_collide,
    what_is_no_project_is_refused,
    names_are_made_kept_and_refused_with_a_hint,
    another_principal_needs_the_token,
    whoever_shows_an_agents_token_finds_its_mail_and_that_of_no_other,
    a_retired_agent_writes_to_nobody_and_comes_back,
    agents_are_listed_by_activity_and_never_more_than_250,
}

async fn rule_13_a_project_is_made_once_however_often_and_by_however_many(on: TestStore) {
    let alice = person(&on, "alice");
    let first = project(&on, &alice, HOME).await;
    assert_eq!(project(&on, &alice, "/data/projects/backend/").await, first);
    let on = Arc::new(on);
    let calls = (0..50).map(|_| (alice.clone(), "ensure_project", json!({ "human_key": "/data/new" }))).collect();
    let made: BTreeSet<i64> =
        together(&on, calls).await.into_iter().map(|answer| number(&answer.unwrap(), "id")).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(on.count("SELECT count(*) FROM mail_projects").await.unwrap(), 2);
    assert_eq!(archive(&on).await.0, 2, "one archive row for each");
}

async fn rule_14_an_agent_is_registered_once_however_often_and_by_however_many(on: TestStore) {
    let alice = person(&on, "alice");
    let first = agent(&on, &alice, "GreenCastle").await;
    pass(&on, 5);
    let again = json!({ "project_key": HOME, "program": "codex", "model": "gpt", "name": "greencastle",
        "task_description": "The login page" });
    let again = ok(&on, &alice, "register_agent", again).await;
    assert_eq!((&again["id"], &again["name"]), (&first["id"], &first["name"]));
    assert_eq!((&again["program"], &again["task_description"]), (&json!("codex"), &json!("The login page")));
    assert!(text(&again, "last_active_ts") > text(&first, "last_active_ts"));
    assert_eq!(again["inception_ts"], first["inception_ts"]);
    let on = Arc::new(on);
    let input = json!({ "project_key": HOME, "program": "p", "model": "m", "name": "BlueLake" });
    let calls = (0..50).map(|_| (alice.clone(), "register_agent", input.clone())).collect();
    let answers: Vec<_> = together(&on, calls).await.into_iter().map(Result::unwrap).collect();
    let ids: BTreeSet<i64> = answers.iter().map(|answer| number(answer, "id")).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let tokens = answers.iter().filter(|answer| answer.get("registration_token").is_some()).count();
    assert_eq!(tokens, 1, "the one that was first");
    assert_eq!(on.count("SELECT count(*) FROM mail_agents").await.unwrap(), 2);
}

async fn rule_15_a_taken_name_is_refused_and_of_two_one_wins(on: TestStore) {
    let alice = person(&on, "alice");
    agent(&on, &alice, "GreenCastle").await;
    let before = on.rows("SELECT program, active_at FROM mail_agents").await.unwrap();
    let input = |name: &str| json!({ "project_key": HOME, "program": "other", "model": "m", "name_hint": name });
    assert_eq!(refusal(&on, &alice, "create_agent_identity", input("GREENCASTLE")).await, Code::AgentNameTaken);
    assert_eq!(on.rows("SELECT program, active_at FROM mail_agents").await.unwrap(), before);
    let on = Arc::new(on);
    let calls = (0..50).map(|_| (alice.clone(), "create_agent_identity", input("BlueLake"))).collect();
    let answers = together(&on, calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let lost = answers.iter().filter_map(|answer| answer.as_ref().err());
    assert!(lost.clone().all(|error| error.code() == Code::AgentNameTaken), "{:?}", lost.collect::<Vec<_>>());
    assert_eq!(on.count("SELECT count(*) FROM mail_agents").await.unwrap(), 2);
}

async fn a_project_is_found_by_path_and_slug_and_slugs_do_not_collide(on: TestStore) {
    let alice = person(&on, "alice");
    let (one, other) = (project(&on, &alice, "/a/b").await, project(&on, &alice, "/a-b").await);
    assert_eq!(one["slug"], "a-b");
    assert!(text(&other, "slug").starts_with("a-b--"), "{other}");
    assert_eq!(project(&on, &alice, "/a-b").await, other, "the same slug again");
    for made in [&one, &other] {
        for key in ["slug", "human_key"] {
            let shown = ok(&on, &alice, "get_project", json!({ "project_key": made[key] })).await;
            assert_eq!((&shown["id"], &shown["agents"]), (&made["id"], &json!(0)));
        }
    }
    let listed = ok(&on, &alice, "list_projects", json!({ "limit": 1 })).await;
    let facts = ["id", "slug", "human_key", "created_at"];
    let same = |shown: &Value, made: &Value| facts.iter().all(|fact| shown[*fact] == made[*fact]);
    assert!(same(&listed["projects"][0], &one), "{listed}");
    let rest = ok(&on, &alice, "list_projects", json!({ "cursor": listed["next_cursor"] })).await;
    assert!(same(&rest["projects"][0], &other) && rest.get("next_cursor").is_none(), "{rest}");
    let stranger = on.tenant("other").await.unwrap();
    assert_eq!(ok(&on, &stranger, "list_projects", json!({})).await["projects"], json!([]));
    assert_eq!(refusal(&on, &stranger, "get_project", json!({ "project_key": "a-b" })).await, Code::NotFound);
}

async fn what_is_no_project_is_refused(on: TestStore) {
    let alice = person(&on, "alice");
    for path in ["", "backend", "./x", "/a/../b", "/tmp/x", "/dev/shm"] {
        let code = refusal(&on, &alice, "ensure_project", json!({ "human_key": path })).await;
        assert_eq!(code, Code::InvalidRequest, "{path:?}");
    }
    let mode = json!({ "human_key": HOME, "identity_mode": "branch" });
    assert_eq!(refusal(&on, &alice, "ensure_project", mode).await, Code::InvalidRequest);
    let plain = ok(&on, &alice, "ensure_project", json!({ "human_key": HOME, "identity_mode": null })).await;
    assert_eq!((&plain["identity_mode"], &plain["identity_mode_used"]), (&json!("dir"), &json!("dir")), "{plain}");
    assert_eq!(plain["canonical_path"], HOME);
    for mode in ["dir", "git-remote", "git-toplevel", "git-common-dir"] {
        let asked = json!({ "human_key": format!("{HOME}/"), "identity_mode": mode });
        assert_eq!(ok(&on, &alice, "ensure_project", asked).await, plain, "{mode}: the path names the project");
    }
    let error = refused(&on, &alice, "get_project", json!({ "project_key": "data-projects-backand" })).await;
    assert_eq!(error.detail("suggestions"), Some(&json!(["data-projects-backend"])), "{error}");
}

async fn names_are_made_kept_and_refused_with_a_hint(on: TestStore) {
    let alice = person(&on, "alice");
    project(&on, &alice, HOME).await;
    let input = |name: serde_json::Value| json!({ "project_key": HOME, "program": "p", "model": "m", "name": name });
    let mut made = BTreeSet::new();
    for _ in 0..20 {
        made.insert(text(&ok(&on, &alice, "register_agent", input(json!(null))).await, "name"));
    }
    assert_eq!(made.len(), 20, "without a name each is a new one");
    for (name, code) in
        [("claude-code", Code::InvalidAgentName), ("a@b.c", Code::InvalidAgentName), ("Bob", Code::InvalidAgentName)]
    {
        assert_eq!(refusal(&on, &alice, "register_agent", input(json!(name))).await, code, "{name}");
    }
    for (field, code) in [("program", Code::EmptyProgram), ("model", Code::EmptyModel)] {
        let empty = with(input(json!("BlueLake")), json!({ field: " " }));
        assert_eq!(refusal(&on, &alice, "register_agent", empty).await, code);
    }
    assert_eq!(on.count("SELECT count(*) FROM mail_agents").await.unwrap(), 20);
    // A name that came from another server's archive stays what it is.
    on.write(
        "UPDATE mail_agents SET name = 'Bob', name_key = 'bob' WHERE agent = (SELECT min(agent) FROM mail_agents)",
    )
    .await
    .unwrap();
    assert_eq!(ok(&on, &alice, "register_agent", input(json!("BOB"))).await["name"], "Bob");
    let error = refused(&on, &alice, "whois", of("Bop")).await;
    assert_eq!((error.code(), error.detail("suggestions")), (Code::NotFound, Some(&json!(["Bob"]))), "{error}");
}

async fn another_principal_needs_the_token(on: TestStore) {
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    let token = text(&agent(&on, &alice, "GreenCastle").await, "registration_token");
    let again = json!({ "project_key": HOME, "program": "p", "model": "m", "name": "GreenCastle" });
    for (name, input) in [
        ("register_agent", again.clone()),
        ("fetch_inbox", of("GreenCastle")),
        ("fetch_inbox_events", of("GreenCastle")),
        ("list_contacts", of("GreenCastle")),
        ("retire_agent", of("GreenCastle")),
        ("set_contact_policy", with(of("GreenCastle"), json!({ "policy": "open" }))),
    ] {
        assert_eq!(refusal(&on, &bob, name, input.clone()).await, Code::Forbidden, "{name}");
        let wrong = with(input.clone(), json!({ "registration_token": "x" }));
        assert_eq!(refusal(&on, &alice, name, wrong).await, Code::SenderTokenMismatch, "{name}: also from its owner");
        ok(&on, &bob, name, with(input.clone(), json!({ "registration_token": token }))).await;
        if name != "retire_agent" {
            ok(&on, &on.admin, name, input).await;
        }
    }
    let renewed = ok(&on, &alice, "register_agent", with(again, json!({ "new_token": true }))).await;
    assert_ne!(text(&renewed, "registration_token"), token);
    let old = with(of("GreenCastle"), json!({ "registration_token": token }));
    assert_eq!(refusal(&on, &bob, "fetch_inbox", old).await, Code::SenderTokenMismatch);
    assert_eq!(on.count("SELECT count(*) FROM mail_agents WHERE principal = 'agent:alice'").await.unwrap(), 1);
}

async fn a_retired_agent_writes_to_nobody_and_comes_back(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let retired = ok(&on, &bob, "retire_agent", of("BlueLake")).await;
    pass(&on, 5);
    assert_eq!(
        ok(&on, &bob, "retire_agent", of("BlueLake")).await["retired_ts"],
        retired["retired_ts"],
        "the first time"
    );
    let error = refused(&on, &alice, "send_message", letter("x")).await;
    assert_eq!(
        (error.code(), error.detail("retired")),
        (Code::RecipientNotFound, Some(&json!(["BlueLake"]))),
        "{error}"
    );
    let own = with(letter("x"), json!({ "sender_name": "BlueLake", "to": ["GreenCastle"] }));
    assert_eq!(refusal(&on, &bob, "send_message", own.clone()).await, Code::AgentRetired);
    for (name, further) in [
        ("file_reservation_paths", json!({ "paths": ["src"] })),
        ("macro_file_reservation_cycle", json!({ "paths": ["src"] })),
        ("acquire_build_slot", json!({ "slot": "frontend" })),
        ("force_release_file_reservation", json!({ "file_reservation_id": 1 })),
    ] {
        assert_eq!(refusal(&on, &bob, name, with(of("BlueLake"), further)).await, Code::AgentRetired, "{name}");
    }
    inbox(&on, &bob, "BlueLake", json!({})).await;
    let names = async |all: bool| {
        let listed =
            ok(&on, &alice, "list_agents", json!({ "project_key": HOME, "include_retired": all })).await["agents"]
                .clone();
        listed.as_array().unwrap().len()
    };
    assert_eq!((names(false).await, names(true).await), (1, 2));
    assert!(ok(&on, &bob, "unretire_agent", of("BlueLake")).await.get("retired_ts").is_none());
    ok(&on, &bob, "unretire_agent", of("BlueLake")).await;
    ok(&on, &bob, "send_message", own).await;
}

async fn agents_are_listed_by_activity_and_never_more_than_250(on: TestStore) {
    let alice = person(&on, "alice");
    agent(&on, &alice, "GreenCastle").await;
    let first = on.count("SELECT agent FROM mail_agents").await.unwrap();
    // As many as one project of the other servers had.
    on.write(&format!(
        "INSERT INTO mail_agents (tenant, project, name, name_key, program, model, task, policy, attachments_policy, principal, \
         token, created_at, active_at) \
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1118) \
         SELECT a.tenant, a.project, 'Agent' || n.i, 'agent' || n.i, 'p', 'm', '', 'auto', 'auto', a.principal, a.token, \
         a.created_at, a.active_at - n.i FROM mail_agents a, n WHERE a.agent = {first}"
    ))
    .await
    .unwrap();
    let listed = ok(&on, &alice, "list_agents", json!({ "project_key": HOME, "limit": 100_000 })).await;
    let agents = listed["agents"].as_array().unwrap();
    assert_eq!((agents.len(), &listed["has_more"]), (250, &json!(true)));
    assert_eq!((&agents[0]["name"], &agents[1]["name"]), (&json!("GreenCastle"), &json!("Agent1")));
    assert!(listed.to_string().len() < 100_000, "{} bytes", listed.to_string().len());
    assert_eq!(
        refusal(&on, &alice, "list_agents", json!({ "project_key": HOME, "limit": 0 })).await,
        Code::InvalidRequest
    );
    pass(&on, 3 * 86_400);
    let lately = json!({ "project_key": HOME, "active_within_days": 2 });
    assert_eq!(ok(&on, &alice, "list_agents", lately).await["agents"], json!([]));
}

/// To or from whom `further` says.
async fn walrus(on: &TestStore, caller: &Caller, further: Value) -> i64 {
    send(on, caller, with(with(letter("walrus"), json!({ "thread_id": "T" })), further)).await
}

async fn whoever_shows_an_agents_token_finds_its_mail_and_that_of_no_other(on: TestStore) {
    let (alice, bob) = two(&on).await;
    agent(&on, &alice, "RedFox").await;
    policy(&on, &alice, "RedFox", "open").await;
    let fresh = json!({ "project_key": HOME, "program": "p", "model": "m", "name": "GreenCastle", "new_token": true });
    let token = text(&ok(&on, &alice, "register_agent", fresh).await, "registration_token");
    let got = walrus(&on, &bob, json!({ "sender_name": "BlueLake", "to": ["GreenCastle"] })).await;
    let written = walrus(&on, &alice, json!({ "bcc": ["RedFox"] })).await;
    for _ in 0..3 {
        // What other agents of the same key have is not this one's.
        walrus(&on, &bob, json!({ "sender_name": "BlueLake", "to": ["RedFox"] })).await;
    }
    let carol = person(&on, "carol");
    ok(&on, &carol, "ensure_product", json!({ "product_key": "shop" })).await;
    ok(&on, &carol, "products_link", json!({ "product_key": "shop", "project_key": HOME })).await;
    let shown = json!({ "agent_name": "GreenCastle", "registration_token": token });
    let found = [written, got];
    for caller in [&alice, &carol, &on.admin] {
        for limit in [1_usize, 2, 20] {
            let words = json!({ "project_key": HOME, "query": "walrus", "limit": limit });
            let page = ok(&on, caller, "search_messages", with(words, shown.clone())).await;
            assert_eq!(ids(&page), found[..limit.min(2)], "by {limit}");
        }
        let words = json!({ "product_key": "shop", "query": "walrus" });
        assert_eq!(ids(&ok(&on, caller, "search_messages_product", with(words, shown.clone())).await), found);
        for (tool, thread) in [
            ("summarize_thread", json!({ "project_key": HOME, "thread_id": "T" })),
            ("summarize_thread_product", json!({ "product_key": "shop", "thread_id": "T" })),
        ] {
            let summed = ok(&on, caller, tool, with(thread, shown.clone())).await;
            assert_eq!(summed["summary"]["total_messages"], 2, "{tool}");
        }
    }
    let join = json!({ "project_key": HOME, "thread_id": "T", "program": "p", "model": "m" });
    let joined = ok(&on, &carol, "macro_prepare_thread", with(join, shown)).await;
    assert_eq!(joined["thread"]["summary"]["total_messages"], 2, "{joined}");
    let words = json!({ "project_key": HOME, "query": "walrus", "agent_name": "GreenCastle" });
    assert_eq!(refusal(&on, &carol, "search_messages", words.clone()).await, Code::Forbidden);
    let wrong = with(words, json!({ "registration_token": "0".repeat(64) }));
    assert_eq!(refusal(&on, &carol, "search_messages", wrong).await, Code::SenderTokenMismatch);
}

fn ids(answer: &Value) -> Vec<i64> {
    answer["result"].as_array().unwrap().iter().map(|hit| number(hit, "id")).collect()
}
