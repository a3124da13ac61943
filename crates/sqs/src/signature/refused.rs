//! Why a request is not believed, as a client of SQS knows it.

use std::fmt;

use waybill_kernel::{Code, Error};

/// The texts say which rule was broken. They never repeat what the request held, and none can hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The request carries no signature. For the caller, when [`Claim::of`](super::Claim::of) finds none.
    MissingAuthenticationToken,
    /// The claim cannot be read, or a part of it is missing.
    IncompleteSignature(&'static str),
    /// Nobody has this access key id. For the caller, who looks it up.
    InvalidClientTokenId,
    /// The claim can be read and is not true of this request.
    SignatureDoesNotMatch(&'static str),
    /// The signer's clock and ours are too far apart.
    RequestTimeTooSkewed,
    /// A presigned request came after its time.
    RequestExpired,
    /// The signature is good, and its owner may not do this. For the caller.
    AccessDenied,
}

impl Refused {
    /// The name of the error in JSON.
    pub const fn shape(self) -> &'static str {
        match self {
            Refused::MissingAuthenticationToken => "MissingAuthenticationToken",
            Refused::IncompleteSignature(_) => "IncompleteSignature",
            Refused::InvalidClientTokenId => "InvalidClientTokenId",
            Refused::SignatureDoesNotMatch(_) => "SignatureDoesNotMatch",
            Refused::RequestTimeTooSkewed => "RequestTimeTooSkewed",
            Refused::RequestExpired => "RequestExpired",
            Refused::AccessDenied => "AccessDenied",
        }
    }

    /// The name of the error in XML and in `x-amzn-query-error`. These errors have one name in both encodings.
    pub const fn query_code(self) -> &'static str {
        self.shape()
    }

    pub const fn http(self) -> u16 {
        match self {
            Refused::IncompleteSignature(_) => 400,
            _ => 403,
        }
    }

    /// For the client.
    pub const fn message(self) -> &'static str {
        match self {
            Refused::MissingAuthenticationToken => "The request carries no signature.",
            Refused::IncompleteSignature(flaw) | Refused::SignatureDoesNotMatch(flaw) => flaw,
            Refused::InvalidClientTokenId => "No such access key id.",
            Refused::RequestTimeTooSkewed => "The time of the request is more than 15 minutes from the server's.",
            Refused::RequestExpired => "The presigned request has expired.",
            Refused::AccessDenied => "The access key does not allow this.",
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let code = match refused {
            Refused::MissingAuthenticationToken => Code::MissingAuthenticationToken,
            Refused::IncompleteSignature(_) => Code::IncompleteSignature,
            Refused::InvalidClientTokenId => Code::InvalidClientTokenId,
            Refused::SignatureDoesNotMatch(_) => Code::SignatureDoesNotMatch,
            Refused::RequestTimeTooSkewed => Code::RequestTimeTooSkewed,
            Refused::RequestExpired => Code::RequestExpired,
            Refused::AccessDenied => Code::Forbidden,
        };
        Error::new(code, refused.message())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.shape(), self.message())
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unreadable_claim_is_a_bad_request() {
        let all = [
            Refused::MissingAuthenticationToken,
            Refused::IncompleteSignature("a."),
            Refused::InvalidClientTokenId,
            Refused::SignatureDoesNotMatch("b."),
            Refused::RequestTimeTooSkewed,
            Refused::RequestExpired,
            Refused::AccessDenied,
        ];
        for refused in all {
            let expected = if refused.shape() == "IncompleteSignature" { 400 } else { 403 };
            assert_eq!(refused.http(), expected, "{refused}");
            assert_eq!(refused.shape(), refused.query_code());
            assert!(refused.message().ends_with('.'), "{refused}");
            let told = Error::from(refused).code().entry().sqs;
            assert_eq!(
                (told.shape, told.query_code, told.http),
                (refused.shape(), refused.query_code(), refused.http())
            );
        }
    }
}
