//! Errors as XML.

use waybill_kernel::{Code, Error};

use super::super::error as told;
use super::shown;

#[test]
fn an_error_has_the_code_that_the_query_protocol_knows() {
    let error = Error::new(Code::QueueNameExists, "Exists <already>.").with_cure("Take & keep it.");
    let body = told(&error, "r1");
    let expected = "<ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error><Type>Sender</Type>\
                    <Code>QueueAlreadyExists</Code><Message>Exists &lt;already&gt;. Take &amp; keep it.</Message><Detail></Detail>\
                    </Error><RequestId>r1</RequestId></ErrorResponse>";
    assert_eq!(String::from_utf8(body).unwrap(), expected);
}

#[test]
fn every_error_of_the_catalogue_reads_as_xml_and_keeps_what_happened_inside_to_itself() {
    for code in Code::ALL {
        let error = Error::new(*code, "At /var/lib/waybill.").because("cause in /var/lib/waybill");
        let body = told(&error, "r1");
        let sqs = code.entry().sqs;
        let (kind, message) = match sqs.http {
            ..500 => ("Sender", "At /var/lib/waybill."),
            _ => ("Receiver", code.entry().title),
        };
        let (query_code, cure) = (sqs.query_code, code.entry().cure);
        let expected =
            format!("ErrorResponse(Error(Type={kind} Code={query_code} Message={message} {cure} Detail) RequestId=r1)");
        assert_eq!(shown(&body), expected, "{code}");
    }
}

#[test]
fn what_a_client_has_made_up_cannot_break_the_document() {
    let error = Error::invalid("The name \"\u{0}<a>\u{FFFF}\u{1B}[31m\" is not allowed.");
    assert!(shown(&told(&error, "r1")).contains("\u{FFFD}<a>\u{FFFD}\u{FFFD}[31m"));
}
