use std::collections::BTreeMap;

use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::Uuid;
use waybill_mesh_protocol::frames::{Challenge, HistoryPage, MemberGone, Refused};
use waybill_mesh_protocol::negotiation::{DedupeMode, FeatureRequest, FeatureResponse, Features};
use waybill_mesh_protocol::{Edition, Identity, MemberId, MeshId};

use super::machine::*;
use super::*;
use waybill_mesh_protocol::challenge::ChallengeNonce;
use waybill_mesh_protocol::frames::{Framed, HelloOk};
use waybill_mesh_protocol::{ClientFrame, ServerFrame};

fn mesh() -> MeshId {
    MeshId(Uuid::from_u128(7))
}

fn machine() -> Machine {
    Machine::new(Expected { mesh: mesh(), plaintext: false }, Edition::default())
}

fn challenge() -> ServerFrame {
    ServerFrame::Challenge(Challenge { nonce: ChallengeNonce::random(&SeededEntropy::new(1)) })
}

fn hello(mesh: MeshId, plaintext: bool) -> ServerFrame {
    ServerFrame::HelloOk(HelloOk {
        mesh,
        slug: "acme".parse().unwrap(),
        member_id: MemberId(Uuid::from_u128(1)),
        name: "alice".parse().unwrap(),
        plaintext,
        broker_version: "1".to_owned(),
    })
}

fn response(features: Features) -> FeatureResponse {
    features.answer(&FeatureRequest::default()).unwrap()
}

fn negotiated(features: Features) -> ServerFrame {
    ServerFrame::FeatureNegotiationResponse(response(features))
}

fn gone() -> MemberGone {
    let key = Identity::generate(&SeededEntropy::new(2)).public_key();
    MemberGone { member_id: MemberId(Uuid::from_u128(2)), key }
}

fn ready() -> Machine {
    let mut machine = machine();
    assert!(matches!(machine.on_frame(challenge().into()), Action::Sign(_)));
    let asked = machine.on_frame(hello(mesh(), false).into());
    assert_eq!(asked, Action::Send(ClientFrame::FeatureNegotiationRequest(FeatureRequest::default())));
    assert!(matches!(machine.on_frame(negotiated(Features::default()).into()), Action::Ready(_)));
    machine
}

#[test]
fn a_connection_begins_in_one_order_and_then_takes_everything() {
    let mut machine = ready();
    let page = HistoryPage { messages: Vec::new(), next_after: 5, more: false };
    assert_eq!(machine.on_frame(ServerFrame::HistoryPage(page.clone()).into()), Action::Page(page));
    assert_eq!(machine.on_frame(ServerFrame::Ping {}.into()), Action::Send(ClientFrame::Pong {}));
    assert_eq!(machine.on_frame(ServerFrame::Pong {}.into()), Action::Alive);
    assert_eq!(machine.on_frame(ServerFrame::PeerLeave(gone()).into()), Action::Left(gone()));
    assert_eq!(machine.on_frame(ServerFrame::MemberRevoked(gone()).into()), Action::Revoked(gone()));
}

#[test]
fn what_comes_out_of_turn_ends_the_connection() {
    let page = || ServerFrame::HistoryPage(HistoryPage { messages: Vec::new(), next_after: 0, more: false });
    for (frames, name) in [
        (vec![hello(mesh(), false)], "hello_ok"),
        (vec![negotiated(Features::default())], "feature_negotiation_response"),
        (vec![page()], "history_page"),
        (vec![challenge(), challenge()], "challenge"),
        (vec![challenge(), negotiated(Features::default())], "feature_negotiation_response"),
        (vec![challenge(), hello(mesh(), false), hello(mesh(), false)], "hello_ok"),
        (vec![challenge(), hello(mesh(), false), negotiated(Features::default()), challenge()], "challenge"),
    ] {
        let mut machine = machine();
        let last = frames.into_iter().map(|frame| machine.on_frame(frame.into())).last();
        assert_eq!(last, Some(Action::End(Ended::OutOfTurn(name))));
    }
}

#[test]
fn a_broker_that_describes_another_mesh_is_left_for_good() {
    for (mesh, plaintext) in [(MeshId(Uuid::from_u128(8)), false), (mesh(), true)] {
        let mut machine = machine();
        machine.on_frame(challenge().into());
        let end = machine.on_frame(hello(mesh, plaintext).into());
        assert!(matches!(end, Action::End(Ended::Finally { code: Code::FeatureParametersInvalid, .. })), "{end:?}");
    }
}

#[test]
fn what_the_broker_lacks_ends_the_daemon_with_the_code_for_it() {
    let without = |name: &str| {
        let mut response = response(Features::default());
        response.supported.remove(name);
        response
    };
    let first_version = {
        let mut response = response(Features::default());
        let old = serde_json::json!({ "version": 1, "mode": "permanent", "request_fingerprint": true });
        let old = waybill_mesh_protocol::Meta::from_value(old).unwrap();
        response.supported.insert("client_message_id_dedupe".to_owned(), old);
        response
    };
    let short = response(Features { dedupe: DedupeMode::RetentionScoped { days: 6 }, ..Features::default() });
    let nothing = FeatureResponse { supported: BTreeMap::new(), missing_required: vec!["key_epoch".to_owned()] };
    let bent = {
        let mut response = response(Features::default());
        let bent = waybill_mesh_protocol::Meta::from_value(serde_json::json!({ "version": 1 })).unwrap();
        response.supported.insert("max_payload".to_owned(), bent);
        response
    };
    for (response, expected) in [
        (without("key_epoch"), Code::FeatureMissing),
        (nothing, Code::FeatureMissing),
        (first_version, Code::FeatureMissing),
        (bent, Code::FeatureParametersInvalid),
        (short, Code::FeatureParameterBelowFloor),
    ] {
        let mut machine = machine();
        machine.on_frame(challenge().into());
        machine.on_frame(hello(mesh(), false).into());
        match machine.on_frame(ServerFrame::FeatureNegotiationResponse(response).into()) {
            Action::End(Ended::Finally { code, .. }) => assert_eq!(code, expected),
            other => panic!("{expected:?}: {other:?}"),
        }
    }
}

#[test]
fn a_refusal_of_history_ends_the_connection_and_another_is_noted() {
    let no = || Refused { error: "overloaded".to_owned(), message: "Later.".to_owned(), help: String::new() };
    let mut machine = ready();
    let framed = Framed::answer(Some(HISTORY.parse().unwrap()), ServerFrame::Error(no()));
    assert!(matches!(machine.on_frame(framed), Action::End(Ended::Refused(_))));
    assert_eq!(machine.on_frame(ServerFrame::Error(no()).into()), Action::Note(no()));
}
