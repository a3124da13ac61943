//! What is done about acknowledgements that do not come, and about agents that do nothing any more.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_mail::sweeps::{InactiveAgents, OverdueAcks};
use waybill_mail::{AckEscalation, Settings};
use waybill_testkit::stores::TestStore;

use crate::support::*;

waybill_testkit::both! {
    an_overdue_acknowledgement_is_found_once,
    an_overdue_acknowledgement_reserves_the_inbox_for_all_to_see,
    agents_that_do_nothing_are_retired_and_exempt_ones_are_not,
    who_is_brought_back_is_not_retired_again_at_once,
}

const ACK_TTL_S: u64 = 1_800;
const DAY_S: u64 = 86_400;

fn escalating(how: AckEscalation) -> Option<OverdueAcks> {
    OverdueAcks::new(&Settings { ack_escalation: how, ..Settings::default() })
}

async fn overdue(on: &TestStore, how: AckEscalation) -> u64 {
    sweep(on, escalating(how).unwrap()).await
}

fn wanting(subject: &str) -> Json {
    with(letter(subject), json!({ "ack_required": true }))
}

async fn an_overdue_acknowledgement_is_found_once(on: TestStore) {
    assert!(OverdueAcks::new(&Settings::default()).is_none(), "off unless it is wanted");
    let (alice, bob) = two(&on).await;
    send(&on, &alice, letter("No hurry")).await;
    let acknowledged = send(&on, &alice, wanting("Done")).await;
    send(&on, &alice, wanting("Open")).await;
    ok(&on, &bob, "acknowledge_message", message("BlueLake", acknowledged)).await;
    pass(&on, ACK_TTL_S);
    assert_eq!(overdue(&on, AckEscalation::Log).await, 0, "just in time");
    send(&on, &alice, wanting("Young")).await;
    pass(&on, 1);
    assert_eq!(overdue(&on, AckEscalation::Log).await, 1);
    assert_eq!(overdue(&on, AckEscalation::Log).await, 0, "each is told once");
    // To the agent it stays what it is: overdue, until it is acknowledged.
    let late = inbox(&on, &bob, "BlueLake", json!({ "ack_overdue_only": true })).await;
    assert_eq!(subjects(&late), ["Open"]);
    assert_eq!(on.count("SELECT count(*) FROM mail_reservations").await.unwrap(), 0, "only the log is told");
    pass(&on, ACK_TTL_S);
    assert_eq!(overdue(&on, AckEscalation::Log).await, 1, "the one that was young");
}

async fn an_overdue_acknowledgement_reserves_the_inbox_for_all_to_see(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let first = send(&on, &alice, wanting("One")).await;
    send(&on, &alice, wanting("Two")).await;
    pass(&on, ACK_TTL_S + 1);
    assert_eq!(overdue(&on, AckEscalation::FileReservation).await, 2);
    let held = async || {
        let listed = ok(&on, &alice, "list_file_reservations", json!({ "project_key": HOME })).await;
        listed["file_reservations"].as_array().unwrap().clone()
    };
    let reserved = held().await;
    assert_eq!(reserved.len(), 1, "one for all of an agent's: {reserved:?}");
    let shown = reserved[0].to_string();
    assert!(shown.contains("agents/BlueLake/inbox/**") && shown.contains(&format!("message {first} ")), "{shown}");
    assert_eq!(reserved[0]["exclusive"], false, "it is in nobody's way");
    send(&on, &alice, wanting("Three")).await;
    pass(&on, ACK_TTL_S + 1);
    assert_eq!(overdue(&on, AckEscalation::FileReservation).await, 1);
    assert_eq!(held().await.len(), 1, "there is one already");
    pass(&on, 3_600);
    assert_eq!(held().await.len(), 0, "it ends");
    // One that takes nothing any more is still told.
    send(&on, &alice, wanting("Four")).await;
    ok(&on, &bob, "retire_agent", of("BlueLake")).await;
    pass(&on, ACK_TTL_S + 1);
    assert_eq!(overdue(&on, AckEscalation::FileReservation).await, 1);
    assert_eq!(held().await.len(), 0);
}

async fn agents_that_do_nothing_are_retired_and_exempt_ones_are_not(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let exempt = json!({
        "project_key": HOME, "program": "cron", "model": "none", "name": "RedStone", "reaper_exempt": true,
    });
    ok(&on, &bob, "register_agent", exempt).await;
    assert!(InactiveAgents::new(&Settings { agents_inactive_s: 0, ..Settings::default() }).is_none(), "0 is never");
    let retired = async || sweep(&on, InactiveAgents::new(&Settings::default()).unwrap()).await;
    pass(&on, 20 * DAY_S);
    send(&on, &alice, letter("Still here")).await;
    pass(&on, 10 * DAY_S);
    assert_eq!(retired().await, 0, "not a moment too soon");
    pass(&on, 1);
    let before = archive(&on).await.0;
    assert_eq!(retired().await, 1, "BlueLake; GreenCastle has written, RedStone is exempt");
    assert_eq!(archive(&on).await.0, before + 1, "the archive learns it");
    assert_eq!(retired().await, 0);
    // Whoever writes to several is told by name who is gone, and nobody is written to.
    let group = with(letter("x"), json!({ "to": ["RedStone", "BlueLake", "NoBody"] }));
    let error = refused(&on, &alice, "send_message", group).await;
    assert_eq!(error.code(), Code::RecipientNotFound);
    assert_eq!(
        (error.detail("retired"), error.detail("missing")),
        (Some(&json!(["BlueLake"])), Some(&json!(["NoBody"])))
    );
    assert!(error.message().contains("Retired: BlueLake (last active "), "{}", error.message());
    let agents = ok(&on, &alice, "list_agents", json!({ "project_key": HOME })).await;
    assert_eq!(agents["agents"].as_array().unwrap().len(), 2, "{agents}");
    // What it has got is there, and it is back when it registers.
    assert_eq!(subjects(&inbox(&on, &bob, "BlueLake", json!({})).await), ["Still here"]);
    agent(&on, &bob, "BlueLake").await;
    send(&on, &alice, letter("Welcome back")).await;
    assert_eq!(retired().await, 0);
}

async fn who_is_brought_back_is_not_retired_again_at_once(on: TestStore) {
    let (alice, bob) = two(&on).await;
    let retired = async || sweep(&on, InactiveAgents::new(&Settings::default()).unwrap()).await;
    pass(&on, 31 * DAY_S);
    assert_eq!(retired().await, 2);
    let back = ok(&on, &bob, "unretire_agent", of("BlueLake")).await;
    assert!(back.get("retired_ts").is_none(), "{back}");
    assert_eq!(retired().await, 0, "it was brought back just now");
    assert_eq!(ok(&on, &alice, "whois", of("BlueLake")).await, back, "as it was shown");
    pass(&on, 30 * DAY_S);
    assert_eq!(retired().await, 0);
    pass(&on, 1);
    assert_eq!(retired().await, 1, "it has done nothing since");
}
