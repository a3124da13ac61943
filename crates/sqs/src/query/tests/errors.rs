//! Errors as XML, from the catalogue and from signatures.

use waybill_kernel::{Code, Error};

use super::super::Failure;
use super::shown;
use crate::signature::Refused;
use crate::wire::{INVALID_ACTION, MISSING_ACTION};

#[test]
fn an_error_has_the_code_that_the_query_protocol_knows() {
    let error = Error::new(Code::QueueNameExists, "Exists <already>.").with_cure("Take & keep it.");
    let failure = Failure::of(&error, "r1");
    let expected = "<ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error><Type>Sender</Type>\
                    <Code>QueueAlreadyExists</Code><Message>Exists &lt;already&gt;. Take &amp; keep it.</Message><Detail></Detail>\
                    </Error><RequestId>r1</RequestId></ErrorResponse>";
    assert_eq!((failure.http, String::from_utf8(failure.body).unwrap().as_str()), (400, expected));
}

#[test]
fn every_error_of_the_catalogue_reads_as_xml_and_keeps_what_happened_inside_to_itself() {
    for code in Code::ALL {
        let error = Error::new(*code, "At /var/lib/waybill.").because("cause in /var/lib/waybill");
        let failure = Failure::of(&error, "r1");
        let sqs = code.entry().sqs;
        let (kind, message) = match sqs.http {
            ..500 => ("Sender", "At /var/lib/waybill."),
            _ => ("Receiver", code.entry().title),
        };
        let (query_code, cure) = (sqs.query_code, code.entry().cure);
        let expected =
            format!("ErrorResponse(Error(Type={kind} Code={query_code} Message={message} {cure} Detail) RequestId=r1)");
        assert_eq!((shown(&failure.body), failure.http), (expected, sqs.http), "{code}");
    }
}

#[test]
fn a_signature_that_is_refused_says_why() {
    for (refused, code, http) in [
        (Refused::SignatureDoesNotMatch("It is another's."), "SignatureDoesNotMatch", 403),
        (Refused::IncompleteSignature("It is cut."), "IncompleteSignature", 400),
        (Refused::InvalidClientTokenId, "InvalidClientTokenId", 403),
        (Refused::RequestTimeTooSkewed, "RequestTimeTooSkewed", 403),
    ] {
        let failure = Failure::of_refused(refused, "r1");
        let message = refused.message();
        let expected = format!("ErrorResponse(Error(Type=Sender Code={code} Message={message} Detail) RequestId=r1)");
        assert_eq!((shown(&failure.body), failure.http), (expected, http));
    }
}

#[test]
fn an_action_that_is_missing_or_unknown_is_told_too() {
    for sqs in [MISSING_ACTION, INVALID_ACTION] {
        let failure = Failure::told(sqs, "No.", "r1");
        assert_eq!(failure.http, 400);
        assert!(shown(&failure.body).contains(&format!("Code={} Message=No.", sqs.query_code)));
    }
}

#[test]
fn what_a_client_has_made_up_cannot_break_the_document() {
    let error = Error::invalid("The name \"\u{0}<a>\u{FFFF}\u{1B}[31m\" is not allowed.");
    assert!(shown(&Failure::of(&error, "r1").body).contains("\u{FFFD}<a>\u{FFFD}\u{FFFD}[31m"));
}
