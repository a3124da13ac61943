use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::SeededEntropy;

use super::*;

const START_US: i64 = 1_700_000_000_000_000;

struct Box_ {
    inbox: Inbox,
    time: ManualSource,
    folder: tempfile::TempDir,
}

async fn open(settings: Settings) -> Box_ {
    let folder = tempfile::tempdir().unwrap();
    let time = ManualSource::at(START_US);
    let inbox = open_in(folder.path(), &time, settings).await.0;
    Box_ { inbox, time, folder }
}

async fn open_in(folder: &Path, time: &ManualSource, settings: Settings) -> (Inbox, Option<PathBuf>) {
    let (clock, entropy) = (Arc::new(Clock::new(time.clone())), Arc::new(SeededEntropy::new(1)) as Arc<dyn Entropy>);
    let (store, aside) = open_store(&folder.join("inbox.db"), &clock, &entropy).await.unwrap();
    (Inbox::new(store, settings), aside)
}

fn message(number: i64, topic: Option<&str>, sender: &str, body: &str) -> Arrived {
    Arrived::Opened(Box::new(NewMessage {
        client_message_id: format!("m{number}"),
        broker_message_id: format!("b{number}"),
        mesh: "acme".to_owned(),
        seq: number,
        topic: topic.map(str::to_owned),
        sender_pubkey: format!("key-of-{sender}"),
        sender_name: sender.to_owned(),
        body: body.as_bytes().to_vec(),
        meta: Some(br#"{"a":1}"#.to_vec()),
        priority: "next",
        mentioned: false,
        reply_to_id: None,
        file: None,
    }))
}

async fn insert(inbox: &Inbox, arrived: Vec<Arrived>, position: Option<i64>) -> Vec<Option<i64>> {
    inbox.insert(Insert { arrived, position, refused: Vec::new() }).await.unwrap().ids
}

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.client_message_id.as_str()).collect()
}

async fn find(inbox: &Inbox, words: &str) -> Vec<Message> {
    inbox.search(words, 10, None).await.unwrap().messages
}

#[tokio::test]
async fn a_repeat_is_no_new_row_and_the_position_never_goes_back() {
    let Box_ { inbox, .. } = open(Settings::default()).await;
    let both = vec![message(1, None, "bob", "one"), message(2, Some("ops"), "bob", "two")];
    assert_eq!(insert(&inbox, both.clone(), Some(2)).await, [Some(1), Some(2)]);
    assert_eq!(insert(&inbox, both, Some(1)).await, [None, None]);
    let again = vec![message(3, None, "bob", "x"), message(3, None, "bob", "x"), message(1, None, "bob", "other body")];
    assert_eq!(insert(&inbox, again, None).await, [Some(3), None, None], "twice in one batch, and once from before");
    assert_eq!(inbox.position().await.unwrap(), 2);
    let page = inbox.page(Query::default()).await.unwrap();
    assert_eq!(ids(&page.messages), ["m1", "m2", "m3"]);
    assert_eq!(page.messages[0].body, "one", "the first one stays");
    assert_eq!(page.next_cursor, None);
}

#[tokio::test]
async fn pages_go_on_where_they_ended_with_every_filter() {
    let Box_ { inbox, .. } = open(Settings::default()).await;
    let arrived = (1..=10).map(|n| message(n, (n % 2 == 0).then_some("ops"), if n < 6 { "bob" } else { "eve" }, "x"));
    insert(&inbox, arrived.collect(), None).await;
    for (topic, from, expected) in [
        (None, None, vec!["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10"]),
        (Some("ops"), None, vec!["m2", "m4", "m6", "m8", "m10"]),
        (None, Some("eve"), vec!["m6", "m7", "m8", "m9", "m10"]),
        (None, Some("key-of-bob"), vec!["m1", "m2", "m3", "m4", "m5"]),
        (Some("ops"), Some("eve"), vec!["m6", "m8", "m10"]),
        (Some("none"), None, vec![]),
    ] {
        let mut found = Vec::new();
        let mut since = None;
        loop {
            let (topic, from) = (topic.map(str::to_owned), from.map(str::to_owned));
            let page = inbox.page(Query { since, topic, from, limit: Some(3) }).await.unwrap();
            assert!(page.messages.len() <= 3);
            found.extend(ids(&page.messages).into_iter().map(str::to_owned));
            let Some(cursor) = page.next_cursor else { break };
            since = Some(Since::parse(&cursor).unwrap());
        }
        assert_eq!(found, expected, "{topic:?} {from:?}");
    }
    let after = inbox.page(Query { since: Some(Since::Id(8)), ..Query::default() }).await.unwrap();
    assert_eq!(ids(&after.messages), ["m9", "m10"]);
}

#[tokio::test]
async fn words_are_found_and_a_message_may_hold_anything() {
    let Box_ { inbox, .. } = open(Settings::default()).await;
    let odd = match message(3, None, "bob", "nul \0 deploy") {
        Arrived::Opened(message) => message,
        Arrived::Sealed { .. } => unreachable!(),
    };
    let bytes = NewMessage { client_message_id: "m4".to_owned(), body: vec![0xff, 0xfe], ..*odd.clone() };
    let arrived = vec![
        message(1, Some("ops"), "bob", "the deploy of production failed"),
        message(2, None, "eve", "lunch?"),
        Arrived::Opened(odd),
        Arrived::Opened(Box::new(bytes)),
    ];
    insert(&inbox, arrived, None).await;
    let found = |query: &'static str| {
        let inbox = inbox.clone();
        async move { find(&inbox, query).await.iter().map(|m| m.client_message_id.clone()).collect::<Vec<_>>() }
    };
    assert_eq!(found("deploy").await, ["m3", "m1"]);
    assert_eq!(found("deploy production").await, ["m1"]);
    assert_eq!(found("prod*").await, ["m1"]);
    assert_eq!(found("eve").await, ["m2"], "a sender's name");
    assert!(found("\" OR NEAR( *").await.is_empty());
    let page = inbox.page(Query { since: Some(Since::Id(2)), ..Query::default() }).await.unwrap();
    assert_eq!(page.messages[0].body, "nul \0 deploy");
    assert_eq!((page.messages[1].body.as_str(), page.messages[1].body_base64.as_deref()), ("", Some("//4=")));
    assert_eq!(page.messages[0].meta.as_ref().unwrap().get(), r#"{"a":1}"#);
}

#[tokio::test]
async fn what_was_found_is_read_on_where_a_page_ended() {
    let Box_ { inbox, .. } = open(Settings::default()).await;
    insert(&inbox, (1..=7).map(|n| message(n, None, "bob", if n == 4 { "other" } else { "word" })).collect(), None)
        .await;
    let (mut found, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = inbox.search("word", 2, cursor.as_deref()).await.unwrap();
        found.extend(page.messages.into_iter().map(|message| message.client_message_id));
        // One that comes meanwhile is newer than what was read already.
        insert(&inbox, vec![message(100 + found.len() as i64, None, "bob", "word")], None).await;
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, ["m7", "m6", "m5", "m3", "m2", "m1"]);
    assert!(inbox.search("other", 2, None).await.unwrap().next_cursor.is_none());
}

#[tokio::test]
async fn what_is_too_old_goes_with_its_words_and_its_id_is_not_given_again() {
    let day = Duration::from_secs(86_400);
    let Box_ { inbox, time, .. } = open(Settings::default()).await;
    insert(&inbox, vec![message(1, None, "bob", "ancient")], None).await;
    time.pass(20 * day);
    insert(&inbox, vec![message(2, None, "bob", "younger")], None).await;
    time.pass(11 * day);
    assert_eq!(inbox.prune().await.unwrap(), Pruned { too_old: 1, over_budget: 0 });
    assert!(find(&inbox, "ancient").await.is_empty());
    assert_eq!(find(&inbox, "younger").await.len(), 1);
    time.pass(31 * day);
    assert_eq!(inbox.prune().await.unwrap().too_old, 1);
    assert_eq!(insert(&inbox, vec![message(3, None, "bob", "new")], None).await, [Some(3)]);
}

#[tokio::test]
async fn beyond_the_budget_the_oldest_go_first() {
    let settings = Settings { bytes_max: 4 << 20, ..Settings::default() };
    let Box_ { inbox, .. } = open(settings).await;
    let body = "word ".repeat(2_000);
    for batch in 0..12 {
        let arrived = (1..=100).map(|n| message(batch * 100 + n, None, "bob", &body)).collect();
        insert(&inbox, arrived, None).await;
    }
    let (before, max) = inbox.bytes().await.unwrap();
    assert!(before > max);
    let pruned = inbox.prune().await.unwrap();
    assert!(pruned.over_budget > 0 && pruned.too_old == 0);
    assert!(inbox.bytes().await.unwrap().0 <= max);
    let left = inbox.page(Query { limit: Some(1_000), ..Query::default() }).await.unwrap().messages;
    let ids: Vec<i64> = left.iter().map(|message| message.id).collect();
    let removed = i64::try_from(pruned.over_budget).unwrap();
    assert!(removed < 1_200, "not all of them had to go");
    assert_eq!(ids, (removed + 1..=1_200).collect::<Vec<_>>());
}

fn sealed(number: i64) -> Arrived {
    Arrived::Sealed {
        client_message_id: format!("m{number}"),
        seq: number,
        delivery: b"{}".to_vec(),
        reason: "epoch_unknown",
    }
}

/// None of them is new, opened or sealed, and nothing is written.
async fn are_repeats(inbox: &Inbox, numbers: std::ops::RangeInclusive<i64>) {
    let opened: Vec<Arrived> = numbers.clone().map(|n| message(n, None, "bob", "again")).collect();
    let count = opened.len();
    let before = inbox.page(Query { limit: Some(1_000), ..Query::default() }).await.unwrap().messages.len();
    assert_eq!(insert(inbox, numbers.map(sealed).collect(), None).await, vec![None; count]);
    assert!(inbox.held(-1, 10).await.unwrap().is_empty(), "held again");
    assert_eq!(insert(inbox, opened, None).await, vec![None; count]);
    assert!(find(inbox, "again").await.is_empty());
    assert_eq!(inbox.page(Query { limit: Some(1_000), ..Query::default() }).await.unwrap().messages.len(), before);
}

#[tokio::test]
async fn what_was_pruned_by_age_is_a_repeat_when_it_comes_again_until_its_id_is_forgotten() {
    let day = Duration::from_secs(86_400);
    let Box_ { inbox, time, folder } = open(Settings::default()).await;
    insert(&inbox, vec![message(1, None, "bob", "one"), message(2, None, "bob", "two")], None).await;
    time.pass(31 * day);
    assert_eq!(inbox.prune().await.unwrap().too_old, 2);
    are_repeats(&inbox, 1..=2).await;
    let store = inbox.store().clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let inbox = open_in(folder.path(), &time, Settings::default()).await.0;
    time.pass(399 * day);
    inbox.prune().await.unwrap();
    are_repeats(&inbox, 1..=2).await;
    time.pass(2 * day);
    inbox.prune().await.unwrap();
    assert_eq!(insert(&inbox, vec![message(1, None, "bob", "one")], None).await, [Some(3)], "forgotten at last");
}

#[tokio::test]
async fn what_was_pruned_for_room_is_a_repeat_and_ids_take_a_part_of_the_room_at_most() {
    let settings = Settings { bytes_max: 1 << 20, ..Settings::default() };
    let Box_ { inbox, .. } = open(settings.clone()).await;
    let body = "word ".repeat(2_000);
    insert(&inbox, (1..=300).map(|n| message(n, None, "bob", &body)).collect(), None).await;
    let removed = i64::try_from(inbox.prune().await.unwrap().over_budget).unwrap();
    assert!(removed > 0);
    are_repeats(&inbox, 1..=removed).await;
    // More ids than a quarter of the file may hold: the oldest are forgotten, and there is room for messages.
    let many = seen::count_max(settings.bytes_max) + 2 * seen::BATCH;
    for batch in 0..=many / 500 {
        let numbers = 1_000 + batch * 500..1_000 + (batch + 1) * 500;
        insert(&inbox, numbers.map(|n| message(n, None, "bob", &body[..1_000])).collect(), None).await;
        inbox.prune().await.unwrap();
    }
    inbox.prune().await.unwrap();
    let left = inbox.page(Query { limit: Some(1_000), ..Query::default() }).await.unwrap().messages.len();
    assert!(left > 0, "messages have most of the file");
    assert!(inbox.bytes().await.unwrap().0 <= settings.bytes_max);
    assert_eq!(insert(&inbox, vec![message(1, None, "bob", "old")], None).await.len(), 1);
    assert_eq!(find(&inbox, "old").await.len(), 1, "the oldest id is not known any more");
}

#[tokio::test]
async fn what_cannot_be_opened_does_not_push_out_what_can_be_read() {
    let settings = Settings { bytes_max: 4 << 20, ..Settings::default() };
    let Box_ { inbox, .. } = open(settings).await;
    insert(&inbox, (1..=50).map(|n| message(n, None, "bob", "read me")).collect(), None).await;
    for batch in 1..=12_i64 {
        let boxes = (0..100).map(|number| Arrived::Sealed {
            client_message_id: format!("s{batch}-{number}"),
            seq: batch * 1_000 + number,
            delivery: vec![7; 10_000],
            reason: "key_unknown",
        });
        insert(&inbox, boxes.collect(), None).await;
    }
    let (before, max) = inbox.bytes().await.unwrap();
    assert!(before > max);
    assert_eq!(inbox.prune().await.unwrap(), Pruned::default(), "no message had to go");
    assert!(inbox.bytes().await.unwrap().0 <= max);
    assert_eq!(inbox.page(Query::default()).await.unwrap().messages.len(), 50);
    let held = inbox.held(-1, 1_000).await.unwrap();
    assert!(held.len() > 50 && held.len() <= 105, "{}: a quarter of the budget", held.len());
    assert_eq!(held.last().unwrap().seq, 12_099, "the newest are left");
}

#[tokio::test]
async fn what_cannot_be_opened_is_held_until_it_can() {
    let Box_ { inbox, .. } = open(Settings::default()).await;
    insert(&inbox, vec![sealed(1), sealed(2), sealed(1)], None).await;
    let held = |after| {
        let inbox = inbox.clone();
        async move { inbox.held(after, 10).await.unwrap().iter().map(|held| held.seq).collect::<Vec<_>>() }
    };
    assert_eq!(held(-1).await, [1, 2]);
    assert_eq!(held(1).await, [2]);
    assert_eq!(insert(&inbox, vec![message(1, None, "bob", "opened")], None).await, [Some(1)]);
    assert_eq!(held(-1).await, [2]);
    insert(&inbox, vec![sealed(1)], None).await;
    assert_eq!(held(-1).await, [2], "one that was opened is not held again");
}

#[tokio::test]
async fn a_damaged_file_is_moved_aside_and_a_new_one_begins() {
    let Box_ { inbox, time, folder } = open(Settings::default()).await;
    insert(&inbox, vec![message(1, None, "bob", "one")], Some(5)).await;
    let store = inbox.store().clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    drop(inbox);
    let path = folder.path().join("inbox.db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..4096].fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    let (inbox, aside) = open_in(folder.path(), &time, Settings::default()).await;
    let aside = aside.unwrap();
    assert!(aside.to_string_lossy().contains("inbox.db.corrupt-"));
    assert_eq!(std::fs::read(aside).unwrap(), bytes, "nothing of it was changed");
    assert_eq!(inbox.position().await.unwrap(), 0, "it is filled from the beginning of history");
    assert!(inbox.page(Query::default()).await.unwrap().messages.is_empty());
}
