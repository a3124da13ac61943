//! Why a socket was closed, as a number that both sides know.

use std::fmt;

macro_rules! close_codes {
    ($($(#[$doc:meta])* $variant:ident $code:literal $name:literal $final:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum CloseCode { $($(#[$doc])* $variant),+ }

        impl CloseCode {
            pub const ALL: &'static [CloseCode] = &[$(CloseCode::$variant),+];

            pub const fn code(self) -> u16 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The reason that goes with the number.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Whether to connect again is of no use: the daemon exits.
            pub const fn is_final(self) -> bool {
                match self { $(Self::$variant => $final),+ }
            }

            /// None for a number that has no name here.
            pub fn from_code(code: u16) -> Option<Self> {
                Self::ALL.iter().copied().find(|close| close.code() == code)
            }
        }
    };
}

close_codes! {
    Normal               1000 "normal"                        false;
    GoingAway            1001 "going_away"                    false;
    TooBig               1009 "frame_too_big"                 false;
    /// The challenge was answered late, twice, or not by a member.
    Unauthorized         4001 "unauthorized"                  false;
    ChallengeTimeout     4002 "challenge_timeout"             false;
    Replaced             4003 "replaced_by_newer_connection"  true;
    AlreadyConnected     4004 "member_already_connected"      true;
    MemberRevoked        4005 "member_revoked"                true;
    /// Not a frame, or one that does not belong here.
    FrameInvalid         4006 "frame_invalid"                 false;
    /// It does not read what is sent to it.
    TooSlow              4007 "too_slow"                      false;
    PingTimeout          4008 "ping_timeout"                  false;
    TooMany              4009 "too_many_connections"          false;
    FeatureMissing       4010 "feature_missing"               true;
    ParametersInvalid    4011 "parameters_invalid"            true;
    ParameterBelowFloor  4012 "parameter_below_floor"         true;
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_contract() {
        for (code, name) in [
            (4003, "replaced_by_newer_connection"),
            (4004, "member_already_connected"),
            (4010, "feature_missing"),
            (4011, "parameters_invalid"),
            (4012, "parameter_below_floor"),
        ] {
            let close = CloseCode::from_code(code).unwrap();
            assert_eq!((close.name(), close.is_final()), (name, true));
        }
        assert_eq!(CloseCode::from_code(4999), None);
        for close in CloseCode::ALL {
            assert_eq!(CloseCode::from_code(close.code()), Some(*close), "{close} shares its number");
        }
    }
}
