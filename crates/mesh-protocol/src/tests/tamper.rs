//! Whatever was signed or sealed is refused when a byte of it is another, wherever that is.

use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::Uuid;
use waybill_kernel::{Code, Time};

use super::any::identity;
use super::round_trip::{opened_file, sealed_file};
use crate::bytes::Base64;
use crate::challenge::{self, ChallengeNonce};
use crate::envelope::{Destination, DestinationKind, Envelope, Priority};
use crate::epoch::{EpochBox, EpochOf};
use crate::file::{CHUNK_BYTES, FileKey, FileSealer, HEADER_BYTES, SEALED_CHUNK_BYTES};
use crate::identity::{BoxSecret, MemberKeys};
use crate::ids::{InviteId, MeshId};
use crate::invite::Invite;
use crate::join::{JoinChallenge, JoinProof, Joining};
use crate::keys::{BoxPublicKey, PublicKey, Signature};
use crate::meta::Meta;
use crate::names::ClientMessageId;
use crate::passphrase::{self, Cost};
use crate::plain::{Carrier, Plain};
use crate::request_signature::{RequestClaim, RequestNonce, Signed, sign_request};
use crate::rotation::Rotation;
use crate::seal::{Nonce, TopicKey, open_dm, open_sealed_key, open_topic, seal_dm, seal_key_to, seal_topic};

const NOW: Time = Time::from_micros(1_700_000_000_000_000);
const MESH: MeshId = MeshId(Uuid::from_u128(7));

/// Every bit of every byte in turn, and every length that is shorter, and one that is longer.
fn changed(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let flipped = (0..bytes.len() * 8).map(|bit| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    flipped.chain((0..bytes.len()).map(|length| bytes[..length].to_vec())).chain([[bytes, &[0]].concat()])
}

/// The same of a text; what is no text any more could not arrive.
fn changed_texts(text: &str) -> impl Iterator<Item = String> {
    changed(text.as_bytes()).filter_map(|bytes| String::from_utf8(bytes).ok())
}

fn changed_array<const N: usize>(bytes: &[u8; N]) -> impl Iterator<Item = [u8; N]> {
    changed(bytes).filter_map(|bytes| bytes.try_into().ok())
}

fn changed_signatures(signature: &Signature) -> impl Iterator<Item = Signature> {
    changed_array(signature.as_bytes()).map(Signature::from_bytes)
}

#[test]
fn boxes() {
    let (alice, bob) = (identity(1), identity(2));
    let entropy = SeededEntropy::new(3);
    let (nonce, key) = (Nonce::random(&entropy), TopicKey::generate(&entropy));
    let dm = seal_dm(&alice, &bob.public().x25519, nonce, b"hello").unwrap();
    let topic = seal_topic(&key, nonce, b"hello").unwrap();
    let sealed = seal_key_to(&bob.public().x25519, &key, &entropy).unwrap();
    for dm in changed(&dm) {
        let refused = open_dm(bob.box_secret(), &alice.public().x25519, &dm).unwrap_err();
        assert_eq!(refused.code(), Code::BoxUnreadable);
    }
    for topic in changed(&topic) {
        assert_eq!(open_topic(&key, &topic).unwrap_err().code(), Code::BoxUnreadable);
    }
    for sealed in changed(&sealed) {
        assert_eq!(open_sealed_key(bob.box_secret(), &sealed).unwrap_err().code(), Code::BoxUnreadable);
    }
}

/// Keys that lead to a shared secret that everybody knows.
#[test]
fn keys_that_nobody_can_have() {
    let alice = identity(1);
    let nonce = Nonce::from_bytes([1; 24]);
    let mut one = [0; 32];
    one[0] = 1;
    for key in [[0; 32], one] {
        let key = BoxPublicKey::from_bytes(key);
        assert!(seal_dm(&alice, &key, nonce, b"hello").is_err());
        assert!(seal_key_to(&key, &TopicKey::from_bytes([1; 32]), &SeededEntropy::new(1)).is_err());
        assert!(open_dm(alice.box_secret(), &key, &[0; 64]).is_err());
    }
    // For the neutral element as key and as commitment, with zero as the scalar, the plain equation of Ed25519 holds for every text.
    let mut signature = [0; 64];
    signature[0] = 1;
    let (key, signature) = (PublicKey::from_bytes(one), Signature::from_bytes(signature));
    assert!(challenge::verify(&key, &ChallengeNonce::from_bytes([0; 32]), MESH, 0, &signature, Time::EPOCH).is_err());
}

#[test]
fn files() {
    let key = FileKey::generate(&SeededEntropy::new(1));
    let small = sealed_file(&key, b"hello", 2);
    for sealed in changed(&small) {
        assert!(opened_file(&key, &sealed).is_err(), "{} bytes", sealed.len());
    }
    let plain = vec![7; 2 * CHUNK_BYTES + 5];
    let sealed = sealed_file(&key, &plain, 2);
    let (header, chunks) = sealed.split_at(HEADER_BYTES);
    let chunks: Vec<_> = chunks.chunks(SEALED_CHUNK_BYTES).collect();
    let [first, second, last] = chunks[..] else { panic!("{} chunks", chunks.len()) };
    let put = |chunks: &[&[u8]]| opened_file(&key, &[&[header], chunks].concat().concat());
    assert!(put(&[first, second, last]).unwrap() == plain);
    for (wrong, chunks) in [
        ("swapped", &[second, first, last][..]),
        ("repeated", &[first, first, second, last]),
        ("left out", &[first, last]),
        ("cut off", &[first, second]),
        ("cut off", &[first]),
        ("the last alone", &[last]),
        ("nothing to open", &[first, second, &last[..8]]),
    ] {
        assert!(put(chunks).is_err(), "{wrong}");
    }
    let other = sealed_file(&key, &plain, 3);
    let foreign = &other[HEADER_BYTES..][..SEALED_CHUNK_BYTES];
    assert!(put(&[foreign, second, last]).is_err(), "a chunk of another file");
}

#[test]
fn files_go_on_no_further_than_their_end() {
    let key = FileKey::generate(&SeededEntropy::new(1));
    let mut sealer = FileSealer::new(&key, &SeededEntropy::new(2));
    assert!(sealer.chunk(b"short", false).is_err() && sealer.chunk(&vec![0; CHUNK_BYTES + 1], true).is_err());
    sealer.chunk(b"last", true).unwrap();
    assert!(sealer.chunk(b"more", true).is_err());
}

#[test]
fn boxes_with_a_passphrase() {
    let cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };
    let sealed = passphrase::seal_at(cost, b"correct horse", b"keys", &SeededEntropy::new(1)).unwrap();
    assert_eq!(*passphrase::open(b"correct horse", &sealed).unwrap(), b"keys");
    for wrong in [b"".as_slice(), b"Correct horse", b"correct horse "] {
        assert_eq!(passphrase::open(wrong, &sealed).unwrap_err().code(), Code::BoxUnreadable);
    }
    for at in 0..sealed.len() {
        let mut flipped = sealed.clone();
        flipped[at] ^= 1;
        assert!(passphrase::open(b"correct horse", &flipped).is_err(), "byte {at}");
        assert!(passphrase::open(b"correct horse", &sealed[..at]).is_err(), "{at} bytes");
    }
    assert!(passphrase::seal(b"", b"keys", &SeededEntropy::new(1)).is_err());
}

#[test]
fn a_box_that_asks_for_too_much_is_refused_before_it_is_computed() {
    let cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };
    let sealed = passphrase::seal_at(cost, b"p", b"keys", &SeededEntropy::new(1)).unwrap();
    for number in 0..3 {
        let mut greedy = sealed.clone();
        greedy[5 + 4 * number..][..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(passphrase::open(b"p", &greedy).is_err(), "number {number}");
    }
}

fn invite() -> Invite {
    let owner = identity(1).public();
    Invite {
        server: "http://127.0.0.1:7000".to_owned(),
        mesh: MESH,
        slug: "team".parse().unwrap(),
        invite_id: InviteId(Uuid::from_u128(9)),
        owner,
        issuer: owner.ed25519,
        uses: 1,
        expires_at: Time::from_micros(NOW.micros() + 1),
        plaintext: false,
    }
}

#[test]
fn invites() {
    let text = invite().sign(&identity(1)).unwrap();
    Invite::parse_and_verify(&text, NOW).unwrap();
    for text in changed_texts(&text) {
        let refused = Invite::parse_and_verify(&text, NOW).unwrap_err();
        assert_eq!(refused.code(), Code::InviteInvalid, "{text}");
    }
    for text in [format!(" {text}"), format!("{text}\n"), format!("{text}="), text.replace("wbi_", ""), String::new()] {
        assert!(Invite::parse(&text).is_err(), "{text}");
    }
}

#[test]
fn invites_that_are_signed_and_yet_not_good() {
    let (owner, eve) = (identity(1), identity(2));
    let good = invite();
    let foreign = MemberKeys { x25519: eve.public().x25519, ..owner.public() };
    for (wrong, invite) in [
        ("no uses", Invite { uses: 0, ..good.clone() }),
        ("no address", Invite { server: "file:///etc/passwd".to_owned(), ..good.clone() }),
        ("no host", Invite { server: "http://".to_owned(), ..good.clone() }),
        ("a space", Invite { server: "http://a b".to_owned(), ..good.clone() }),
        ("too long", Invite { server: format!("http://{}", "a".repeat(2_000)), ..good.clone() }),
        ("a foreign box key", Invite { owner: foreign, ..good.clone() }),
    ] {
        assert_eq!(invite.sign(&owner).unwrap_err().code(), Code::InviteInvalid, "{wrong}");
    }
    // Signed by another in the owner's name, and by another in its own.
    assert!(good.sign(&eve).is_err());
    assert!(Invite { issuer: eve.public_key(), ..good }.sign(&eve).is_err());
}

#[test]
fn requests() {
    let alice = identity(1);
    let signed = Signed::new("POST", "/mesh/v1/messages?a=1", b"{}");
    let header = sign_request(&alice, MESH, signed, NOW, RequestNonce::from_bytes([5; 16]));
    let claim = RequestClaim::parse(&header).unwrap();
    claim.verify(signed, NOW).unwrap();
    assert_eq!((claim.mesh, claim.key), (MESH, alice.public_key()));
    for header in changed_texts(&header) {
        let verified = RequestClaim::parse(&header).and_then(|claim| claim.check_signature(signed));
        assert!(verified.is_err(), "{header}");
    }
    for other in [
        Signed::new("GET", signed.target, b"{}"),
        Signed::new("POST", "/mesh/v1/messages?a=2", b"{}"),
        Signed::new("POST", "/mesh/v1/messages", b"{}"),
        Signed::new("POST", signed.target, b"{ }"),
        Signed::new("POST", signed.target, b""),
    ] {
        assert_eq!(claim.verify(other, NOW).unwrap_err().code(), Code::SignatureDoesNotMatch, "{other:?}");
    }
    for header in [
        header.replace("mesh=", "mesh={").replace(",key", "},key"),
        header.replace("time=", "time=+"),
        header.replace("time=", "time=0"),
        header.replace(",", ", "),
        header.replace("Waybill-Member", "waybill-member"),
        format!("{header},more=1"),
        format!("{header}{}", " ".repeat(10_000)),
    ] {
        assert_eq!(RequestClaim::parse(&header).unwrap_err().code(), Code::IncompleteSignature, "{header:.400}");
    }
}

#[test]
fn clocks_may_be_a_minute_apart() {
    let alice = identity(1);
    let nonce = ChallengeNonce::from_bytes([5; 32]);
    let seconds = challenge::unix_seconds(NOW);
    for (apart, good) in [(0, true), (60, true), (-60, true), (61, false), (-61, false), (i64::MAX - seconds, false)] {
        let time = seconds + apart;
        let signature = challenge::sign(&alice, &nonce, MESH, time);
        let verified = challenge::verify(&alice.public_key(), &nonce, MESH, time, &signature, NOW);
        assert_eq!(verified.is_ok(), good, "{apart}");
        assert!(good || verified.unwrap_err().code() == Code::RequestTimeTooSkewed, "{apart}");
    }
    assert!(challenge::check_skew(i64::MIN, NOW).is_err());
}

#[test]
fn challenges() {
    let alice = identity(1);
    let key = alice.public_key();
    let nonce = ChallengeNonce::from_bytes([5; 32]);
    let time = challenge::unix_seconds(NOW);
    let signature = challenge::sign(&alice, &nonce, MESH, time);
    let verify = |nonce: &ChallengeNonce, mesh, time, signature: &Signature| {
        challenge::verify(&key, nonce, mesh, time, signature, NOW).is_ok()
    };
    assert!(verify(&nonce, MESH, time, &signature));
    for signature in changed_signatures(&signature) {
        assert!(!verify(&nonce, MESH, time, &signature));
    }
    for nonce in changed_array(nonce.as_bytes()) {
        assert!(!verify(&ChallengeNonce::from_bytes(nonce), MESH, time, &signature));
    }
    assert!(!verify(&nonce, MeshId(Uuid::from_u128(8)), time, &signature));
    assert!(!verify(&nonce, MESH, time + 1, &signature));
}

#[test]
fn joins() {
    let (bob, eve) = (identity(2), identity(3));
    let secret = BoxSecret::from_bytes([7; 32]);
    let challenge = JoinChallenge { nonce: ChallengeNonce::from_bytes([5; 32]), box_key: secret.public() };
    let (name, other) = ("bob".parse().unwrap(), "bobby".parse().unwrap());
    let joining = Joining { mesh: MESH, invite: InviteId(Uuid::from_u128(9)), name: &name };
    let proof = JoinProof::make(&bob, &challenge, joining, &SeededEntropy::new(1)).unwrap();
    let verify =
        |proof: &JoinProof, keys: &MemberKeys, joining| proof.verify(keys, &challenge, joining, &secret).is_ok();
    assert!(verify(&proof, &bob.public(), joining));
    for signature in changed_signatures(&proof.signature) {
        assert!(!verify(&JoinProof { signature, ..proof.clone() }, &bob.public(), joining));
    }
    for boxed in changed(&proof.boxed.0) {
        assert!(!verify(&JoinProof { boxed: Base64(boxed), ..proof.clone() }, &bob.public(), joining));
    }
    assert!(!verify(&proof, &eve.public(), joining));
    assert!(!verify(&proof, &bob.public(), Joining { name: &other, ..joining }));
    assert!(!verify(&proof, &bob.public(), Joining { mesh: MeshId(Uuid::nil()), ..joining }));
    assert!(!verify(&proof, &bob.public(), Joining { invite: InviteId(Uuid::nil()), ..joining }));
    // Its own Ed25519 key, and a box key that it has signed but does not hold: the box is what gives it away.
    let x25519 = bob.public().x25519;
    let signature = eve.sign(crate::Context::BoxKey, x25519.as_bytes());
    let borrowed = MemberKeys { ed25519: eve.public_key(), x25519, x25519_signature: signature };
    borrowed.verify().unwrap();
    let claimed = JoinProof::make(&eve, &challenge, joining, &SeededEntropy::new(1)).unwrap();
    assert!(!verify(&claimed, &borrowed, joining));
}

#[test]
fn rotations() {
    let (old, new, eve) = (identity(1), identity(2), identity(3));
    let rotation = Rotation::sign(MESH, &old, &new);
    rotation.verify(MESH).unwrap();
    assert!(rotation.verify(MeshId(Uuid::nil())).is_err());
    for signature in changed_signatures(&rotation.old_signature) {
        assert!(Rotation { old_signature: signature, ..rotation }.verify(MESH).is_err());
    }
    for signature in changed_signatures(&rotation.new_signature) {
        assert!(Rotation { new_signature: signature, ..rotation }.verify(MESH).is_err());
    }
    assert!(Rotation { old: eve.public_key(), ..rotation }.verify(MESH).is_err());
    assert!(Rotation { keys: eve.public(), ..rotation }.verify(MESH).is_err());
    assert!(Rotation::sign(MESH, &old, &old).verify(MESH).is_err());
}

/// What binds a message: changed one at a time, each makes the signature wrong.
#[test]
fn messages() {
    let (alice, bob) = (identity(1), identity(2));
    let (id, other_id): (ClientMessageId, ClientMessageId) = ("m-1".parse().unwrap(), "m-2".parse().unwrap());
    let meta = || Some(Meta::parse(r#"{"a":1}"#).unwrap());
    let mut dm = Envelope::new(Destination::dm(&bob.public_key()), Vec::new());
    dm.reply_to = Some("asked".parse().unwrap());
    let topic = Envelope { epoch: Some(2), ..Envelope::new(Destination::topic(&"build".parse().unwrap()), Vec::new()) };
    for envelope in [dm, topic] {
        let carrier = Carrier { mesh: MESH, id: &id, envelope: &envelope };
        let plain = Plain::sign(&alice, carrier, "hello".to_owned(), meta()).unwrap();
        plain.verify(carrier).unwrap();
        let wrong = |carrier: Carrier<'_>| plain.verify(carrier).unwrap_err().code() == Code::SignatureDoesNotMatch;
        assert!(wrong(Carrier { mesh: MeshId(Uuid::nil()), ..carrier }), "another mesh");
        assert!(wrong(Carrier { id: &other_id, ..carrier }), "another id");
        for (what, other) in [
            ("its sender", Envelope { destination_ref: alice.public_key().to_string(), ..envelope.clone() }),
            ("another topic", Envelope { destination_ref: "builds".to_owned(), ..envelope.clone() }),
            ("another kind", Envelope { destination_kind: DestinationKind::Queue, ..envelope.clone() }),
            ("another epoch", Envelope { epoch: Some(3), ..envelope.clone() }),
            ("another question", Envelope { reply_to: Some(other_id.clone()), ..envelope.clone() }),
            ("more urgent", Envelope { priority: Priority::Now, ..envelope.clone() }),
            ("a mention", Envelope { mentions: vec![bob.public_key()], ..envelope.clone() }),
        ] {
            assert!(wrong(Carrier { envelope: &other, ..carrier }), "{what}");
        }
        // What is no text of a message any more is not read; what is one is not signed.
        for bytes in changed(&plain.to_bytes().unwrap()) {
            assert!(Plain::from_bytes(&bytes).and_then(|plain| plain.verify(carrier)).is_err());
        }
        let others = Plain::sign(&bob, carrier, "hello".to_owned(), meta()).unwrap();
        let claimed = String::from_utf8(others.to_bytes().unwrap().to_vec()).unwrap();
        let claimed = claimed.replace(&bob.public_key().to_string(), &alice.public_key().to_string());
        assert!(Plain::from_bytes(claimed.as_bytes()).unwrap().verify(carrier).is_err(), "in another's name");
    }
    for text in [r#"{"body":"hello"}"#, r#"{"body":"hello","version":1}"#] {
        assert!(Plain::from_bytes(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn boxes_of_epochs() {
    let (alice, bob, eve) = (identity(1), identity(2), identity(3));
    let entropy = SeededEntropy::new(4);
    let key = TopicKey::generate(&entropy);
    let (topic, other) = ("build".parse().unwrap(), "builds".parse().unwrap());
    let of = EpochOf { mesh: MESH, topic: &topic, epoch: 2 };
    let boxed = EpochBox::seal(&alice, of, &bob.public(), &key, &entropy).unwrap();
    let open = |boxed: &EpochBox, of| boxed.open(of, &alice.public_key(), bob.box_secret());
    assert_eq!(open(&boxed, of).unwrap(), key);
    for sealed in changed(&boxed.sealed.0) {
        assert!(open(&EpochBox { sealed: Base64(sealed), ..boxed.clone() }, of).is_err());
    }
    for signature in changed_signatures(&boxed.signature) {
        assert!(open(&EpochBox { signature, ..boxed.clone() }, of).is_err());
    }
    assert!(open(&EpochBox { recipient: eve.public_key(), ..boxed.clone() }, of).is_err());
    for of in [EpochOf { epoch: 3, ..of }, EpochOf { topic: &other, ..of }, EpochOf { mesh: MeshId(Uuid::nil()), ..of }]
    {
        assert_eq!(open(&boxed, of).unwrap_err().code(), Code::SignatureDoesNotMatch, "{of:?}");
    }
    assert!(boxed.open(of, &eve.public_key(), bob.box_secret()).is_err());
    assert_eq!(boxed.open(of, &alice.public_key(), eve.box_secret()).unwrap_err().code(), Code::BoxUnreadable);
}

#[test]
fn keys_of_members() {
    let keys = identity(1).public();
    for signature in changed_signatures(&keys.x25519_signature) {
        assert!(MemberKeys { x25519_signature: signature, ..keys }.verify().is_err());
    }
    for key in changed_array(keys.x25519.as_bytes()) {
        assert!(MemberKeys { x25519: BoxPublicKey::from_bytes(key), ..keys }.verify().is_err());
    }
    for key in changed_array(keys.ed25519.as_bytes()) {
        assert!(MemberKeys { ed25519: PublicKey::from_bytes(key), ..keys }.verify().is_err());
    }
}
