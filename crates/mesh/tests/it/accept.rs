//! The phases of accepting: what a message costs, and what is left of one that was refused.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Barrier;
use waybill_kernel::{Code, Result};
use waybill_mesh::limiter::{Attempt, InProcess, Verdict};
use waybill_mesh::ops::members::RevokeMember;
use waybill_mesh::ops::messages::{AcceptLooked, LOOKS_MAX, look_together};
use waybill_mesh::{Limiter, Limits, Settings};
use waybill_mesh_protocol::{Destination, DestinationKind, Envelope};
use waybill_testkit::stores::{Chosen, TestStore, readable};

use crate::support::{
    accept, call, create_topic, dm, join, ok, pass, plain_mesh, post, refusal, rows, send, sent, subscribe,
};

mod with_two_units {
    use super::*;

    waybill_testkit::both! { waybill_mesh::Settings { sends_per_window: 2, ..waybill_mesh::Settings::default() } =>
        a_committed_id_retried_in_a_saturated_window_is_a_duplicate_and_the_budget_is_unchanged,
        a_denied_message_costs_nothing_and_is_taken_in_the_next_window,
        what_is_refused_in_b2_has_used_its_unit,
    }
}

mod at_once {
    use super::*;

    waybill_testkit::both! { crate::accept::in_pairs() =>
        two_first_sends_of_one_id_past_b0_cost_one_unit_and_make_one_message,
        of_two_unlike_sends_of_one_id_past_b0_one_is_refused,
    }
}

mod usual {
    use super::*;

    waybill_testkit::both! {
        what_fails_in_b2_leaves_no_id_and_the_same_id_then_succeeds,
        the_same_id_from_another_sender_is_a_conflict_that_shows_nothing,
        another_message_under_the_same_id_is_a_conflict,
        what_is_refused_in_b1_leaves_nothing,
        b0_answers_whatever_has_become_of_the_sender,
        all_that_a_message_consists_of_is_written_at_once,
        messages_that_were_looked_at_together_are_accepted_as_each_alone,
    }
}

async fn a_committed_id_retried_in_a_saturated_window_is_a_duplicate_and_the_budget_is_unchanged(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let first = sent(&on, &alice, "a", dm(&bob, "one")).await;
    for _ in 0..5 {
        let (again, replay) = send(&on, &alice, "a", dm(&bob, "one")).await.map_err(readable).unwrap();
        assert!(again.duplicate && replay && again.history_available == Some(true));
        assert_eq!(
            (again.broker_message_id, again.history_id),
            (first.broker_message_id, first.history_id),
            "another message is answered"
        );
        assert!(again.first_seen_at.is_some());
    }
    // The retries have left the second unit where it was.
    sent(&on, &alice, "b", dm(&bob, "two")).await;
    assert_eq!(refusal(&on, &alice, "c", dm(&bob, "three")).await.code(), Code::RateLimitExceeded);
    // The window is full, and what was accepted is still answered.
    let (again, _) = send(&on, &alice, "a", dm(&bob, "one")).await.map_err(readable).unwrap();
    assert!(again.duplicate);
    assert_eq!(rows(&on).await, [2, 2, 2, 2, 0]);
}

async fn a_denied_message_costs_nothing_and_is_taken_in_the_next_window(on: TestStore) {
    let alice = plain_mesh(&on).await;
    for id in ["a", "b"] {
        sent(&on, &alice, id, dm(&alice, id)).await;
    }
    for _ in 0..3 {
        let error = refusal(&on, &alice, "c", dm(&alice, "c")).await;
        assert_eq!(error.code(), Code::RateLimitExceeded);
        let seconds = error.detail("retry_after").and_then(serde_json::Value::as_u64).unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    assert_eq!(rows(&on).await, [2, 2, 2, 2, 0]);
    pass(&on, 60);
    sent(&on, &alice, "c", dm(&alice, "c")).await;
    sent(&on, &alice, "d", dm(&alice, "d")).await;
}

async fn what_is_refused_in_b2_has_used_its_unit(on: TestStore) {
    let alice = plain_mesh(&on).await;
    for _ in 0..3 {
        assert_eq!(refusal(&on, &alice, "a", post("nowhere", "x")).await.code(), Code::TopicUnknown);
    }
    // Three attempts with one id are one unit; the other is left.
    sent(&on, &alice, "b", dm(&alice, "b")).await;
    assert_eq!(refusal(&on, &alice, "c", dm(&alice, "c")).await.code(), Code::RateLimitExceeded);
    // The id that has its unit may still succeed.
    sent(&on, &alice, "a", dm(&alice, "a")).await;
}

/// Lets attempts whose ids begin with `race` through in pairs: when it answers, both have looked for the id and found nothing.
struct InPairs {
    inner: InProcess,
    pair: Barrier,
}

impl Limiter for InPairs {
    fn consume<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            if attempt.client_message_id.starts_with("race") {
                self.pair.wait().await;
            }
            self.inner.consume(attempt).await
        })
    }
}

/// With one unit per window.
fn in_pairs() -> Chosen {
    let limiter = InPairs { inner: InProcess::default(), pair: Barrier::new(2) };
    Chosen {
        mesh: Settings { sends_per_window: 1, ..Settings::default() },
        mesh_limits: Limits(Arc::new(limiter)),
        ..Chosen::default()
    }
}

async fn two_first_sends_of_one_id_past_b0_cost_one_unit_and_make_one_message(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let one = || send(&on, &alice, "race", dm(&alice, "same"));
    let (first, second) = tokio::join!(one(), one());
    let answers = [first.map_err(readable).unwrap().0, second.map_err(readable).unwrap().0];
    assert_eq!(answers.iter().filter(|answer| answer.duplicate).count(), 1, "{answers:?}");
    assert_eq!(answers[0].broker_message_id, answers[1].broker_message_id);
    assert_eq!(answers[0].history_id, answers[1].history_id);
    assert_eq!(rows(&on).await, [1, 1, 1, 1, 0]);
    // There was one unit, both had it, and nobody else has any.
    assert_eq!(refusal(&on, &alice, "another", dm(&alice, "x")).await.code(), Code::RateLimitExceeded);
}

async fn of_two_unlike_sends_of_one_id_past_b0_one_is_refused(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (first, second) =
        tokio::join!(send(&on, &alice, "race", dm(&alice, "one")), send(&on, &alice, "race", dm(&alice, "two")));
    let outcomes = [first, second].map(|outcome| outcome.map(|(accepted, _)| accepted.duplicate).map_err(|e| e.code()));
    assert!(outcomes.contains(&Ok(false)) && outcomes.contains(&Err(Code::IdempotencyKeyReused)), "{outcomes:?}");
    assert_eq!(rows(&on).await, [1, 1, 1, 1, 0]);
}

async fn what_fails_in_b2_leaves_no_id_and_the_same_id_then_succeeds(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    assert_eq!(refusal(&on, &bob, "a", post("jobs", "x")).await.code(), Code::TopicUnknown);
    create_topic(&on, &alice, "jobs").await;
    assert_eq!(refusal(&on, &bob, "a", post("jobs", "x")).await.code(), Code::NotSubscribed);
    let stranger = waybill_mesh_protocol::Identity::generate(&waybill_kernel::entropy::OsEntropy);
    let nobody = Envelope::new(Destination::dm(&stranger.public_key()), b"x".to_vec());
    assert_eq!(refusal(&on, &bob, "a", nobody).await.code(), Code::MemberUnknown);
    assert_eq!(rows(&on).await, [0; 5], "something is left of what was refused");
    subscribe(&on, &bob, "jobs").await;
    sent(&on, &bob, "a", post("jobs", "x")).await;
    assert_eq!(rows(&on).await, [1, 1, 1, 1, 0]);
}

async fn the_same_id_from_another_sender_is_a_conflict_that_shows_nothing(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let original = sent(&on, &alice, "a", dm(&alice, "x")).await;
    // The very same message, but for who sends it.
    let error = refusal(&on, &bob, "a", dm(&alice, "x")).await;
    let shown = error.to_json();
    assert_eq!(
        (error.code(), &shown["conflict"]),
        (Code::IdempotencyKeyReused, &json!("request_fingerprint_mismatch"))
    );
    let text = shown.to_string();
    let fingerprint = dm(&alice, "x").fingerprint().unwrap().prefix();
    for hidden in [original.broker_message_id.to_string(), original.history_id.to_string(), fingerprint] {
        assert!(!text.contains(&hidden), "{text}");
    }
    assert_eq!(rows(&on).await, [1, 1, 1, 1, 0]);
}

async fn another_message_under_the_same_id_is_a_conflict(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let first = dm(&alice, "x");
    sent(&on, &alice, "a", first.clone()).await;
    let mut reply = first.clone();
    reply.reply_to = Some("z".parse().unwrap());
    for other in [dm(&alice, "y"), reply] {
        let error = refusal(&on, &alice, "a", other).await;
        assert_eq!(error.code(), Code::IdempotencyKeyReused);
        let prefix = error.detail("broker_fingerprint_prefix").cloned();
        assert_eq!(prefix, Some(json!(first.fingerprint().unwrap().prefix())));
        assert_eq!(error.detail("client_message_id"), Some(&json!("a")));
    }
    // Mentions are no part of the fingerprint.
    let mut mentioning = first;
    mentioning.mentions = vec![alice.key()];
    assert!(send(&on, &alice, "a", mentioning).await.map_err(readable).unwrap().0.duplicate);
    assert_eq!(rows(&on).await, [1, 1, 1, 1, 0]);
}

async fn what_is_refused_in_b1_leaves_nothing(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let large = dm(&alice, &"x".repeat(65_537));
    let queue = Envelope::new(Destination { kind: DestinationKind::Queue, reference: "jobs".to_owned() }, Vec::new());
    let mut version = dm(&alice, "x");
    version.version = 2;
    let mut sealed = dm(&alice, "x");
    sealed.epoch = Some(1);
    for (envelope, code) in [
        (large, Code::PayloadTooLarge),
        (queue, Code::DestinationUnknown),
        (version, Code::InvalidRequest),
        (sealed, Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&on, &alice, "a", envelope).await.code(), code);
    }
    let mut other = accept(&alice, "a", dm(&alice, "x"));
    other.request_fingerprint = Some(dm(&alice, "y").fingerprint().unwrap());
    let error = call(&on, alice.caller(), other).await.map(drop).unwrap_err();
    assert_eq!(error.code(), Code::FingerprintMismatch);
    assert_eq!(rows(&on).await, [0; 5]);
    // As large as it may be.
    sent(&on, &alice, "a", dm(&alice, &"x".repeat(65_536))).await;
}

async fn b0_answers_whatever_has_become_of_the_sender(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    sent(&on, &bob, "a", dm(&alice, "x")).await;
    ok(&on, alice.caller(), RevokeMember { mesh: alice.mesh(), member: alice.id(), key: bob.key() }).await;
    assert!(send(&on, &bob, "a", dm(&alice, "x")).await.map_err(readable).unwrap().0.duplicate);
    assert_eq!(refusal(&on, &bob, "b", dm(&alice, "x")).await.code(), Code::MemberRevoked);
    assert_eq!(refusal(&on, &alice, "c", dm(&bob, "x")).await.code(), Code::MemberUnknown);
}

async fn all_that_a_message_consists_of_is_written_at_once(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let (bob, carol) = (join(&on, &alice, "bob").await, join(&on, &alice, "carol").await);
    create_topic(&on, &alice, "jobs").await;
    subscribe(&on, &bob, "jobs").await;
    subscribe(&on, &carol, "jobs").await;
    let mut envelope = post("jobs", "hello");
    envelope.mentions = vec![bob.key(), bob.key(), carol.key()];
    let accepted = sent(&on, &alice, "a", envelope).await;
    assert_eq!(rows(&on).await, [1, 1, 1, 2, 2]);
    assert_eq!((accepted.history_available, accepted.first_seen_at), (None, None));
    let shown = serde_json::to_value(&accepted).unwrap();
    assert_eq!(shown.as_object().unwrap().len(), 4, "{shown}");
}

async fn messages_that_were_looked_at_together_are_accepted_as_each_alone(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let (mesh, member) = (alice.mesh(), alice.id());
    let known = sent(&on, &alice, "a", dm(&bob, "a")).await;
    let names = ["a", "b", "c", "d"];
    let ids = names.iter().map(|id| id.parse().unwrap()).collect();
    let looked = look_together(&on.store, alice.caller(), mesh, member, ids).await.map_err(readable).unwrap();
    // One is committed by another attempt after the look, and one is used for something else.
    let meanwhile = sent(&on, &alice, "c", dm(&bob, "c")).await;
    sent(&on, &alice, "d", dm(&bob, "another")).await;
    let mut answers = Vec::new();
    for (id, looked) in names.into_iter().zip(looked) {
        let request = accept(&alice, id, dm(&bob, id));
        answers.push(call(&on, alice.caller(), AcceptLooked { request, looked: Some(looked) }).await);
    }
    let [Ok(a), Ok(b), Ok(c), Err(d)] = &answers[..] else { panic!("{answers:?}") };
    assert!(a.1 && a.0.duplicate && a.0.broker_message_id == known.broker_message_id);
    assert!(!b.1 && !b.0.duplicate);
    assert!(c.1 && c.0.duplicate && c.0.broker_message_id == meanwhile.broker_message_id);
    assert_eq!(d.code(), Code::IdempotencyKeyReused);
    assert_eq!(rows(&on).await, [4, 4, 4, 4, 0]);
    let many = (0..=LOOKS_MAX).map(|number| number.to_string().parse().unwrap()).collect();
    assert!(look_together(&on.store, alice.caller(), mesh, member, many).await.is_err());
}
