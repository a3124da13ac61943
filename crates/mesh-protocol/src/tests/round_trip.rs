//! What is written is read back as it was.

use proptest::prelude::*;
use waybill_kernel::Time;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::Uuid;

use super::any;
use crate::envelope::Envelope;
use crate::file::{CHUNK_BYTES, FileKey, FileOpener, FileSealer, HEADER_BYTES, SEALED_CHUNK_BYTES, sealed_bytes};
use crate::frames::{ClientFrame, Framed, ServerFrame};
use crate::identity::Identity;
use crate::ids::MeshId;
use crate::invite::Invite;
use crate::keys::BoxPublicKey;
use crate::meta::Meta;
use crate::plain::{Carrier, Plain};
use crate::seal::{Nonce, SharedKey, TopicKey, open_dm, open_sealed_key, open_topic, seal_dm, seal_key_to, seal_topic};

/// As a file is sent: header, then chunks.
pub fn sealed_file(key: &FileKey, plain: &[u8], seed: u64) -> Vec<u8> {
    let mut sealer = FileSealer::new(key, &SeededEntropy::new(seed));
    let mut sealed = sealer.header().to_vec();
    let chunks = plain.len().div_ceil(CHUNK_BYTES).max(1);
    for number in 0..chunks {
        let (begin, end) = (number * CHUNK_BYTES, ((number + 1) * CHUNK_BYTES).min(plain.len()));
        sealed.extend(sealer.chunk(&plain[begin..end], number + 1 == chunks).unwrap());
    }
    sealed
}

/// As a file is received.
pub fn opened_file(key: &FileKey, sealed: &[u8]) -> waybill_kernel::Result<Vec<u8>> {
    let (header, rest) = sealed.split_at(HEADER_BYTES.min(sealed.len()));
    let mut opener = FileOpener::new(key, header)?;
    let mut plain = Vec::new();
    let mut chunks = rest.chunks(SEALED_CHUNK_BYTES).peekable();
    while let Some(chunk) = chunks.next() {
        plain.extend(opener.chunk(chunk, chunks.peek().is_none())?.iter());
    }
    opener.finish()?;
    Ok(plain)
}

proptest! {
    #[test]
    fn envelopes(envelope in any::envelope()) {
        let text = serde_json::to_string(&envelope).unwrap();
        let back: Envelope = serde_json::from_str(&text).unwrap();
        // Numbers may change their spelling (-0), not what they mean: that is what a fingerprint compares.
        prop_assert_eq!(back.fingerprint().unwrap(), envelope.fingerprint().unwrap());
        prop_assert_eq!(Envelope { meta: None, ..back }, Envelope { meta: None, ..envelope });
    }

    #[test]
    fn metas(meta in any::meta()) {
        let canonical = meta.canonical().unwrap();
        prop_assert_eq!(&Meta::parse(&canonical).unwrap().canonical().unwrap(), &canonical);
        let written = serde_json::to_string(&meta).unwrap();
        prop_assert_eq!(&Meta::parse(&written).unwrap().canonical().unwrap(), &canonical);
    }

    #[test]
    fn frames_of_clients(frame in any::client_frame(), id in proptest::option::of(any::id())) {
        let text = Framed { id, frame }.write().unwrap();
        let back = Framed::<ClientFrame>::read(text.as_bytes()).unwrap();
        prop_assert_eq!(Framed::<ClientFrame>::read(back.write().unwrap().as_bytes()).unwrap(), back.clone());
        prop_assert_eq!(serde_json::to_value(&back).unwrap(), serde_json::from_str::<serde_json::Value>(&text).unwrap());
    }

    #[test]
    fn frames_of_servers(frame in any::server_frame(), id in proptest::option::of(any::id())) {
        let text = Framed { id, frame }.write().unwrap();
        let back = Framed::<ServerFrame>::read(text.as_bytes()).unwrap();
        prop_assert_eq!(serde_json::to_value(&back).unwrap(), serde_json::from_str::<serde_json::Value>(&text).unwrap());
    }

    #[test]
    fn invites(invite in any::invite()) {
        let text = invite.sign(&any::identity(1)).unwrap();
        prop_assert!(text.len() <= crate::invite::INVITE_CHARS_MAX);
        let before = Time::from_micros(invite.expires_at.micros() - 1);
        prop_assert_eq!(&Invite::parse_and_verify(&text, before).unwrap(), &invite);
        let late = Invite::parse_and_verify(&text, invite.expires_at).unwrap_err();
        prop_assert_eq!(late.code(), waybill_kernel::Code::InviteExpired);
    }

    #[test]
    fn plaintexts(
        body in r"\PC{0,40}",
        meta in proptest::option::of(any::meta()),
        envelope in any::envelope(),
        id in any::id(),
    ) {
        let carrier = Carrier { mesh: MeshId(Uuid::from_u128(7)), id: &id, envelope: &envelope };
        let plain = Plain::sign(&any::identity(1), carrier, body, meta).unwrap();
        plain.verify(carrier).unwrap();
        let bytes = plain.to_bytes().unwrap();
        let back = Plain::from_bytes(&bytes).unwrap();
        prop_assert_eq!(&back.body, &plain.body);
        back.verify(carrier).unwrap();
        prop_assert_eq!(back.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn boxes(plain in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2_000), seed in 0..1_000_u64) {
        let (alice, bob, eve) = (any::identity(1), any::identity(2), any::identity(3));
        let entropy = SeededEntropy::new(seed);
        let nonce = Nonce::random(&entropy);
        let sealed = seal_dm(&alice, &bob.public().x25519, nonce, &plain).unwrap();
        prop_assert_eq!(&*open_dm(bob.box_secret(), &alice.public().x25519, &sealed).unwrap(), &plain);
        prop_assert!(open_dm(eve.box_secret(), &alice.public().x25519, &sealed).is_err());
        prop_assert!(open_dm(bob.box_secret(), &eve.public().x25519, &sealed).is_err());
        let shared = SharedKey::between(alice.box_secret(), &bob.public().x25519).unwrap();
        prop_assert_eq!(&shared.seal(nonce, &plain).unwrap(), &sealed);
        let shared = SharedKey::between(bob.box_secret(), &alice.public().x25519).unwrap();
        prop_assert_eq!(&*shared.open(&sealed).unwrap(), &plain);
        prop_assert!(SharedKey::between(eve.box_secret(), &alice.public().x25519).unwrap().open(&sealed).is_err());
        prop_assert!(SharedKey::between(bob.box_secret(), &BoxPublicKey::from_bytes([0; 32])).is_err());
        let (key, other) = (TopicKey::generate(&entropy), TopicKey::generate(&entropy));
        let sealed = seal_topic(&key, nonce, &plain).unwrap();
        prop_assert_eq!(&*open_topic(&key, &sealed).unwrap(), &plain);
        prop_assert!(open_topic(&other, &sealed).is_err());
        let sealed = seal_key_to(&bob.public().x25519, &key, &entropy).unwrap();
        prop_assert_eq!(open_sealed_key(bob.box_secret(), &sealed).unwrap(), key);
        prop_assert!(open_sealed_key(eve.box_secret(), &sealed).is_err());
    }

    #[test]
    fn identities(seed in 0..10_000_u64) {
        let identity = any::identity(seed);
        let back = Identity::from_json(&identity.to_json().unwrap()).unwrap();
        prop_assert_eq!(back.public(), identity.public());
        back.public().verify().unwrap();
    }
}

#[test]
fn files_of_every_length_around_a_chunk() {
    let key = FileKey::generate(&SeededEntropy::new(1));
    for bytes in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 5] {
        let plain: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let sealed = sealed_file(&key, &plain, 2);
        assert_eq!(sealed_bytes(bytes as u64), Some(sealed.len() as u64), "{bytes}");
        assert!(opened_file(&key, &sealed).unwrap() == plain, "{bytes}");
        assert!(opened_file(&FileKey::generate(&SeededEntropy::new(9)), &sealed).is_err(), "{bytes}");
    }
    assert_eq!(sealed_bytes(u64::MAX), None);
}
