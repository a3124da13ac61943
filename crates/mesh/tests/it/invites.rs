//! Who may join, and how often.

use std::sync::Arc;

use tokio::task::JoinSet;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Time};
use waybill_mesh::ops::manage::CloseMesh;
use waybill_mesh::ops::members::{IssueInvite, RevokeMember, RotateKeys};
use waybill_mesh_protocol::rotation::Rotation;
use waybill_mesh_protocol::{Identity, InviteId};
use waybill_testkit::stores::{TestStore, readable};

use crate::support::{
    Person, call, count, invite_of, issue, join, join_with, new_id, ok, pass, plain_mesh, refused, request, run, signed,
};

mod usual {
    use super::*;

    waybill_testkit::both! {
        a_forged_invite_is_refused,
        an_expired_or_used_up_invite_is_refused,
        an_invite_is_void_once_its_issuer_is_revoked_or_has_another_key,
        an_invite_for_one_is_used_by_one_of_twenty,
        nobody_is_left_in_a_mesh_that_is_closed_while_others_join,
        a_joiner_proves_both_its_keys_in_time,
        whoever_did_not_get_the_answer_joins_again,
        a_name_and_a_key_belong_to_one_member,
        only_the_owner_invites,
    }
}

mod small {
    use super::*;

    waybill_testkit::both! { waybill_mesh::Settings { members_max: 2, invites_max: 2, ..waybill_mesh::Settings::default() } => caps_are_kept }
}

fn anybody() -> Identity {
    Identity::generate(&OsEntropy)
}

async fn code(on: &TestStore, invite: &str) -> Code {
    match join_with(on, invite, &anybody(), "mallory").await {
        Ok(joined) => panic!("{} has joined", joined.name),
        Err(error) => error.code(),
    }
}

async fn a_forged_invite_is_refused(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let issued = issue(&on, &alice, 1).await;
    // Of the right owner, and signed by another.
    let text = signed(&alice, &issued);
    let stranger = anybody();
    let mut own = invite_of(&issued);
    (own.owner, own.issuer) = (stranger.public(), stranger.public_key());
    assert_eq!(code(&on, &own.sign(&stranger).unwrap()).await, Code::InviteInvalid);
    // Signed by the owner, and never issued; or with more uses or time than were issued.
    let mut unknown = invite_of(&issued);
    unknown.invite_id = InviteId(new_id());
    let mut longer = invite_of(&issued);
    longer.expires_at = Time::from_micros(issued.expires_at.micros() + 1);
    let mut wider = invite_of(&issued);
    wider.uses = 2;
    for forged in [unknown, longer, wider] {
        assert_eq!(code(&on, &forged.sign(&alice.identity).unwrap()).await, Code::InviteInvalid);
    }
    assert_eq!(count(&on, "mesh_members").await, 1);
    // None of this has used the invite.
    join_with(&on, &text, &anybody(), "bob").await.map_err(readable).unwrap();
}

async fn an_expired_or_used_up_invite_is_refused(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let once = signed(&alice, &issue(&on, &alice, 1).await);
    join_with(&on, &once, &anybody(), "bob").await.map_err(readable).unwrap();
    assert_eq!(code(&on, &once).await, Code::InviteUsedUp);
    let twice = signed(&alice, &issue(&on, &alice, 2).await);
    for name in ["carol", "dave"] {
        join_with(&on, &twice, &anybody(), name).await.map_err(readable).unwrap();
    }
    assert_eq!(code(&on, &twice).await, Code::InviteUsedUp);
    let old = IssueInvite { mesh: alice.mesh(), member: alice.id(), uses: None, expires_in_s: Some(5) };
    let issued = ok(&on, alice.caller(), old).await;
    assert_eq!(issued.uses, 1);
    pass(&on, 5);
    assert_eq!(code(&on, &signed(&alice, &issued)).await, Code::InviteExpired);
    let day =
        ok(&on, alice.caller(), IssueInvite { mesh: alice.mesh(), member: alice.id(), uses: None, expires_in_s: None });
    let left_s = day.await.expires_at.since(on.store.now()).as_secs();
    assert!((86_300..=86_400).contains(&left_s), "{left_s}");
}

async fn an_invite_is_void_once_its_issuer_is_revoked_or_has_another_key(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let before = signed(&alice, &issue(&on, &alice, 5).await);
    let new = anybody();
    let rotation = Rotation::sign(alice.mesh(), &alice.identity, &new);
    ok(&on, alice.caller(), RotateKeys { mesh: alice.mesh(), member: alice.id(), rotation }).await;
    assert_eq!(code(&on, &before).await, Code::InviteVoid);
    let alice = Person { identity: new, ..alice };
    let after = signed(&alice, &issue(&on, &alice, 5).await);
    join_with(&on, &after, &anybody(), "bob").await.map_err(readable).unwrap();
    ok(&on, alice.caller(), RevokeMember { mesh: alice.mesh(), member: alice.id(), key: alice.key() }).await;
    assert_eq!(code(&on, &after).await, Code::InviteVoid);
}

async fn an_invite_for_one_is_used_by_one_of_twenty(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let invite = Arc::new(signed(&alice, &issue(&on, &alice, 1).await));
    let (on, mut all) = (Arc::new(on), JoinSet::new());
    for number in 0..20 {
        let (on, invite) = (Arc::clone(&on), Arc::clone(&invite));
        all.spawn(async move {
            join_with(&on, &invite, &anybody(), &format!("guest {number}")).await.map_err(|error| error.code())
        });
    }
    let outcomes = all.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(
        outcomes.iter().flatten().count() + outcomes.iter().filter(|o| matches!(o, Err(Code::InviteUsedUp))).count()
            == 20
    );
    assert_eq!(count(&on, "mesh_members").await, 2);
    assert_eq!(on.count("SELECT used FROM mesh_invites").await.unwrap(), 1);
}

async fn nobody_is_left_in_a_mesh_that_is_closed_while_others_join(on: TestStore) {
    const GUESTS: u32 = 20;
    let alice = plain_mesh(&on).await;
    let invite = Arc::new(signed(&alice, &issue(&on, &alice, GUESTS).await));
    let (on, mut all) = (Arc::new(on), JoinSet::new());
    for number in 0..GUESTS {
        let (on, invite) = (Arc::clone(&on), Arc::clone(&invite));
        all.spawn(async move {
            join_with(&on, &invite, &anybody(), &format!("guest {number}")).await.map_err(|error| error.code())
        });
    }
    // One of them is in it, and the others are on their way.
    all.join_next().await.unwrap().unwrap().unwrap();
    while ok(&on, &on.admin, CloseMesh { mesh: "team".parse().unwrap() }).await.remaining > 0 {}
    for outcome in all.join_all().await {
        assert!(matches!(outcome, Ok(_) | Err(Code::InviteVoid)), "{outcome:?}");
    }
    assert_eq!(on.count("SELECT count(*) FROM mesh_members WHERE state = 'live'").await.unwrap(), 0);
}

async fn a_joiner_proves_both_its_keys_in_time(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let invite = signed(&alice, &issue(&on, &alice, 5).await);
    let (bob, mallory) = (anybody(), anybody());
    // The proof of one with the keys of another, of one name for another, and of one mesh's nonce for another nonce.
    let (caller, mut join) = request(&on, &invite, &mallory, "bob").await;
    join.keys = bob.public();
    assert_eq!(call(&on, &caller, join).await.map(drop).unwrap_err().code(), Code::ProofInvalid);
    let (_, mut join) = request(&on, &invite, &bob, "bob").await;
    join.name = "robert".parse().unwrap();
    assert_eq!(call(&on, &caller, join).await.map(drop).unwrap_err().code(), Code::ProofInvalid);
    let (_, mut join) = request(&on, &invite, &bob, "bob").await;
    let (_, other) = request(&on, &invite, &bob, "bob").await;
    join.nonce = other.nonce;
    assert_eq!(call(&on, &caller, join).await.map(drop).unwrap_err().code(), Code::ProofInvalid);
    // A box of the nonce from another's key.
    let (_, mut join) = request(&on, &invite, &bob, "bob").await;
    let (_, other) = request(&on, &invite, &mallory, "bob").await;
    join.proof.boxed = other.proof.boxed;
    assert_eq!(call(&on, &caller, join).await.map(drop).unwrap_err().code(), Code::ProofInvalid);
    // Too late.
    let (_, join) = request(&on, &invite, &bob, "bob").await;
    pass(&on, 60);
    assert_eq!(call(&on, &caller, join).await.map(drop).unwrap_err().code(), Code::ChallengeExpired);
    assert_eq!(count(&on, "mesh_members").await, 1);
    join_with(&on, &invite, &bob, "bob").await.map_err(readable).unwrap();
}

async fn whoever_did_not_get_the_answer_joins_again(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let invite = signed(&alice, &issue(&on, &alice, 1).await);
    let bob = anybody();
    let first = join_with(&on, &invite, &bob, "bob").await.map_err(readable).unwrap();
    let (caller, join) = request(&on, &invite, &bob, "bob").await;
    let (again, replay) = call(&on, &caller, join).await.map_err(readable).unwrap();
    assert!(replay);
    assert_eq!((again.member_id, again.owner), (first.member_id, alice.identity.public()));
    assert_eq!(count(&on, "mesh_members").await, 2);
    // Also where the first request is still under way.
    let (invite, carol) = (signed(&alice, &issue(&on, &alice, 1).await), anybody());
    let (one, two) = tokio::join!(join_with(&on, &invite, &carol, "carol"), join_with(&on, &invite, &carol, "carol"));
    assert_eq!(one.map_err(readable).unwrap().member_id, two.map_err(readable).unwrap().member_id);
    assert_eq!(count(&on, "mesh_members").await, 3);
}

async fn a_name_and_a_key_belong_to_one_member(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let invite = signed(&alice, &issue(&on, &alice, 9).await);
    let bob = anybody();
    join_with(&on, &invite, &bob, "bob").await.map_err(readable).unwrap();
    for (identity, name) in [(anybody(), "bob"), (bob, "robert"), (alice.identity.clone(), "alice2")] {
        let error = join_with(&on, &invite, &identity, name).await.unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists, "{name}");
    }
    assert_eq!(on.count("SELECT used FROM mesh_invites").await.unwrap(), 1, "a refused joiner has used the invite");
}

async fn only_the_owner_invites(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let bob = join(&on, &alice, "bob").await;
    let ask = |uses, expires_in_s| IssueInvite { mesh: alice.mesh(), member: alice.id(), uses, expires_in_s };
    let by_bob = IssueInvite { member: bob.id(), ..ask(None, None) };
    assert_eq!(refused(&on, bob.caller(), by_bob).await, Code::Forbidden);
    for wrong in [ask(Some(0), None), ask(None, Some(0)), ask(Some(1_000_000), None), ask(None, Some(u64::MAX))] {
        assert_eq!(refused(&on, alice.caller(), wrong).await, Code::InvalidRequest);
    }
}

async fn caps_are_kept(on: TestStore) {
    let alice = plain_mesh(&on).await;
    let first = signed(&alice, &issue(&on, &alice, 5).await);
    issue(&on, &alice, 1).await;
    let third = IssueInvite { mesh: alice.mesh(), member: alice.id(), uses: None, expires_in_s: None };
    assert_eq!(run(&on, alice.caller(), third).await.map(drop).unwrap_err().code(), Code::TooManyInvites);
    join_with(&on, &first, &anybody(), "bob").await.map_err(readable).unwrap();
    assert_eq!(code(&on, &first).await, Code::TooManyMembers);
    assert_eq!(on.count("SELECT used FROM mesh_invites WHERE uses = 5").await.unwrap(), 1);
}
