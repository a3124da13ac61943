//! Finding messages by their words.

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code, Mode, Result, Role};
use waybill_mail::search::merge::MergeSearch;
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::stores::{self, TestStore};

use crate::support::{
    HOME, agent, agent_in, letter, number, ok, pass, person, policy, project, refusal, send, subjects, sweep, two, with,
};

waybill_testkit::both! {
    an_agents_own_mail_is_found_by_its_name,
    words_phrases_beginnings_and_operators_find_the_same_everywhere,
    nothing_that_is_typed_is_an_error_of_the_engine,
    only_parties_find_a_message_and_admins_all,
    hidden_recipients_find_it_and_are_shown_to_nobody,
    filters_and_hints_narrow,
    an_empty_query_lists_by_the_filters_alone,
    by_relevance_subjects_come_first_and_by_recency_the_newest,
    pages_follow_each_other_without_gap_or_repeat,
    the_limit_counts_only_what_may_be_found,
    a_noisy_tenant_changes_neither_results_nor_order,
    what_is_indexed_of_a_message_is_bounded,
    a_long_message_to_many_projects_is_found_in_each,
    mail_between_projects_is_found_in_both,
    bodies_are_cut_and_say_so,
    a_message_is_found_as_soon_as_it_is_sent_and_after_merging,
    what_is_asked_wrongly_is_refused,
}

async fn search(on: &TestStore, caller: &Caller, further: Json) -> Json {
    ok(on, caller, "search_messages", with(json!({ "project_key": HOME }), further)).await
}

async fn found(on: &TestStore, caller: &Caller, query: &str) -> Vec<i64> {
    ids(&search(on, caller, json!({ "query": query, "ranking": "recency" })).await)
}

fn ids(answer: &Json) -> Vec<i64> {
    answer["result"].as_array().unwrap().iter().map(|hit| number(hit, "id")).collect()
}

async fn write(on: &TestStore, caller: &Caller, subject: &str, body: &str) -> i64 {
    send(on, caller, with(letter(subject), json!({ "body_md": body }))).await
}

async fn words_phrases_beginnings_and_operators_find_the_same_everywhere(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let deploy = write(&on, &alice, "Deploy plan", "We deploy POL-358 on Friday, then the big red button.").await;
    let rollback = write(&on, &alice, "Rollback", "Rolling back the deployment. Button is red. Café Ünsal.").await;
    let other = write(&on, &alice, "Lunch", "日本語の本 at noon. snake_case::name and x2.").await;
    for (query, expected) in [
        ("deploy", vec![deploy]),
        ("DEPLOY", vec![deploy]),
        ("depl*", vec![rollback, deploy]),
        ("deploy friday", vec![deploy]),
        ("deploy noon", vec![]),
        ("deploy OR noon", vec![other, deploy]),
        ("\"red button\"", vec![deploy]),
        ("\"button red\"", vec![]),
        ("button AND red", vec![rollback, deploy]),
        ("red NOT deploy", vec![rollback]),
        ("NOT red", vec![other]),
        ("(deploy OR rollback) red", vec![rollback, deploy]),
        ("noon OR NOT red", vec![other]),
        ("pol-358", vec![deploy]),
        ("358", vec![deploy]),
        ("subject:deploy", vec![deploy]),
        ("body:deploy", vec![deploy]),
        ("subject:button", vec![]),
        ("body:rollback", vec![]),
        ("subject:roll*", vec![rollback]),
        ("café", vec![rollback]),
        ("cafe", vec![]),
        ("ünsal", vec![rollback]),
        ("日本", vec![other]),
        ("本日", vec![]),
        ("snake_case", vec![other]),
        ("X2", vec![other]),
        // The subject's last word and the body's first are no phrase.
        ("\"plan we\"", vec![]),
        ("\"deploy plan\"", vec![deploy]),
    ] {
        assert_eq!(found(&on, &bob, query).await, expected, "{query}");
    }
}

async fn nothing_that_is_typed_is_an_error_of_the_engine(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let id = write(&on, &alice, "Fix it", "a \"quoted\" 'text' with \\ and 100%").await;
    for query in [
        "\"",
        "'",
        "\\",
        "*",
        "a*b*",
        "AND",
        "OR",
        "NOT",
        "NOT NOT",
        "((((",
        "))))",
        "a AND OR b",
        "NEAR(a b)",
        "^fix",
        "fix^",
        "-fix",
        "+fix",
        "fix:it",
        "{fix}",
        "subject:",
        "subject:*",
        "a & b | !c <-> d",
        "'a':*",
        "%",
        "_",
        ";--",
        "fix\u{7}it",
        "subject : fix",
        "\u{202e}fix",
        "😀",
        "\"\"",
        "fix AND \"",
        "marks : 1p1z",
        "a OR",
        "rank:fix",
        "mail_fts",
    ] {
        search(&on, &bob, json!({ "query": query })).await;
    }
    assert_eq!(found(&on, &bob, "fix AND \"").await, [id], "what does not parse is any of its words");
    let told = search(&on, &bob, json!({ "query": "fix AND", "explain": true })).await;
    assert!(told["assistance"]["guidance"][0].as_str().unwrap().contains("any of its words"), "{told}");
    assert_eq!(told["diagnostics"]["parsed"], "\"fix\"");
    let nothing = search(&on, &bob, json!({ "query": "***" })).await;
    assert_eq!(nothing["result"], json!([]));
}

async fn only_parties_find_a_message_and_admins_all(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedStone").await;
    let id = write(&on, &alice, "Secret plan", "zebra").await;
    for caller in [&alice, &bob, &on.admin] {
        assert_eq!(found(&on, caller, "zebra").await, [id]);
    }
    for query in ["zebra", "", "NOT nothing", "zebra OR NOT zebra", "zeb*"] {
        assert!(found(&on, &carol, query).await.is_empty(), "{query}");
    }
}

async fn hidden_recipients_find_it_and_are_shown_to_nobody(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedStone").await;
    policy(&on, &carol, "RedStone", "open").await;
    let id = send(&on, &alice, with(letter("Hush"), json!({ "bcc": ["RedStone"] }))).await;
    assert_eq!(found(&on, &carol, "hush").await, [id]);
    for caller in [&bob, &carol] {
        let answer = search(&on, caller, json!({ "query": "hush", "include_body_md": true, "explain": true })).await;
        assert!(!answer.to_string().contains("RedStone"), "{answer}");
        assert_eq!(found(&on, caller, "RedStone").await, [0_i64; 0]);
    }
}

async fn filters_and_hints_narrow(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let plain = send(&on, &alice, letter("note one")).await;
    let urgent =
        send(&on, &alice, with(letter("note two"), json!({ "importance": "urgent", "thread_id": "T-1" }))).await;
    let back = json!({ "project_key": HOME, "sender_name": "BlueLake", "to": ["GreenCastle"], "subject": "note three",
                       "body_md": "x", "importance": "high", "thread_id": "T-1" });
    let theirs = send(&on, &bob, back).await;
    for (further, expected) in [
        (json!({ "sender": "greencastle" }), vec![urgent, plain]),
        (json!({ "from_agent": "BlueLake" }), vec![theirs]),
        (json!({ "importance": ["urgent", "HIGH"] }), vec![theirs, urgent]),
        (json!({ "importance": "urgent" }), vec![urgent]),
        (json!({ "thread_id": "T-1" }), vec![theirs, urgent]),
        (json!({ "thread_id": "T-1", "sender": "BlueLake" }), vec![theirs]),
        (json!({ "thread_id": plain.to_string() }), vec![plain]),
        (json!({ "query": "note from:BlueLake" }), vec![theirs]),
        (json!({ "query": "from:Nobody note" }), vec![]),
        (json!({ "query": "note thread:T-1 importance:urgent" }), vec![urgent]),
        (json!({ "query": "note before:2001-01-01" }), vec![]),
        (json!({ "query": "note after:2001-01-01" }), vec![theirs, urgent, plain]),
        (json!({ "query": "note before:nonsense" }), vec![theirs, urgent, plain]),
        (
            json!({ "cursor": null, "limit": null, "importance": null, "sender": null, "thread_id": null }),
            vec![theirs, urgent, plain],
        ),
    ] {
        let input = with(json!({ "query": "note", "ranking": "recency" }), further.clone());
        assert_eq!(ids(&search(&on, &alice, input).await), expected, "{further}");
    }
    let told = search(&on, &alice, json!({ "query": "note from:BlueLake before:nonsense" })).await;
    assert_eq!(told["assistance"]["applied_filters"], json!(["from:BlueLake"]));
    assert_eq!(told["assistance"]["guidance"].as_array().unwrap().len(), 1);
}

async fn an_empty_query_lists_by_the_filters_alone(on: TestStore) {
    let (alice, _) = two(&on).await;
    let first = send(&on, &alice, letter("one")).await;
    let before =
        ok(&on, &alice, "get_message", json!({ "project_key": HOME, "message_id": first })).await["created_ts"].clone();
    pass(&on, 10);
    let second = send(&on, &alice, with(letter("two"), json!({ "importance": "high" }))).await;
    for (further, expected) in [
        (json!({}), vec![second, first]),
        (json!({ "query": "  " }), vec![second, first]),
        (json!({ "importance": "high" }), vec![second]),
        (json!({ "date_end": before }), vec![]),
        (json!({ "date_start": before }), vec![second, first]),
        (json!({ "since": before, "until": "2199-01-01" }), vec![second, first]),
        (json!({ "date_start": "2199-01-01" }), vec![]),
    ] {
        assert_eq!(ids(&search(&on, &alice, further.clone()).await), expected, "{further}");
    }
}

async fn by_relevance_subjects_come_first_and_by_recency_the_newest(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let subject = write(&on, &alice, "Release notes", "x").await;
    let both = write(&on, &alice, "The release", "release release").await;
    let body = write(&on, &alice, "Other", "about the release").await;
    let relevance = search(&on, &bob, json!({ "query": "release" })).await;
    assert_eq!(ids(&relevance), [both, subject, body]);
    assert_eq!(found(&on, &bob, "release").await, [body, both, subject]);
    assert_eq!(relevance["result"][2]["snippet"], "about the release");
}

async fn pages_follow_each_other_without_gap_or_repeat(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let mut expected = Vec::new();
    for n in 0..7 {
        let (subject, body) = if n % 2 == 0 { ("apple", "x") } else { ("x", "apple") };
        expected.push((n % 2, -write(&on, &alice, subject, body).await));
    }
    expected.sort_unstable();
    let expected: Vec<i64> = expected.iter().map(|(_, id)| -id).collect();
    for limit in [1, 2, 3, 4, 7, 50] {
        let (mut seen, mut cursor) = (Vec::new(), Json::Null);
        loop {
            let page = search(&on, &bob, json!({ "query": "apple", "limit": limit, "cursor": cursor })).await;
            assert!(ids(&page).len() <= limit);
            seen.extend(ids(&page));
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(seen, expected, "by {limit}");
    }
    let skipped = search(&on, &bob, json!({ "query": "apple", "limit": 2, "offset": 3 })).await;
    assert_eq!(ids(&skipped), expected[3..5]);
    // A cursor is for its own query.
    let page = search(&on, &bob, json!({ "query": "apple", "limit": 2 })).await;
    let other = json!({ "project_key": HOME, "query": "x", "cursor": page["next_cursor"] });
    assert_eq!(refusal(&on, &bob, "search_messages", other).await, Code::InvalidCursor);
}

async fn the_limit_counts_only_what_may_be_found(on: TestStore) {
    let (alice, _) = two(&on).await;
    let carol = person(&on, "carol");
    agent(&on, &carol, "RedStone").await;
    policy(&on, &carol, "RedStone", "open").await;
    let hers = send(&on, &alice, with(letter("pear"), json!({ "to": ["RedStone"] }))).await;
    for _ in 0..5 {
        send(&on, &alice, letter("pear")).await;
    }
    for query in ["pear", ""] {
        let answer = search(&on, &carol, json!({ "query": query, "limit": 1 })).await;
        assert_eq!((ids(&answer), &answer["next_cursor"]), (vec![hers], &Json::Null), "{query}");
    }
}

async fn a_noisy_tenant_changes_neither_results_nor_order(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for n in 0..6 {
        write(&on, &alice, &format!("alpha {n}"), if n % 3 == 0 { "alpha beta beta gamma" } else { "beta" }).await;
    }
    let queries = ["alpha", "beta", "alp*", "alpha NOT gamma", "\"beta gamma\"", ""];
    let mut quiet = Vec::new();
    for query in queries {
        quiet.push(search(&on, &bob, json!({ "query": query })).await);
    }
    let noisy = on.tenant("noisy").await.unwrap();
    let theirs = stores::caller(&noisy, "agent:bob", &[Role::Agent]).unwrap();
    for name in ["GreenCastle", "BlueLake"] {
        agent(&on, &theirs, name).await;
        policy(&on, &theirs, name, "open").await;
    }
    for n in 0..30 {
        write(&on, &theirs, &format!("alpha beta gamma alphabet {n}"), "alpha beta gamma beta alpine").await;
    }
    for (query, before) in queries.iter().zip(quiet) {
        assert_eq!(search(&on, &bob, json!({ "query": query })).await, before, "{query}");
    }
    assert_eq!(found(&on, &theirs, "alpha").await.len(), 20);
}

async fn what_is_indexed_of_a_message_is_bounded(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let body = format!("early {} late", "filler ".repeat(20_000));
    let id = write(&on, &alice, "Large", &body).await;
    assert_eq!(found(&on, &bob, "early").await, [id]);
    assert_eq!(found(&on, &bob, "filler").await, [id]);
    assert!(found(&on, &bob, "late").await.is_empty());
    let word = "x".repeat(10_000);
    let id = write(&on, &alice, "One word", &word).await;
    assert_eq!(found(&on, &bob, &word[..900]).await, [id]);
}

async fn mail_between_projects_is_found_in_both(on: TestStore) {
    const AWAY: &str = "/data/projects/frontend";
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    agent(&on, &alice, "GreenCastle").await;
    project(&on, &bob, AWAY).await;
    agent_in(&on, &bob, AWAY, "BlueLake").await;
    let asked = json!({ "project_key": HOME, "from_agent": "GreenCastle", "to_agent": "BlueLake", "to_project": AWAY });
    ok(&on, &alice, "request_contact", asked).await;
    let granted = json!({ "project_key": AWAY, "to_agent": "BlueLake", "from_agent": "GreenCastle", "from_project": HOME, "accept": true });
    ok(&on, &bob, "respond_contact", granted).await;
    let id = send(&on, &alice, with(letter("walrus"), json!({ "to": [format!("project:{AWAY}#BlueLake")] }))).await;
    for (caller, key) in [(&alice, HOME), (&bob, AWAY), (&bob, HOME)] {
        let answer = ok(&on, caller, "search_messages", json!({ "project_key": key, "query": "walrus" })).await;
        assert_eq!(ids(&answer), [id], "{key}");
    }
    let answer = ok(&on, &alice, "search_messages", json!({ "project_key": AWAY, "query": "walrus" })).await;
    assert!(ids(&answer).is_empty(), "alice has nobody there");
    // Its sender is looked for as it is shown.
    let sender = "project:data-projects-backend#GreenCastle";
    let named = json!({ "project_key": AWAY, "sender": sender, "query": "walrus" });
    assert_eq!(ids(&ok(&on, &bob, "search_messages", named).await), [id]);
}

async fn a_long_message_to_many_projects_is_found_in_each(on: TestStore) {
    let alice = person(&on, "alice");
    agent(&on, &alice, "GreenCastle").await;
    let away: Vec<String> = (0..15).map(|n| format!("/data/away/{n}")).collect();
    for path in &away {
        agent_in(&on, &alice, path, "BlueLake").await;
        let hands = json!({ "project_key": HOME, "requester": "GreenCastle", "target": "BlueLake", "to_project": path,
            "auto_accept": true });
        ok(&on, &alice, "macro_contact_handshake", hands).await;
    }
    let word = |n: usize| format!("{n:0>64}");
    let to: Vec<String> = away.iter().map(|path| format!("project:{path}#BlueLake")).collect();
    let body = (0..1_000).map(word).collect::<Vec<_>>().join(" ");
    let id = send(&on, &alice, with(letter("walrus"), json!({ "to": to, "body_md": body }))).await;
    for path in [HOME, away[0].as_str(), away[14].as_str()] {
        for (query, expected) in [("walrus".to_owned(), vec![id]), (word(300), vec![id]), (word(900), vec![])] {
            let answer = ok(&on, &alice, "search_messages", json!({ "project_key": path, "query": query })).await;
            assert_eq!(ids(&answer), expected, "{path} {query}");
        }
    }
}

async fn bodies_are_cut_and_say_so(on: TestStore) {
    let (alice, bob) = two(&on).await;
    write(&on, &alice, "Long", &"é".repeat(30_000)).await;
    write(&on, &alice, "Short", "all of it").await;
    let answer = search(&on, &bob, json!({ "include_body_md": true })).await;
    assert_eq!(
        (&answer["result"][0]["body_md"], &answer["result"][0]["body_truncated"]),
        (&json!("all of it"), &Json::Null)
    );
    let long = &answer["result"][1];
    assert_eq!((long["body_md"].as_str().unwrap().chars().count(), &long["body_truncated"]), (16_384, &json!(true)));
    let plain = search(&on, &bob, json!({})).await;
    assert!(plain["result"][0].get("body_md").is_none());
}

async fn a_message_is_found_as_soon_as_it_is_sent_and_after_merging(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let mut sent = Vec::new();
    for n in 0..40 {
        sent.insert(0, write(&on, &alice, &format!("number {n}"), "kiwi").await);
        assert_eq!(found(&on, &bob, &format!("number {n}")).await, sent[..1]);
    }
    sweep(&on, MergeSearch).await;
    let all = search(&on, &bob, json!({ "query": "kiwi", "limit": 100 })).await;
    assert_eq!(ids(&all), sent);
    assert_eq!(sweep(&on, MergeSearch).await, 0, "there is nothing left to merge");
}

async fn what_is_asked_wrongly_is_refused(on: TestStore) {
    let (alice, _) = two(&on).await;
    for wrong in [
        json!({ "limit": 0 }),
        json!({ "limit": 1_001 }),
        json!({ "offset": -1 }),
        json!({ "offset": 1_001 }),
        json!({ "importance": "vital" }),
        json!({ "ranking": "beauty" }),
        json!({ "date_start": "yesterday" }),
        json!({ "query": "x".repeat(1_025) }),
        json!({ "query": vec!["w"; 33].join(" ") }),
    ] {
        let input = with(json!({ "project_key": HOME }), wrong.clone());
        assert_eq!(refusal(&on, &alice, "search_messages", input).await, Code::InvalidRequest, "{wrong}");
    }
    let cursor = json!({ "project_key": HOME, "cursor": "00" });
    assert_eq!(refusal(&on, &alice, "search_messages", cursor).await, Code::InvalidCursor);
    let nobody = json!({ "project_key": HOME, "sender": "GoldenHawk" });
    assert_eq!(refusal(&on, &alice, "search_messages", nobody).await, Code::NotFound);
    assert_eq!(refusal(&on, &alice, "search_messages", json!({ "project_key": "/no/such" })).await, Code::NotFound);
}

/// The plan of the function that searches, as the role that it runs as. `@@` under row-level security would read every row.
#[tokio::test]
async fn the_search_function_of_postgres_asks_the_index_for_words() {
    let on = stores::open_postgres().await.unwrap();
    let (alice, _) = two(&on).await;
    for n in 0..50 {
        write(&on, &alice, &format!("word{n}"), "many words of all kinds").await;
    }
    let row = &on
        .rows("SELECT prosrc, pg_get_userbyid(proowner), prosecdef::text FROM pg_proc WHERE proname = 'mail_find'")
        .await
        .unwrap()[0];
    assert_eq!((row.text(1).unwrap(), row.text(2).unwrap()), ("waybill_system", "true"));
    let body = row.text(0).unwrap();
    assert!(body.contains("app.tenant_id") && body.contains("party"), "{body}");
    let mut explain = format!("EXPLAIN {body}");
    for (name, value) in [
        ("party::tsquery", "'''1p1z'''::tsquery"),
        ("wanted::tsquery", "'''1p1xword7'''::tsquery"),
        ("< below", "< 1000"),
        (">= since", ">= 0"),
        ("< until", "< 9223372036854775807"),
        ("LIMIT at_most", "LIMIT 20"),
    ] {
        assert!(explain.contains(name), "{name}");
        explain = explain.replace(name, value);
    }
    let plan = on.store.system().run(Explain(stores::leak(&explain))).await.unwrap();
    assert!(plan.contains("mail_search_words"), "{plan}");
}

/// A few rows are read from end to end by any planner, unless it is told not to.
struct Explain(&'static str);

impl Work for Explain {
    type Output = String;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<String> {
        tx.execute("SET LOCAL enable_seqscan = off", &[]).await?;
        let rows = tx.query(self.0, &[]).await?;
        rows.iter().map(|row| row.text(0).map(|line| format!("{line}\n"))).collect()
    }
}

async fn an_agents_own_mail_is_found_by_its_name(on: TestStore) {
    let (alice, bob) = two(&on).await;
    agent(&on, &alice, "RedFox").await;
    policy(&on, &alice, "RedFox", "open").await;
    for n in 0..6 {
        send(&on, &alice, letter(&format!("deploy {n}"))).await;
    }
    send(&on, &bob, with(letter("deploy fox"), json!({ "sender_name": "BlueLake", "to": ["RedFox"] }))).await;
    let search =
        |name: &str, limit: i64| json!({ "project_key": HOME, "query": "deploy", "agent_name": name, "limit": limit });
    let found = ok(&on, &alice, "search_messages", search("RedFox", 2)).await;
    assert_eq!(
        subjects(found["result"].as_array().unwrap()),
        ["deploy fox"],
        "older pages are looked through: {found}"
    );
    let found = ok(&on, &alice, "search_messages", search("GreenCastle", 4)).await;
    assert_eq!(subjects(found["result"].as_array().unwrap()), ["deploy 5", "deploy 4", "deploy 3", "deploy 2"]);
    let rest = with(search("GreenCastle", 4), json!({ "cursor": found["next_cursor"] }));
    let rest = ok(&on, &alice, "search_messages", rest).await;
    assert_eq!(subjects(rest["result"].as_array().unwrap()), ["deploy 1", "deploy 0"]);
    assert_eq!(refusal(&on, &bob, "search_messages", search("GreenCastle", 4)).await, Code::Forbidden);
}
