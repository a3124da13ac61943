//! Who is working on which files. Names begin with the number of the rule they keep, where they keep one.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_testkit::stores::TestStore;

use crate::support::{
    HOME, agent, archive, call, inbox, letter, number, of, ok, pass, person, project, refusal, refused, send, text,
    together, two, with,
};

waybill_testkit::both! {
    free_paths_are_given_although_others_conflict,
    rule_10_released_twice_is_released_once,
    rule_11_renewal_is_for_what_is_active_and_ones_own_and_never_shortens,
    rule_17_one_agent_may_reserve_twice_and_meets_nobody,
    rule_18_force_takes_only_what_is_stale_and_tells_once,
    rule_22_a_reservation_writes_one_archive_row_and_its_end_none,
    overlap_is_symmetric_and_shared_meets_only_exclusive,
    spellings_of_one_path_meet,
    folders_with_brackets_in_their_names_are_given_once,
    what_is_no_path_is_refused_by_name,
    a_ttl_is_clamped_and_expiry_needs_nobody,
    one_made_under_a_wrong_clock_stops_nobodys_time,
    a_key_makes_a_reservation_once,
    another_principals_agent_is_acted_for_with_its_token_alone,
    a_check_reads_and_tells_ones_own_apart,
    what_is_active_is_bounded,
    an_answer_of_conflicts_has_a_bound,
    fifty_callers_race_for_one_path_and_one_gets_it,
    fifty_callers_race_with_patterns_that_overlap,
    lists_show_what_is_active_or_all_by_pages,
    agents_that_share_files_may_write_to_each_other,
    other_tenants_hold_nothing_here,
}

async fn reserve(on: &TestStore, caller: &Caller, name: &str, further: Json) -> Json {
    ok(on, caller, "file_reservation_paths", with(of(name), further)).await
}

fn paths(list: &Json, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}

async fn free_paths_are_given_although_others_conflict(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let first = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["docs/**"], "reason": "R1" })).await;
    assert_eq!(first["conflicts"], json!([]));
    let second =
        reserve(&on, &bob, "BlueLake", json!({ "paths": ["docs/a.md", "src/api/*.rs", "src/api/*.rs"] })).await;
    assert_eq!(paths(&second["granted"], "path_pattern"), ["src/api/*.rs"]);
    assert_eq!(paths(&second["conflicts"], "path"), ["docs/a.md"]);
    let holder = &second["conflicts"][0]["holders"][0];
    assert_eq!(
        (&holder["agent"], &holder["path_pattern"], &holder["reason"]),
        (&json!("GreenCastle"), &json!("docs/**"), &json!("R1"))
    );
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 2);
}

async fn rule_10_released_twice_is_released_once(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["a", "b", "c/*.rs"] })).await;
    reserve(&on, &bob, "BlueLake", json!({ "paths": ["z"] })).await;
    let by_path =
        ok(&on, &alice, "release_file_reservations", with(of("GreenCastle"), json!({ "paths": ["./a"] }))).await;
    assert_eq!(by_path["released"], 1);
    let id = number(&given["granted"][1], "id");
    let by_id = with(of("GreenCastle"), json!({ "file_reservation_ids": [id, 999_999], "paths": null }));
    let first = ok(&on, &alice, "release_file_reservations", by_id.clone()).await;
    assert_eq!(first["released"], 1);
    pass(&on, 5);
    assert_eq!(ok(&on, &alice, "release_file_reservations", by_id).await["released"], 0);
    let sql = format!("SELECT released_at FROM mail_reservations WHERE reservation = {id}");
    let stored = on.rows(&sql).await.unwrap()[0].time(0).unwrap();
    assert_eq!(json!(stored), first["released_at"], "the time of the first release stays");
    assert_eq!(ok(&on, &alice, "release_file_reservations", of("GreenCastle")).await["released"], 1);
    assert_eq!(ok(&on, &alice, "release_file_reservations", of("GreenCastle")).await["released"], 0);
    let left = ok(&on, &alice, "list_file_reservations", json!({ "project_key": HOME })).await;
    assert_eq!(paths(&left["file_reservations"], "agent"), ["BlueLake"]);
    // Another's is not released by its id.
    let others = number(&left["file_reservations"][0], "id");
    let input = with(of("GreenCastle"), json!({ "file_reservation_ids": [others] }));
    assert_eq!(ok(&on, &alice, "release_file_reservations", input).await["released"], 0);
}

async fn rule_11_renewal_is_for_what_is_active_and_ones_own_and_never_shortens(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["a"], "ttl_seconds": 100 })).await;
    reserve(&on, &alice, "GreenCastle", json!({ "paths": ["b"], "ttl_seconds": 3600 })).await;
    reserve(&on, &alice, "GreenCastle", json!({ "paths": ["year"], "ttl_seconds": 400 * 86_400 })).await;
    reserve(&on, &bob, "BlueLake", json!({ "paths": ["z"] })).await;
    ok(&on, &alice, "release_file_reservations", with(of("GreenCastle"), json!({ "paths": ["b"] }))).await;
    let renewed =
        ok(&on, &alice, "renew_file_reservations", with(of("GreenCastle"), json!({ "extend_seconds": 1 }))).await;
    assert_eq!(renewed["renewed"], 2, "neither what was released nor another's");
    assert_eq!(renewed["file_reservations"][0]["old_expires_ts"], given["granted"][0]["expires_ts"]);
    let year = &renewed["file_reservations"][1];
    assert!(year["new_expires_ts"].as_str() >= year["old_expires_ts"].as_str(), "{year}");
    // 60 seconds were added, not one: 100 + 60.
    pass(&on, 150);
    let again = with(of("GreenCastle"), json!({ "extend_seconds": 60, "paths": ["a"] }));
    assert_eq!(ok(&on, &alice, "renew_file_reservations", again.clone()).await["renewed"], 1);
    pass(&on, 100);
    assert_eq!(ok(&on, &alice, "renew_file_reservations", again).await["renewed"], 0, "it has expired");
}

async fn rule_17_one_agent_may_reserve_twice_and_meets_nobody(on: TestStore) {
    let (alice, _) = two(&on).await;
    for round in 1..=2 {
        let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["src/**", "src/a.rs"] })).await;
        assert_eq!((given["granted"].as_array().unwrap().len(), &given["conflicts"]), (2, &json!([])));
        assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 2 * round);
    }
}

async fn rule_18_force_takes_only_what_is_stale_and_tells_once(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["a"], "ttl_seconds": 86_400 })).await;
    let id = number(&given["granted"][0], "id");
    let force = with(of("BlueLake"), json!({ "file_reservation_id": id, "note": "Sorry." }));
    let error = refused(&on, &bob, "force_release_file_reservation", force.clone()).await;
    assert_eq!(error.code(), Code::ReservationActive);
    assert!(error.message().contains("GreenCastle") && error.detail("reasons").is_some(), "{error}");
    // Inactive for long enough, and yet it has written.
    pass(&on, 1_790);
    send(&on, &alice, letter("still here")).await;
    pass(&on, 20);
    assert_eq!(refusal(&on, &bob, "force_release_file_reservation", force.clone()).await, Code::ReservationActive);
    pass(&on, 1_900);
    let before = inbox(&on, &alice, "GreenCastle", json!({})).await.len();
    let forced = ok(&on, &bob, "force_release_file_reservation", force.clone()).await;
    assert_eq!((&forced["released"], &forced["reservation"]["agent"]), (&json!(true), &json!("GreenCastle")));
    let told = inbox(&on, &alice, "GreenCastle", json!({ "include_bodies": true })).await;
    assert_eq!(told.len(), before + 1);
    assert!(told[0]["body_md"].as_str().unwrap().ends_with("Sorry."), "{}", told[0]);
    let again = ok(&on, &bob, "force_release_file_reservation", force).await;
    assert_eq!((&again["released"], &again["released_at"]), (&json!(false), &forced["released_at"]));
    assert_eq!(inbox(&on, &alice, "GreenCastle", json!({})).await.len(), before + 1, "told once");
    let missing = with(of("BlueLake"), json!({ "file_reservation_id": 999_999 }));
    assert_eq!(refusal(&on, &bob, "force_release_file_reservation", missing).await, Code::NotFound);
    // What has expired may be taken from anybody at once, and silently.
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["b"], "ttl_seconds": 60 })).await;
    pass(&on, 61);
    let id = number(&given["granted"][0], "id");
    let silent = with(of("BlueLake"), json!({ "file_reservation_id": id, "notify_previous": false }));
    let forced = ok(&on, &bob, "force_release_file_reservation", silent).await;
    assert_eq!((&forced["released"], &forced["notice_id"]), (&json!(true), &Json::Null));
}

async fn rule_22_a_reservation_writes_one_archive_row_and_its_end_none(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let (rows, changes) = archive(&on).await;
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["a", "b", "c"], "ttl_seconds": 60 })).await;
    assert_eq!(archive(&on).await, (rows + 3, changes));
    let kinds = on.count("SELECT count(*) FROM mail_archive_rows WHERE kind = 'reservation'").await.unwrap();
    assert_eq!(kinds, 3);
    ok(&on, &alice, "renew_file_reservations", with(of("GreenCastle"), json!({ "paths": ["a"] }))).await;
    ok(&on, &alice, "release_file_reservations", with(of("GreenCastle"), json!({ "paths": ["b"] }))).await;
    pass(&on, 61);
    let id = number(&given["granted"][2], "id");
    let force = with(of("BlueLake"), json!({ "file_reservation_id": id, "notify_previous": false }));
    ok(&on, &bob, "force_release_file_reservation", force).await;
    // The fourth is that of whoever forced it: when it was active last has changed.
    assert_eq!(archive(&on).await, (rows + 3, changes + 4), "state files are derived from changes");
}

async fn overlap_is_symmetric_and_shared_meets_only_exclusive(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for (here, there) in [("src/*.rs", "src/a.rs"), ("src/a*", "src/*b"), ("lib", "lib/x/y.rs"), ("**/deep.rs", "q/**")]
    {
        for (one, other) in [(here, there), (there, here)] {
            for (mine, theirs, conflicts) in [(true, true, 1), (true, false, 1), (false, true, 1), (false, false, 0)] {
                reserve(&on, &alice, "GreenCastle", json!({ "paths": [one], "exclusive": mine })).await;
                let asked = reserve(&on, &bob, "BlueLake", json!({ "paths": [other], "exclusive": theirs })).await;
                assert_eq!(asked["conflicts"].as_array().unwrap().len(), conflicts, "{one} {mine} {other} {theirs}");
                for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
                    ok(&on, caller, "release_file_reservations", of(name)).await;
                }
            }
        }
    }
}

async fn spellings_of_one_path_meet(on: TestStore) {
    let (alice, bob) = two(&on).await;
    reserve(&on, &alice, "GreenCastle", json!({ "paths": ["src\\api\\.\\a.rs"] })).await;
    for spelled in ["src/api/a.rs", "./src//api/a.rs", "src/api/a.rs/"] {
        let asked = reserve(&on, &bob, "BlueLake", json!({ "paths": [spelled] })).await;
        assert_eq!(paths(&asked["conflicts"], "path"), ["src/api/a.rs"], "{spelled}");
    }
    let asked = reserve(&on, &bob, "BlueLake", json!({ "paths": ["src/api/A.rs"] })).await;
    assert_eq!(asked["conflicts"], json!([]), "case matters");
}

async fn folders_with_brackets_in_their_names_are_given_once(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let all = [("app/[slug]", "app/[slug]/page.tsx"), ("app/[[...all]]/page.tsx", "app/[[...all]]")];
    for (one, other) in all.into_iter().flat_map(|(one, other)| [(one, other), (other, one)]) {
        let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": [one] })).await;
        assert_eq!(paths(&given["granted"], "path_pattern"), [one]);
        let refused = reserve(&on, &bob, "BlueLake", json!({ "paths": [other] })).await;
        assert_eq!(paths(&refused["conflicts"], "path"), [other], "beside {one}");
        ok(&on, &alice, "release_file_reservations", of("GreenCastle")).await;
    }
}

async fn what_is_no_path_is_refused_by_name(on: TestStore) {
    let (alice, _) = two(&on).await;
    let many: Vec<String> = (0..201).map(|n| format!("f{n}")).collect();
    for (given, code) in [
        (json!([]), Code::EmptyPaths),
        (json!(many), Code::TooManyPaths),
        (json!(["ok", "/etc/passwd"]), Code::SuspiciousPattern),
        (json!(["**"]), Code::SuspiciousPattern),
        (json!(["**/*"]), Code::SuspiciousPattern),
        (json!(["*"]), Code::SuspiciousPattern),
        (json!(["a/../../b"]), Code::SuspiciousPattern),
        (json!(["C:\\x"]), Code::SuspiciousPattern),
        (json!(["a[b"]), Code::InvalidRequest),
        (json!(["{a,b"]), Code::InvalidRequest),
        (json!([" "]), Code::InvalidRequest),
        (json!(["a\u{0}b"]), Code::InvalidRequest),
    ] {
        for tool in ["file_reservation_paths", "check_file_reservation_conflicts"] {
            let input = with(of("GreenCastle"), json!({ "paths": given }));
            assert_eq!(refusal(&on, &alice, tool, input).await, code, "{tool} {given}");
        }
    }
    let reason = with(of("GreenCastle"), json!({ "paths": ["a"], "reason": "x".repeat(1_001) }));
    assert_eq!(refusal(&on, &alice, "file_reservation_paths", reason).await, Code::InvalidRequest);
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 0, "nothing half-written");
    let nobody = with(of("GoldenHawk"), json!({ "paths": ["a"] }));
    assert_eq!(refusal(&on, &alice, "file_reservation_paths", nobody).await, Code::NotFound);
}

async fn a_ttl_is_clamped_and_expiry_needs_nobody(on: TestStore) {
    let (alice, bob) = two(&on).await;
    reserve(&on, &alice, "GreenCastle", json!({ "paths": ["a"], "ttl_seconds": 1 })).await;
    let asked = |expected: usize| {
        let (on, bob) = (&on, &bob);
        async move {
            let found =
                ok(on, bob, "check_file_reservation_conflicts", with(of("BlueLake"), json!({ "paths": ["a"] }))).await;
            assert_eq!(found["conflicts"].as_array().unwrap().len(), expected);
            assert_eq!(found["clear"], expected == 0);
        }
    };
    pass(&on, 59);
    asked(1).await;
    // A clock that never stands still has gone on by a little in between.
    pass(&on, 2);
    asked(0).await;
    let asked = reserve(&on, &bob, "BlueLake", json!({ "paths": ["a"] })).await;
    assert_eq!(asked["granted"].as_array().unwrap().len(), 1);
}

async fn one_made_under_a_wrong_clock_stops_nobodys_time(on: TestStore) {
    let (alice, bob) = two(&on).await;
    for (ahead_us, stops) in [(30_000_000_i64, true), (86_400_000_000, false)] {
        let first = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["docs"] })).await;
        let id = number(&first["granted"][0], "id");
        // As if the clock had been ahead for that moment.
        let moved = format!("created_at = created_at + {ahead_us}, expires_at = expires_at + {ahead_us}");
        on.write(&format!("UPDATE mail_reservations SET {moved} WHERE reservation = {id}")).await.unwrap();
        let wanted = json!({ "paths": ["src"], "ttl_seconds": 60 });
        reserve(&on, &bob, "BlueLake", wanted).await;
        pass(&on, 61);
        let taken = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["src"] })).await;
        assert_eq!(taken["granted"] == json!([]), stops, "a lease of a minute, {ahead_us}: {taken}");
        // Whoever has just done something is at work.
        if !stops {
            let longer = reserve(&on, &bob, "BlueLake", json!({ "paths": ["tests"] })).await;
            let force = with(of("GreenCastle"), json!({ "file_reservation_id": longer["granted"][0]["id"] }));
            assert_eq!(refusal(&on, &alice, "force_release_file_reservation", force).await, Code::ReservationActive);
        }
        for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
            ok(&on, caller, "release_file_reservations", of(name)).await;
        }
    }
}

async fn a_key_makes_a_reservation_once(on: TestStore) {
    let (alice, bob) = two(&on).await;
    reserve(&on, &bob, "BlueLake", json!({ "paths": ["b"] })).await;
    let input = with(of("GreenCastle"), json!({ "paths": ["a", "b"], "idempotency_key": "k1" }));
    let first = call(&on, &alice, "file_reservation_paths", input.clone()).await;
    let spelled =
        with(of("greencastle"), json!({ "paths": ["./a", "b//"], "exclusive": true, "idempotency_key": "k1" }));
    let second = call(&on, &alice, "file_reservation_paths", spelled).await;
    assert!(!first.replay && second.replay);
    assert_eq!(first.json, second.json);
    let other = with(input, json!({ "paths": ["c"] }));
    assert_eq!(refusal(&on, &alice, "file_reservation_paths", other).await, Code::IdempotencyKeyConflict);
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 2);
}

async fn another_principals_agent_is_acted_for_with_its_token_alone(on: TestStore) {
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    let token = agent(&on, &alice, "GreenCastle").await["registration_token"].clone();
    let input = with(of("GreenCastle"), json!({ "paths": ["a"] }));
    for tool in ["file_reservation_paths", "release_file_reservations", "renew_file_reservations"] {
        assert_eq!(refusal(&on, &bob, tool, input.clone()).await, Code::Forbidden, "{tool}");
        let wrong = with(input.clone(), json!({ "registration_token": "no" }));
        assert_eq!(refusal(&on, &bob, tool, wrong).await, Code::SenderTokenMismatch, "{tool}");
        ok(&on, &bob, tool, with(input.clone(), json!({ "registration_token": token }))).await;
        ok(&on, &on.admin, tool, input.clone()).await;
    }
}

async fn a_check_reads_and_tells_ones_own_apart(on: TestStore) {
    let (alice, bob) = two(&on).await;
    reserve(&on, &alice, "GreenCastle", json!({ "paths": ["src/**"] })).await;
    reserve(&on, &bob, "BlueLake", json!({ "paths": ["docs"], "exclusive": false })).await;
    let input = with(of("GreenCastle"), json!({ "paths": ["src/a.rs", "docs/x", "free"] }));
    let checked = ok(&on, &alice, "check_file_reservation_conflicts", input.clone()).await;
    assert_eq!((paths(&checked["conflicts"], "path"), &checked["clear"]), (vec!["docs/x".to_owned()], &json!(false)));
    assert_eq!(paths(&checked["own"], "path"), ["src/a.rs"]);
    let shared = ok(&on, &alice, "check_file_reservation_conflicts", with(input, json!({ "exclusive": false }))).await;
    assert_eq!(shared["clear"], true, "shared with shared");
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 2);
}

async fn what_is_active_is_bounded(on: TestStore) {
    let (alice, _) = two(&on).await;
    let some = |from: usize, to: usize| -> Vec<String> { (from..to).map(|n| format!("d{n}/f")).collect() };
    for from in [0, 200] {
        reserve(&on, &alice, "GreenCastle", json!({ "paths": some(from, from + 200), "ttl_seconds": 60 })).await;
    }
    let more = with(of("GreenCastle"), json!({ "paths": some(400, 501) }));
    let error = refused(&on, &alice, "file_reservation_paths", more.clone()).await;
    assert_eq!(error.code(), Code::TooManyReservations);
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 400, "nothing half-written");
    pass(&on, 61);
    ok(&on, &alice, "file_reservation_paths", more).await;
}

async fn race(on: TestStore, pattern: impl Fn(usize) -> String) {
    const CALLERS: usize = 50;
    let mut calls = Vec::new();
    for n in 0..CALLERS {
        let caller = person(&on, &format!("p{n}"));
        project(&on, &caller, HOME).await;
        let registered = json!({ "project_key": HOME, "program": "p", "model": "m" });
        let name = text(&ok(&on, &caller, "register_agent", registered).await, "name");
        calls.push((caller, "file_reservation_paths", with(of(&name), json!({ "paths": [pattern(n)] }))));
    }
    let on = Arc::new(on);
    let answers = together(&on, calls).await;
    let granted = |answer: &waybill_kernel::Result<Json>| match answer {
        Ok(answer) => answer["granted"].as_array().unwrap().len(),
        Err(error) => panic!("{error} ({:?})", error.cause()),
    };
    assert_eq!(answers.iter().map(granted).sum::<usize>(), 1, "{answers:?}");
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 1);
}

async fn an_answer_of_conflicts_has_a_bound(on: TestStore) {
    let (alice, bob) = two(&on).await;
    // Every one of them stands in the way of every path.
    let deep = |n: i32| format!("a/{}{n}/**/x", "d".repeat(380));
    let held: Vec<String> = (0..20).map(|n| format!("{{{},a/**}}", deep(n))).collect();
    let reason = "r".repeat(1_000);
    let wanted = json!({ "paths": held, "exclusive": false, "reason": reason });
    assert_eq!(reserve(&on, &alice, "GreenCastle", wanted).await["granted"].as_array().unwrap().len(), 20);
    let many: Vec<String> = (0..200).map(|n| format!("a/{}{n}", "p".repeat(300))).collect();
    let answer = reserve(&on, &bob, "BlueLake", json!({ "paths": many, "idempotency_key": "k" })).await;
    let conflicts = answer["conflicts"].as_array().unwrap();
    let holders = |at: usize| conflicts[at]["holders"].as_array().unwrap().len();
    assert_eq!((conflicts.len(), holders(0), holders(199)), (200, 10, 1));
    assert_eq!(text(&conflicts[0]["holders"][0], "reason").len(), 200);
    assert!(answer.to_string().len() < 1 << 20, "{}", answer.to_string().len());
}

async fn fifty_callers_race_for_one_path_and_one_gets_it(on: TestStore) {
    race(on, |_| "src/main.rs".to_owned()).await;
}

async fn fifty_callers_race_with_patterns_that_overlap(on: TestStore) {
    race(on, |n| if n % 2 == 0 { "src/**/a*".to_owned() } else { format!("**/{}*", "a".repeat(1 + n % 7)) }).await;
}

async fn lists_show_what_is_active_or_all_by_pages(on: TestStore) {
    let (alice, _) = two(&on).await;
    for n in 0..5 {
        reserve(&on, &alice, "GreenCastle", json!({ "paths": [format!("f{n}")] })).await;
    }
    ok(&on, &alice, "release_file_reservations", with(of("GreenCastle"), json!({ "paths": ["f1", "f3"] }))).await;
    for (active_only, expected) in [(true, vec!["f4", "f2", "f0"]), (false, vec!["f4", "f3", "f2", "f1", "f0"])] {
        let (mut seen, mut cursor) = (Vec::new(), Json::Null);
        loop {
            let input = json!({ "project_key": HOME, "active_only": active_only, "limit": 2, "cursor": cursor });
            let page = ok(&on, &alice, "list_file_reservations", input).await;
            seen.extend(paths(&page["file_reservations"], "path_pattern"));
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(seen, expected);
    }
    // Only what stops somebody: the shared ones take no room of a page.
    for n in 0..4 {
        reserve(&on, &alice, "GreenCastle", json!({ "paths": [format!("s{n}")], "exclusive": false })).await;
    }
    let exclusive = json!({ "project_key": HOME, "exclusive_only": true, "limit": 2 });
    let page = ok(&on, &alice, "list_file_reservations", exclusive.clone()).await;
    assert_eq!(paths(&page["file_reservations"], "path_pattern"), ["f4", "f2"]);
    let next = with(exclusive.clone(), json!({ "cursor": page["next_cursor"] }));
    let last = ok(&on, &alice, "list_file_reservations", next.clone()).await;
    assert_eq!((paths(&last["file_reservations"], "path_pattern"), last.get("next_cursor")), (vec!["f0".into()], None));
    let other = with(next, json!({ "exclusive_only": false }));
    assert_eq!(refusal(&on, &alice, "list_file_reservations", other).await, Code::InvalidCursor);
    let over = with(exclusive, json!({ "active_only": false }));
    assert_eq!(refusal(&on, &alice, "list_file_reservations", over).await, Code::InvalidRequest);
    for limit in [0, 1_001] {
        let input = json!({ "project_key": HOME, "limit": limit });
        assert_eq!(refusal(&on, &alice, "list_file_reservations", input).await, Code::InvalidRequest);
    }
}

async fn agents_that_share_files_may_write_to_each_other(on: TestStore) {
    let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
    agent(&on, &alice, "GreenCastle").await;
    agent(&on, &bob, "BlueLake").await;
    assert_eq!(refusal(&on, &alice, "send_message", letter("no")).await, Code::ContactRequired);
    let shared = |paths: Json| json!({ "paths": paths, "exclusive": false });
    reserve(&on, &alice, "GreenCastle", shared(json!(["src/**"]))).await;
    reserve(&on, &bob, "BlueLake", shared(json!(["**/*.rs"]))).await;
    assert_eq!(
        refusal(&on, &alice, "send_message", letter("no")).await,
        Code::ContactRequired,
        "two patterns prove nothing"
    );
    reserve(&on, &bob, "BlueLake", shared(json!(["src/a.rs"]))).await;
    send(&on, &alice, letter("yes")).await;
}

async fn other_tenants_hold_nothing_here(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let theirs = on.tenant("other").await.unwrap();
    agent(&on, &theirs, "GreenCastle").await;
    reserve(&on, &theirs, "GreenCastle", json!({ "paths": ["src"] })).await;
    let given = reserve(&on, &alice, "GreenCastle", json!({ "paths": ["src"] })).await;
    assert_eq!(given["conflicts"], json!([]));
    let met = reserve(&on, &bob, "BlueLake", json!({ "paths": ["src"] })).await;
    assert_eq!(met["conflicts"][0]["holders"].as_array().unwrap().len(), 1);
}
