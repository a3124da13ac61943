//! Fuzz targets of the readers in this crate. What they accept is written and read again, and nothing of it passes for signed.

use std::fmt::Debug;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use waybill_fuzz::{Target, feed};
use waybill_kernel::Time;
use waybill_kernel::id::Uuid;

use crate::bytes::write_base64url;
use crate::envelope::{Destination, Envelope};
use crate::frames::{ClientFrame, FRAME_BYTES_MAX, Framed, ServerFrame};
use crate::identity::{Context, Identity};
use crate::ids::MeshId;
use crate::invite::{Invite, PREFIX};
use crate::meta::Meta;
use crate::negotiation::Features;
use crate::plain::{Carrier, Plain};
use crate::request_signature::{RequestClaim, Signed};

fn read<F: DeserializeOwned + Serialize + PartialEq + Debug>(input: &[u8]) -> Option<F> {
    let frame = Framed::<F>::read(input).ok()?;
    // Numbers may be written longer than they came.
    if input.len() < FRAME_BYTES_MAX / 2 {
        let written = frame.write().unwrap();
        Framed::<F>::read(written.as_bytes()).unwrap();
    }
    Some(frame.frame)
}

#[test]
fn fuzz_mesh_client_frame() {
    const SEEDS: &[&str] = &[
        r#"{"t":"ping"}"#,
        r#"{"t":"history","id":"h","after":0,"limit":100}"#,
        r#"{"t":"delivered","delivery_id":"0190a5b4-1c2d-7e3f-8a9b-0c1d2e3f4a5b"}"#,
        r#"{"t":"feature_negotiation_request","require":["max_payload"],"optional":[]}"#,
        r#"{"t":"send","client_message_id":"a","envelope":{"version":1,"destination_kind":"topic","destination_ref":"b","priority":"now","meta":{"a":[1,2.5,"x",null]},"body":"aGVsbG8=","mentions":[],"epoch":1}}"#,
        r#"{"t":"epoch_boxes","topic":"b","epoch":2,"boxes":[]}"#,
    ];
    let read = |input: &[u8]| {
        let Some(frame) = read::<ClientFrame>(input) else { return false };
        if let ClientFrame::Send(send) = frame {
            send.envelope.fingerprint().unwrap();
            drop((send.envelope.check(true), send.envelope.check(false), send.envelope.payload_bytes()));
        }
        true
    };
    feed(Target { name: "mesh_client_frame", seeds: SEEDS, read });
}

#[test]
fn fuzz_mesh_server_frame() {
    const SEEDS: &[&str] = &[
        r#"{"t":"pong","id":"a"}"#,
        r#"{"t":"challenge","nonce":"0000000000000000000000000000000000000000000000000000000000000000"}"#,
        r#"{"t":"history_page","messages":[],"next_after":1,"more":false}"#,
        r#"{"t":"error","error":"invalid_request","message":"m","help":"h"}"#,
        r#"{"t":"send_result","client_message_id":"a","status":429,"error":"e","retry_after":1}"#,
        r#"{"t":"feature_negotiation_response","supported":{"key_epoch":{"version":1,"max_concurrent_epochs":2}},"missing_required":[]}"#,
    ];
    let read = |input: &[u8]| {
        let Some(frame) = read::<ServerFrame>(input) else { return false };
        if let ServerFrame::FeatureNegotiationResponse(response) = frame {
            drop(Features::agreed(&response));
        }
        true
    };
    feed(Target { name: "mesh_server_frame", seeds: SEEDS, read });
}

/// The file of the member that the seeds are of, in `vectors/`.
const KEYPAIR: &str = r#"{"version": 1, "ed25519_pubkey": "e2fa871ada42479db8cacf5d379bf1303c68c3b9846f9a2c07fbd6d6970c9e03", "ed25519_privkey": "1597ca0bd23ec9c946d1206495f690a53e1df423b7e5e8e59f11c9d562e99935", "x25519_pubkey": "4c2a50d0dafb172dc32f748f6666f73868bef9e87056dd5b3979d323bb7f5842", "x25519_privkey": "ea27856df0503a25194355d4023f8fb93bfac423f0aedc08d69f049d66ca84ff"}"#;

/// The input as the JSON of an invite that its owner has signed, and as texts that nobody has.
#[test]
fn fuzz_mesh_invite() {
    static OWNER: LazyLock<Identity> = LazyLock::new(|| Identity::from_json(KEYPAIR).unwrap());
    const SEEDS: &[&str] = &[
        r#"{"server":"http://127.0.0.1:7000","mesh":"0190a5b4-1c2d-7e3f-8a9b-0c1d2e3f4a5b","slug":"team","invite_id":"0190a5b4-1c2d-7e3f-8a9b-aaaaaaaaaaaa","owner":{"ed25519":"e2fa871ada42479db8cacf5d379bf1303c68c3b9846f9a2c07fbd6d6970c9e03","x25519":"4c2a50d0dafb172dc32f748f6666f73868bef9e87056dd5b3979d323bb7f5842","x25519_signature":"EHE9uFtkcDTgDTrRpNfqf-adHLNQWHm0Uf0pgkasllYw7FFQxiircMsMDapXKsJn_rQ-eGHfjXkZd9qFGzQHCw"},"issuer":"e2fa871ada42479db8cacf5d379bf1303c68c3b9846f9a2c07fbd6d6970c9e03","uses":1,"expires_at":"2023-11-15T22:13:20.000000Z","plaintext":false}"#,
    ];
    let read = |input: &[u8]| {
        let (text, json) = (String::from_utf8_lossy(input), write_base64url(input));
        let other = write_base64url(&[7; 64]);
        for text in [text.to_string(), format!("{PREFIX}{text}"), format!("{PREFIX}{json}.{other}")] {
            assert!(Invite::parse(&text).is_err(), "nobody has signed this");
        }
        let signature = OWNER.sign(Context::Invite, input);
        let Ok(invite) = Invite::parse(&format!("{PREFIX}{json}.{signature}")) else { return false };
        assert_eq!(Invite::parse(&invite.sign(&OWNER).unwrap()).unwrap(), invite);
        drop(Invite::parse_and_verify(&format!("{PREFIX}{json}.{signature}"), Time::EPOCH));
        true
    };
    feed(Target { name: "mesh_invite", seeds: SEEDS, read });
}

#[test]
fn fuzz_mesh_request_claim() {
    const SEEDS: &[&str] = &[
        "Waybill-Member mesh=0190a5b4-1c2d-7e3f-8a9b-0c1d2e3f4a5b,key=d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a,time=1700000000,nonce=000102030405060708090a0b0c0d0e0f,signature=5VZDAMNgrHKQhuLMgG6CioSHfx645dl02HPgZSJJAVVfuIIVkKM7rMYeOXAc-bRr0lv18FlbviRlUUFDjnoQCw",
        "Waybill-Member mesh=00000000-0000-0000-0000-000000000000,key=0100000000000000000000000000000000000000000000000000000000000000,time=-1,nonce=00000000000000000000000000000000,signature=AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ];
    let read = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let Ok(claim) = RequestClaim::parse(&text) else { return false };
        let signed = Signed::new("GET", "/mesh/v1/history", b"");
        assert!(claim.check_signature(signed).is_err(), "nobody has signed this");
        drop(claim.check_time(Time::EPOCH));
        true
    };
    feed(Target { name: "mesh_request_claim", seeds: SEEDS, read });
}

#[test]
fn fuzz_mesh_meta() {
    const SEEDS: &[&str] =
        &["{}", r#"{"a":[1,-2.5e3,"x",null,true],"b":{"c":"\u00e9\ud83d\ude00"}}"#, "9007199254740992"];
    let read = |input: &[u8]| {
        let Ok(meta) = Meta::parse(&String::from_utf8_lossy(input)) else { return false };
        let canonical = meta.canonical().unwrap();
        assert_eq!(Meta::parse(&canonical).unwrap().canonical().unwrap(), canonical);
        true
    };
    feed(Target { name: "mesh_meta", seeds: SEEDS, read });
}

#[test]
fn fuzz_mesh_plaintext() {
    const SEEDS: &[&str] = &[
        r#"{"version":1,"from":"e2fa871ada42479db8cacf5d379bf1303c68c3b9846f9a2c07fbd6d6970c9e03","body":"hello","signature":"5VZDAMNgrHKQhuLMgG6CioSHfx645dl02HPgZSJJAVVfuIIVkKM7rMYeOXAc-bRr0lv18FlbviRlUUFDjnoQCw"}"#,
        r#"{"body":"","from":"0100000000000000000000000000000000000000000000000000000000000000","meta":{"a":[1]},"signature":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","version":1}"#,
    ];
    let read = |input: &[u8]| {
        let Ok(plain) = Plain::from_bytes(input) else { return false };
        let bytes = plain.to_bytes().unwrap();
        assert_eq!(Plain::from_bytes(&bytes).unwrap().to_bytes().unwrap(), bytes);
        let (id, envelope) = ("a".parse().unwrap(), Envelope::new(Destination::dm(plain.signer()), Vec::new()));
        let carrier = Carrier { mesh: MeshId(Uuid::nil()), id: &id, envelope: &envelope };
        assert!(plain.verify(carrier).is_err(), "nobody has signed this");
        true
    };
    feed(Target { name: "mesh_plaintext", seeds: SEEDS, read });
}

#[test]
fn fuzz_mesh_keypair_file() {
    let read = |input: &[u8]| {
        let Ok(identity) = Identity::from_json(&String::from_utf8_lossy(input)) else { return false };
        identity.public().verify().unwrap();
        true
    };
    feed(Target { name: "mesh_keypair_file", seeds: &[KEYPAIR], read });
}
