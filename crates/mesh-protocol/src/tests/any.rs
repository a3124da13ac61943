//! Any value of each type that travels.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::Value;
use waybill_kernel::Time;
use waybill_kernel::entropy::SeededEntropy;
use waybill_kernel::id::Uuid;

use crate::bytes::Base64;
use crate::challenge::ChallengeNonce;
use crate::envelope::{Destination, DestinationKind, Envelope, Priority};
use crate::epoch::{EpochBox, EpochKey};
use crate::fingerprint::Fingerprint;
use crate::frames::{
    Challenge, ClientFrame, Deliver, Delivered, EpochBoxes, EpochWanted, Hello, HelloOk, HistoryPage, HistoryRequest,
    KeypairRotated, MemberGone, MemberRenamed, Message, Peer, Refused, Send, SendResult, ServerFrame, Subscriber,
};
use crate::identity::{Identity, MemberKeys};
use crate::ids::{DeliveryId, HistoryId, InviteId, MemberId, MeshId, MessageId};
use crate::invite::Invite;
use crate::keys::{KeyId, PublicKey, Signature};
use crate::meta::Meta;
use crate::names::{ClientMessageId, MemberName, Slug, TopicName};
use crate::negotiation::{FeatureRequest, Features};
use crate::rotation::Rotation;

pub fn identity(seed: u64) -> Identity {
    Identity::generate(&SeededEntropy::new(seed))
}

/// Few: each costs a signature.
pub fn member() -> impl Strategy<Value = MemberKeys> {
    (0..4_u64).prop_map(|seed| identity(seed).public())
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<[u8; 16]>().prop_map(Uuid::from_bytes)
}

fn key() -> impl Strategy<Value = PublicKey> {
    any::<[u8; 32]>().prop_map(PublicKey::from_bytes)
}

fn signature() -> impl Strategy<Value = Signature> {
    vec(any::<u8>(), 64).prop_map(|bytes| Signature::from_slice(&bytes).unwrap())
}

/// What `Display` of a time can write: from the year 0 to 9999.
pub fn time() -> impl Strategy<Value = Time> {
    (0..253_402_207_200_000_000_i64).prop_map(Time::from_micros)
}

pub fn id() -> impl Strategy<Value = ClientMessageId> {
    r"[^\p{Cc}]{1,255}".prop_map(|text| text.parse().unwrap())
}

fn topic() -> impl Strategy<Value = TopicName> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}".prop_map(|text| text.parse().unwrap())
}

fn slug() -> impl Strategy<Value = Slug> {
    "[a-z0-9][a-z0-9-]{0,62}".prop_map(|text| text.parse().unwrap())
}

fn name() -> impl Strategy<Value = MemberName> {
    "[a-zA-Zà-ö]{1,20}".prop_map(|text| text.parse().unwrap())
}

fn body() -> impl Strategy<Value = Base64> {
    vec(any::<u8>(), 0..200).prop_map(Base64)
}

/// Without NUL, and with integers that a double counts.
pub fn meta() -> impl Strategy<Value = Meta> {
    let text = || r"[^\x00]{0,12}";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((text(), inner), 0..5).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    tree.prop_map(|value| Meta::from_value(value).unwrap())
}

fn destination() -> impl Strategy<Value = Destination> {
    prop_oneof![
        topic().prop_map(|topic| Destination::topic(&topic)),
        key().prop_map(|key| Destination::dm(&key)),
        id().prop_map(|id| Destination { kind: DestinationKind::Queue, reference: id.into_string() }),
    ]
}

pub fn envelope() -> impl Strategy<Value = Envelope> {
    let priority = prop_oneof![Just(Priority::Now), Just(Priority::Next), Just(Priority::Low)];
    // Null is the same as nothing where it is optional.
    let meta = option::of(meta().prop_filter("not null", |meta| !meta.value().is_null()));
    let key_id = option::of(any::<[u8; 8]>().prop_map(KeyId::from_bytes));
    (destination(), body(), option::of(id()), priority, meta, vec(key(), 0..4), key_id, option::of(any::<u32>()))
        .prop_map(|(destination, body, reply_to, priority, meta, mentions, key_id, epoch)| Envelope {
            reply_to,
            priority,
            meta,
            mentions,
            key_id,
            epoch,
            ..Envelope::new(destination, body.0)
        })
}

fn epoch_box() -> impl Strategy<Value = EpochBox> {
    (key(), body(), signature()).prop_map(|(recipient, sealed, signature)| EpochBox { recipient, sealed, signature })
}

fn message() -> impl Strategy<Value = Message> {
    (id(), uuid(), uuid(), any::<u64>(), uuid(), name(), member(), time(), envelope()).prop_map(
        |(client_message_id, message, history, seq, sender_id, sender_name, sender, accepted_at, envelope)| Message {
            client_message_id,
            broker_message_id: MessageId(message),
            history_id: HistoryId(history),
            seq,
            sender_id: MemberId(sender_id),
            sender_name,
            sender,
            accepted_at,
            envelope,
        },
    )
}

/// One that is always the same.
pub fn delivery() -> ServerFrame {
    let message = Message {
        client_message_id: "a".parse().unwrap(),
        broker_message_id: MessageId(Uuid::nil()),
        history_id: HistoryId(Uuid::nil()),
        seq: 7,
        sender_id: MemberId(Uuid::nil()),
        sender_name: "alice".parse().unwrap(),
        sender: identity(1).public(),
        accepted_at: Time::EPOCH,
        envelope: Envelope::new(Destination::topic(&"build".parse().unwrap()), b"hello".to_vec()),
    };
    ServerFrame::Deliver(Box::new(Deliver { delivery_id: DeliveryId(Uuid::max()), message }))
}

pub fn client_frame() -> impl Strategy<Value = ClientFrame> {
    let hello = (uuid(), key(), any::<i64>(), signature(), option::of("[a-z/0-9.]{0,20}")).prop_map(
        |(mesh, key, time, signature, client)| {
            ClientFrame::Hello(Hello { mesh: MeshId(mesh), key, time, signature, client })
        },
    );
    let features = (vec("[a-z_]{0,20}", 0..5), vec("[a-z_]{0,20}", 0..5))
        .prop_map(|(require, optional)| ClientFrame::FeatureNegotiationRequest(FeatureRequest { require, optional }));
    let send = (id(), envelope(), any::<bool>()).prop_map(|(client_message_id, envelope, with)| {
        let request_fingerprint = with.then(|| envelope.fingerprint().unwrap());
        ClientFrame::Send(Box::new(Send { client_message_id, envelope, request_fingerprint }))
    });
    let epochs = (topic(), any::<u32>(), vec(epoch_box(), 0..4))
        .prop_map(|(topic, epoch, boxes)| ClientFrame::EpochBoxes(EpochBoxes { topic, epoch, boxes }));
    prop_oneof![
        hello,
        features,
        send,
        epochs,
        uuid().prop_map(|id| ClientFrame::Delivered(Delivered { delivery_id: DeliveryId(id) })),
        (any::<u64>(), any::<u32>()).prop_map(|(after, limit)| ClientFrame::History(HistoryRequest { after, limit })),
        Just(ClientFrame::Ping {}),
        Just(ClientFrame::Pong {}),
    ]
}

fn send_result() -> impl Strategy<Value = SendResult> {
    (id(), uuid(), uuid(), time(), any::<[u8; 32]>(), 0..4).prop_map(|(id, message, history, time, print, kind)| {
        let (message, history) = (MessageId(message), HistoryId(history));
        match kind {
            0 => SendResult::accepted(id, message, history),
            1 => SendResult::duplicate(id, message, Some(history), true, time),
            2 => SendResult::conflict(id, Some(&Fingerprint::from_bytes(print))),
            _ => SendResult::refused(id, &waybill_kernel::Error::invalid("No.").with("retry_after", 3)),
        }
    })
}

fn gone() -> impl Strategy<Value = MemberGone> {
    (uuid(), key()).prop_map(|(id, key)| MemberGone { member_id: MemberId(id), key })
}

fn about_members() -> impl Strategy<Value = ServerFrame> {
    let join = (uuid(), name(), member(), any::<bool>()).prop_map(|(id, name, keys, online)| {
        ServerFrame::PeerJoin(Peer { member_id: MemberId(id), name, keys, online })
    });
    let renamed = (uuid(), key(), name())
        .prop_map(|(id, key, name)| ServerFrame::MemberRenamed(MemberRenamed { member_id: MemberId(id), key, name }));
    let rotated = uuid().prop_map(|id| {
        let rotation = Rotation::sign(MeshId(id), &identity(1), &identity(2));
        ServerFrame::MemberKeypairRotated(KeypairRotated { member_id: MemberId(id), rotation })
    });
    prop_oneof![
        join,
        renamed,
        rotated,
        gone().prop_map(ServerFrame::PeerLeave),
        gone().prop_map(ServerFrame::MemberRevoked),
    ]
}

fn about_topics() -> impl Strategy<Value = ServerFrame> {
    let epoch = (topic(), any::<u32>(), key(), epoch_box())
        .prop_map(|(topic, epoch, minter, boxed)| ServerFrame::EpochKey(EpochKey { topic, epoch, minter, boxed }));
    let subscriber = (uuid(), member()).prop_map(|(id, keys)| Subscriber { member_id: MemberId(id), keys });
    let wanted = (topic(), any::<u32>(), vec(subscriber, 0..3))
        .prop_map(|(topic, epoch, subscribers)| ServerFrame::EpochWanted(EpochWanted { topic, epoch, subscribers }));
    prop_oneof![epoch, wanted]
}

pub fn server_frame() -> impl Strategy<Value = ServerFrame> {
    let hello = (uuid(), slug(), uuid(), name(), any::<bool>()).prop_map(|(mesh, slug, id, name, plaintext)| {
        let (mesh, member_id, broker_version) = (MeshId(mesh), MemberId(id), "0.1.0".to_owned());
        ServerFrame::HelloOk(HelloOk { mesh, slug, member_id, name, plaintext, broker_version })
    });
    let deliver = (uuid(), message())
        .prop_map(|(id, message)| ServerFrame::Deliver(Box::new(Deliver { delivery_id: DeliveryId(id), message })));
    let page = (vec(message(), 0..3), any::<u64>(), any::<bool>())
        .prop_map(|(messages, next_after, more)| ServerFrame::HistoryPage(HistoryPage { messages, next_after, more }));
    let features = Features::default().answer(&FeatureRequest::default()).unwrap();
    prop_oneof![
        any::<[u8; 32]>()
            .prop_map(|nonce| ServerFrame::Challenge(Challenge { nonce: ChallengeNonce::from_bytes(nonce) })),
        hello,
        Just(ServerFrame::FeatureNegotiationResponse(features)),
        send_result().prop_map(|result| ServerFrame::SendResult(Box::new(result))),
        deliver,
        page,
        about_members(),
        about_topics(),
        Just(ServerFrame::Error(Refused::from(&waybill_kernel::Error::invalid("No.")))),
        Just(ServerFrame::Ping {}),
        Just(ServerFrame::Pong {}),
    ]
}

/// Of `identity(1)`.
pub fn invite() -> impl Strategy<Value = Invite> {
    (uuid(), slug(), uuid(), 1..=u32::MAX, time(), any::<bool>()).prop_map(
        |(mesh, slug, invite, uses, expires_at, plaintext)| {
            let owner = identity(1).public();
            Invite {
                server: "http://127.0.0.1:7000".to_owned(),
                mesh: MeshId(mesh),
                slug,
                invite_id: InviteId(invite),
                owner,
                issuer: owner.ed25519,
                uses,
                expires_at,
                plaintext,
            }
        },
    )
}
