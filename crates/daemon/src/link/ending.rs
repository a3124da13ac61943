//! What the end of a connection means for the daemon: whether to connect again, or to exit and why.

use waybill_kernel::{Code, Error};
use waybill_mesh_protocol::CloseCode;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The broker closed with this code, or with none.
    Closed(Option<u16>),
    /// The socket broke, nothing came for too long, or what came could not be read.
    Lost(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// After a pause.
    Again,
    /// The daemon exits with the code of this error.
    Exit(Code),
}

/// `was_connected`: this run of the daemon was connected not long ago, so an older connection that the broker still keeps may be
/// its own: half open, or of a broker that was killed and whose connections are kept until their leases end.
pub fn next(ending: &Ending, was_connected: bool) -> Next {
    let Ending::Closed(Some(code)) = ending else { return Next::Again };
    match CloseCode::from_code(*code) {
        Some(CloseCode::Replaced) => Next::Exit(Code::ReplacedByNewerConnection),
        Some(CloseCode::AlreadyConnected) if was_connected => Next::Again,
        Some(CloseCode::AlreadyConnected) => Next::Exit(Code::MemberAlreadyConnected),
        Some(CloseCode::MemberRevoked) => Next::Exit(Code::MemberRevoked),
        Some(CloseCode::FeatureMissing) => Next::Exit(Code::FeatureMissing),
        Some(CloseCode::ParametersInvalid) => Next::Exit(Code::FeatureParametersInvalid),
        Some(CloseCode::ParameterBelowFloor) => Next::Exit(Code::FeatureParameterBelowFloor),
        _ => Next::Again,
    }
}

/// A connection that broke: another is tried.
pub fn lost(what: &str) -> Error {
    Error::new(Code::ServerUnreachable, "The connection to the broker was lost.").because(what)
}

/// The error that the daemon exits with.
pub fn error(code: Code) -> Error {
    Error::new(code, code.entry().title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_close_code_that_is_final_ends_the_daemon_with_a_code_of_its_own() {
        let mut exits = Vec::new();
        for code in CloseCode::ALL {
            match next(&Ending::Closed(Some(code.code())), false) {
                Next::Exit(exit) => {
                    assert!(code.is_final(), "{code}");
                    assert_ne!(exit.entry().exit, 0, "{code}");
                    exits.push(exit);
                }
                Next::Again => assert!(!code.is_final(), "{code}"),
            }
        }
        exits.dedup();
        assert_eq!(exits.len(), 6);
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for ending in [Ending::Closed(None), Ending::Closed(Some(1006)), Ending::Lost("reset".to_owned())] {
            assert_eq!(next(&ending, false), Next::Again);
        }
        let already = Ending::Closed(Some(CloseCode::AlreadyConnected.code()));
        assert_eq!(next(&already, true), Next::Again, "its own older socket may be half open");
        assert_eq!(next(&already, false), Next::Exit(Code::MemberAlreadyConnected));
    }
}
