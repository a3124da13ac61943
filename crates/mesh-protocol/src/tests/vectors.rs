//! What libsodium has made, by `vectors/make.py`: we make the same bytes, and read them.

use serde_json::Value;
use sha2::{Digest, Sha256};
use waybill_kernel::{Entropy, Time, hex};

use super::round_trip::opened_file;
use crate::bytes::Base64;
use crate::challenge::{self, ChallengeNonce};
use crate::crypto;
use crate::envelope::Envelope;
use crate::file::{CHUNK_BYTES, FileKey, FileSealer, sealed_bytes};
use crate::identity::{BoxSecret, Identity};
use crate::ids::{InviteId, MeshId};
use crate::invite::Invite;
use crate::join::{JoinChallenge, JoinProof, Joining};
use crate::meta::Meta;
use crate::passphrase;
use crate::plain::{Carrier, Plain};
use crate::request_signature::{RequestClaim, Signed, sign_request};
use crate::rotation::Rotation;
use crate::seal::{Nonce, TopicKey, open_dm, open_sealed_key, open_topic, seal_dm, seal_key_to, seal_topic};

macro_rules! vectors {
    ($name:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!("../../vectors/", $name, ".json"))).unwrap()
    };
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn bytes(value: &Value, name: &str) -> Vec<u8> {
    hex::decode(text(value, name)).unwrap()
}

fn array<const N: usize>(value: &Value, name: &str) -> [u8; N] {
    bytes(value, name).try_into().unwrap()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap()
}

fn list(value: &Value) -> &[Value] {
    let list = value.as_array().unwrap();
    assert!(!list.is_empty());
    list
}

fn identity(value: &Value) -> Identity {
    Identity::from_secrets(&array(value, "seed"), BoxSecret::from_bytes(array(value, "box_secret")))
}

fn of<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Gives what it is told to.
struct Given(Vec<u8>);

impl Entropy for Given {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
}

/// RFC 8032, section 7.1, tests 1 to 3: seed, public key, message, signature.
#[test]
fn signatures_of_the_rfc() {
    for [seed, public, message, signature] in [
        [
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ],
        [
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ],
        [
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ],
    ] {
        let (made, secret) = crypto::signing_key(&hex::decode_array(seed).unwrap());
        assert_eq!(hex::encode(&made), public);
        let message = hex::decode(message).unwrap();
        assert_eq!(hex::encode(&crypto::sign(&secret, &message).unwrap()), signature);
        assert!(crypto::verify(&made, &message, &hex::decode_array(signature).unwrap()));
    }
}

#[test]
fn identities() {
    for case in list(&vectors!("identities")) {
        let keys = identity(case).public();
        assert_eq!(keys, of(&case["public"]));
        assert_eq!(keys.key_id().to_string(), text(case, "key_id"));
        keys.verify().unwrap();
    }
}

#[test]
fn boxes() {
    let vectors = vectors!("boxes");
    let (sender, recipient) = (identity(&vectors["sender"]), identity(&vectors["recipient"]));
    for case in list(&vectors["cases"]) {
        let (plain, sealed) = (text(case, "plain").as_bytes(), bytes(case, "sealed"));
        let nonce = Nonce::from_bytes(array(case, "nonce"));
        assert_eq!(seal_dm(&sender, &recipient.public().x25519, nonce, plain).unwrap(), sealed);
        assert_eq!(*open_dm(recipient.box_secret(), &sender.public().x25519, &sealed).unwrap(), plain);
    }
}

#[test]
fn topics() {
    let vectors = vectors!("topics");
    let key = TopicKey::from_hex(text(&vectors, "key")).unwrap();
    for case in list(&vectors["cases"]) {
        let (plain, sealed) = (text(case, "plain").as_bytes(), bytes(case, "sealed"));
        assert_eq!(seal_topic(&key, Nonce::from_bytes(array(case, "nonce")), plain).unwrap(), sealed);
        assert_eq!(*open_topic(&key, &sealed).unwrap(), plain);
    }
}

#[test]
fn sealed_keys() {
    let vectors = vectors!("sealed_keys");
    let recipient = identity(&vectors["recipient"]);
    let key = TopicKey::from_hex(text(&vectors, "key")).unwrap();
    let ephemeral = Given(bytes(&vectors, "ephemeral"));
    let sealed = seal_key_to(&recipient.public().x25519, &key, &ephemeral).unwrap();
    assert_eq!(hex::encode(&sealed), text(&vectors, "sealed"));
    for name in ["sealed", "sealed_by_libsodium"] {
        assert_eq!(open_sealed_key(recipient.box_secret(), &bytes(&vectors, name)).unwrap(), key, "{name}");
    }
}

#[test]
fn files() {
    let vectors = vectors!("files");
    let key = FileKey::from_hex(text(&vectors, "key")).unwrap();
    for case in list(&vectors["short"]) {
        let (plain, sealed) = (bytes(case, "plain"), bytes(case, "sealed"));
        assert_eq!(sealed_bytes(number(case, "bytes")), Some(number(case, "sealed_bytes")));
        assert_eq!(opened_file(&key, &sealed).unwrap(), plain);
        let mut sealer = FileSealer::new(&key, &Given(bytes(&vectors, "prefix")));
        let made = [sealer.header().to_vec(), sealer.chunk(&plain, true).unwrap()].concat();
        assert_eq!(made, sealed);
    }
}

/// Too long to write down: byte `n` is `n % 251`, and of the encrypted file there is the digest.
#[test]
fn files_of_several_chunks() {
    let vectors = vectors!("files");
    let key = FileKey::from_hex(text(&vectors, "key")).unwrap();
    for case in list(&vectors["long"]) {
        let size = usize::try_from(number(case, "bytes")).unwrap();
        let plain: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut sealer = FileSealer::new(&key, &Given(bytes(&vectors, "prefix")));
        let mut sealed = sealer.header().to_vec();
        let mut chunks = plain.chunks(CHUNK_BYTES).peekable();
        while let Some(chunk) = chunks.next() {
            sealed.extend(sealer.chunk(chunk, chunks.peek().is_none()).unwrap());
        }
        assert_eq!(sealed.len() as u64, number(case, "sealed_bytes"));
        assert_eq!(hex::encode(&Sha256::digest(&sealed)), text(case, "sealed_sha256"), "{size} bytes");
    }
}

#[test]
fn passphrases() {
    for case in list(&vectors!("passphrases")) {
        let cost = passphrase::Cost {
            memory_kib: u32::try_from(number(case, "memory_kib")).unwrap(),
            passes: u32::try_from(number(case, "passes")).unwrap(),
            lanes: 1,
        };
        let passphrase = text(case, "passphrase").as_bytes();
        let key = passphrase::derive(cost, passphrase, &array(case, "salt")).unwrap();
        assert_eq!(hex::encode(key.as_ref()), text(case, "key"));
        let opened = passphrase::open(passphrase, &bytes(case, "sealed")).unwrap();
        assert_eq!(*opened, text(case, "plain").as_bytes());
    }
}

#[test]
fn fingerprints() {
    for case in list(&vectors!("fingerprints")) {
        let envelope: Envelope = of(&case["envelope"]);
        let jcs = envelope.meta.as_ref().map(Meta::canonical).transpose().unwrap().unwrap_or_default();
        assert_eq!(jcs, text(case, "meta_jcs"));
        let fingerprint = envelope.fingerprint().unwrap();
        assert_eq!(fingerprint.to_string(), text(case, "fingerprint"));
        assert_eq!(fingerprint.prefix(), text(case, "fingerprint")[..16]);
        // Who is mentioned and which key was used make no other request of it.
        let mentions = vec![crate::PublicKey::from_bytes([1; 32])];
        assert_eq!(Envelope { mentions, epoch: Some(3), ..envelope }.fingerprint().unwrap(), fingerprint);
    }
}

/// The text within the box, to the byte, with its signature.
#[test]
fn messages() {
    let vectors = vectors!("messages");
    let (sender, mesh): (_, MeshId) = (identity(&vectors["sender"]), of(&vectors["mesh"]));
    for case in list(&vectors["cases"]) {
        let envelope: Envelope = of(&case["envelope"]);
        let id = of(&case["client_message_id"]);
        let carrier = Carrier { mesh, id: &id, envelope: &envelope };
        let meta = case.get("meta").map(of);
        let plain = Plain::sign(&sender, carrier, text(case, "body").to_owned(), meta).unwrap();
        assert_eq!(String::from_utf8_lossy(&plain.to_bytes().unwrap()), text(case, "plain"));
        Plain::from_bytes(text(case, "plain").as_bytes()).unwrap().verify(carrier).unwrap();
    }
}

#[test]
fn statements() {
    let vectors = vectors!("statements");
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| identity(&vectors[name]));
    let mesh: MeshId = of(&vectors["mesh"]);
    let time = vectors["time"].as_i64().unwrap();
    let now = Time::from_micros(time * 1_000_000);

    let case = &vectors["challenge"];
    let nonce: ChallengeNonce = of(&case["nonce"]);
    let signature = challenge::sign(&alice, &nonce, mesh, time);
    assert_eq!(signature, of(&case["signature"]));
    challenge::verify(&alice.public_key(), &nonce, mesh, time, &signature, now).unwrap();

    let case = &vectors["request"];
    let signed = Signed::new(text(case, "method"), text(case, "target"), text(case, "body").as_bytes());
    let header = sign_request(&alice, mesh, signed, now, of(&case["nonce"]));
    assert_eq!(header, text(case, "authorization"));
    RequestClaim::parse(&header).unwrap().verify(signed, now).unwrap();

    let case = &vectors["invite"];
    let invite = Invite::parse_and_verify(text(case, "text"), now).unwrap();
    assert_eq!((invite.mesh, invite.invite_id, invite.owner), (mesh, of(&case["invite_id"]), alice.public()));
    assert_eq!(invite.sign(&alice).unwrap(), text(case, "text"));

    let case = &vectors["join"];
    let secret = BoxSecret::from_hex(text(case, "box_secret")).unwrap();
    let challenge = JoinChallenge { nonce: of(&case["nonce"]), box_key: secret.public() };
    let name = text(case, "name").parse().unwrap();
    let joining = Joining { mesh, invite: of::<InviteId>(&vectors["invite"]["invite_id"]), name: &name };
    let proof: JoinProof = of(&case["proof"]);
    proof.verify(&bob.public(), &challenge, joining, &secret).unwrap();
    let Base64(boxed) = &proof.boxed;
    assert_eq!(JoinProof::make(&bob, &challenge, joining, &Given(boxed[..24].to_vec())).unwrap(), proof);

    let rotation: Rotation = of(&vectors["rotation"]);
    rotation.verify(mesh).unwrap();
    assert_eq!(Rotation::sign(mesh, &bob, &carol), rotation);
}
