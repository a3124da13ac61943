//! The inbox as local programs read it.

use waybill_daemon::inbox::{Arrived, Insert, NewMessage};

use crate::support::{Plan, Running, start};

async fn arrive(daemon: &Running, count: i64) {
    let arrived = (1..=count).map(|number| {
        Arrived::Opened(Box::new(NewMessage {
            client_message_id: format!("in-{number}"),
            broker_message_id: format!("b-{number}"),
            mesh: "acme".to_owned(),
            seq: number,
            topic: None,
            sender_pubkey: "ab".repeat(32),
            sender_name: "bob".to_owned(),
            body: b"two words".to_vec(),
            meta: None,
            priority: "next",
            mentioned: false,
            reply_to_id: None,
            file: None,
        }))
    });
    let insert = Insert { arrived: arrived.collect(), ..Insert::default() };
    daemon.handle.link().parts().inbox.insert(insert).await.unwrap();
}

/// From one link to the next, until an answer has none: the ids, and how many answers there were.
async fn read_on(daemon: &Running, target: &str) -> (Vec<i64>, usize) {
    let (mut ids, mut answers, mut next) = (Vec::new(), 0, Some(target.to_owned()));
    while let Some(target) = next {
        let answer = daemon.get(&target).await;
        let page = answer.expect(200);
        ids.extend(page["messages"].as_array().unwrap().iter().map(|message| message["id"].as_i64().unwrap()));
        answers += 1;
        let link = answer.header("link").map(|link| link.strip_suffix(">; rel=\"next\"").unwrap());
        next = link.map(|link| link.trim_start_matches('<').to_owned());
        assert_eq!(next.is_some(), page["next_cursor"].is_string());
    }
    (ids, answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_or_a_search_that_is_cut_says_where_the_rest_is() {
    let daemon = start(Plan { config: "[ipc]\nanswer_bytes_max = 2000\n", ..Plan::default() }).await;
    arrive(&daemon, 23).await;
    let ascending: Vec<i64> = (1..=23).collect();
    let descending: Vec<i64> = (1..=23).rev().collect();
    for (target, expected) in [
        ("/v1/inbox", &ascending),
        ("/v1/inbox?limit=4", &ascending),
        ("/v1/inbox/search?q=two%20wor*", &descending),
        ("/v1/inbox/search?q=two+words&limit=4", &descending),
    ] {
        let (ids, answers) = read_on(&daemon, target).await;
        assert_eq!(&ids, expected, "{target}");
        assert!(answers > 2, "{target} came in {answers}");
    }
    let (ids, answers) = read_on(&daemon, "/v1/inbox/search?q=absent").await;
    assert_eq!((ids.len(), answers), (0, 1));
    let other = "/v1/inbox/search?q=two&cursor=00";
    assert_eq!(daemon.get(other).await.status, 400);
    daemon.stop().await;
}
