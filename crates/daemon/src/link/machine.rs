//! What a frame of the broker means at which moment, without a socket: frames in, actions out.
//!
//! `challenge → hello → hello_ok → feature_negotiation_request → _response`, then everything else in any order. A frame that
//! comes out of turn ends the connection; one that is no frame at all is the reader's to refuse.

use waybill_kernel::{Code, Error};
use waybill_mesh_protocol::challenge::ChallengeNonce;
use waybill_mesh_protocol::frames::{
    Deliver, EpochWanted, Framed, HelloOk, HistoryPage, KeypairRotated, MemberGone, MemberRenamed, Peer, Refused as No,
    SendResult,
};
use waybill_mesh_protocol::negotiation::{FeatureResponse, Features};
use waybill_mesh_protocol::{ClientFrame, Edition, EpochKey, MeshId, ServerFrame};

/// Under which history is asked for, so that a refusal of it is known as one.
pub const HISTORY: &str = "history";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Challenge,
    Hello,
    Features,
    Ready,
}

/// What to do about a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answer the challenge with a signature.
    Sign(ChallengeNonce),
    Send(ClientFrame),
    /// Both sides agree: everything else may begin.
    Ready(Box<Agreed>),
    Settle(Box<SendResult>),
    Store(Box<Deliver>),
    Page(HistoryPage),
    Joined(Peer),
    Left(MemberGone),
    Renamed(MemberRenamed),
    Rotated(Box<KeypairRotated>),
    Revoked(MemberGone),
    Learn(EpochKey),
    Mint(EpochWanted),
    /// Something this side has asked for was refused.
    Note(No),
    /// The broker is there.
    Alive,
    /// The connection ends.
    End(Ended),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    pub hello: HelloOk,
    pub features: Features,
    /// As it came, for those who ask the daemon what its broker can do.
    pub response: FeatureResponse,
}

/// Why a connection ends by what this side has found.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Connecting again would meet the same: the daemon ends.
    Finally {
        code: Code,
        message: String,
    },
    /// Another connection may do better.
    OutOfTurn(&'static str),
    Refused(String),
}

/// What this side believes of its mesh.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub mesh: MeshId,
    pub plaintext: bool,
}

#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    expected: Expected,
    edition: Edition,
    hello: Option<HelloOk>,
}

impl Machine {
    pub fn new(expected: Expected, edition: Edition) -> Self {
        Self { phase: Phase::Challenge, expected, edition, hello: None }
    }

    pub fn on_frame(&mut self, framed: Framed<ServerFrame>) -> Action {
        match (self.phase, framed.frame) {
            (_, ServerFrame::Ping {}) => Action::Send(ClientFrame::Pong {}),
            (_, ServerFrame::Pong {}) => Action::Alive,
            // The broker may say this of ourselves before anything else is said.
            (_, ServerFrame::MemberRevoked(gone)) => Action::Revoked(gone),
            (Phase::Challenge, ServerFrame::Challenge(challenge)) => {
                self.phase = Phase::Hello;
                Action::Sign(challenge.nonce)
            }
            (Phase::Hello, ServerFrame::HelloOk(hello)) => self.greeted(hello),
            (Phase::Features, ServerFrame::FeatureNegotiationResponse(response)) => self.negotiated(response),
            (Phase::Ready, frame) => Self::when_ready(framed.id.as_ref().map(|id| id.as_str()), frame),
            (phase, ServerFrame::Error(refused)) => {
                let message = format!("The broker refused during {phase:?}: {} ({}).", refused.message, refused.error);
                Action::End(Ended::Refused(message))
            }
            (_, frame) => Action::End(Ended::OutOfTurn(name(&frame))),
        }
    }

    fn greeted(&mut self, hello: HelloOk) -> Action {
        // A broker that calls an encrypted mesh plain would be handed plain text.
        if hello.mesh != self.expected.mesh || hello.plaintext != self.expected.plaintext {
            let message = "The broker describes another mesh than the one that was joined.".to_owned();
            return Action::End(Ended::Finally { code: Code::FeatureParametersInvalid, message });
        }
        self.hello = Some(hello);
        self.phase = Phase::Features;
        Action::Send(ClientFrame::FeatureNegotiationRequest(self.edition.request()))
    }

    fn negotiated(&mut self, response: FeatureResponse) -> Action {
        let Some(hello) = self.hello.take() else {
            return Action::End(Ended::OutOfTurn("feature_negotiation_response"));
        };
        match Features::agreed_by(&self.edition, &response) {
            Ok(features) => {
                self.phase = Phase::Ready;
                Action::Ready(Box::new(Agreed { hello, features, response }))
            }
            Err(error) => Action::End(finally(&error)),
        }
    }

    fn when_ready(id: Option<&str>, frame: ServerFrame) -> Action {
        match frame {
            ServerFrame::SendResult(result) => Action::Settle(result),
            ServerFrame::Deliver(deliver) => Action::Store(deliver),
            ServerFrame::HistoryPage(page) => Action::Page(page),
            ServerFrame::PeerJoin(peer) => Action::Joined(peer),
            ServerFrame::PeerLeave(gone) => Action::Left(gone),
            ServerFrame::MemberRenamed(renamed) => Action::Renamed(renamed),
            ServerFrame::MemberKeypairRotated(rotated) => Action::Rotated(Box::new(rotated)),
            ServerFrame::EpochKey(key) => Action::Learn(key),
            ServerFrame::EpochWanted(wanted) => Action::Mint(wanted),
            ServerFrame::Error(refused) if id == Some(HISTORY) => {
                Action::End(Ended::Refused(format!("{} ({})", refused.message, refused.error)))
            }
            ServerFrame::Error(refused) => Action::Note(refused),
            ServerFrame::MemberRevoked(gone) => Action::Revoked(gone),
            ServerFrame::Ping {} => Action::Send(ClientFrame::Pong {}),
            ServerFrame::Pong {} => Action::Alive,
            frame @ (ServerFrame::Challenge(_)
            | ServerFrame::HelloOk(_)
            | ServerFrame::FeatureNegotiationResponse(_)) => Action::End(Ended::OutOfTurn(name(&frame))),
        }
    }
}

pub fn finally(error: &Error) -> Ended {
    Ended::Finally { code: error.code(), message: error.message().to_owned() }
}

fn name(frame: &ServerFrame) -> &'static str {
    match frame {
        ServerFrame::Challenge(_) => "challenge",
        ServerFrame::HelloOk(_) => "hello_ok",
        ServerFrame::FeatureNegotiationResponse(_) => "feature_negotiation_response",
        ServerFrame::SendResult(_) => "send_result",
        ServerFrame::Deliver(_) => "deliver",
        ServerFrame::HistoryPage(_) => "history_page",
        ServerFrame::PeerJoin(_) => "peer_join",
        ServerFrame::PeerLeave(_) => "peer_leave",
        ServerFrame::MemberRenamed(_) => "member_renamed",
        ServerFrame::MemberKeypairRotated(_) => "member_keypair_rotated",
        ServerFrame::MemberRevoked(_) => "member_revoked",
        ServerFrame::EpochKey(_) => "epoch_key",
        ServerFrame::EpochWanted(_) => "epoch_wanted",
        ServerFrame::Error(_) => "error",
        ServerFrame::Ping {} => "ping",
        ServerFrame::Pong {} => "pong",
    }
}
