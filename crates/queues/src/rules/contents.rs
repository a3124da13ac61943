//! What a message may hold, how large it is, and which of its attributes a receive has asked for.

use std::collections::BTreeMap;

use waybill_kernel::{Code, Error, Result};

use super::attributes::{is_known, unknown};
use super::missing;
use crate::message::{Given, MessageAttribute, MessageAttributes};

/// The only system attribute that a sender may give.
pub const TRACE_HEADER: &str = "AWSTraceHeader";
/// Of a dead letter: the queue it comes from.
pub const SOURCE_ARN: &str = "DeadLetterQueueSourceArn";

const ATTRIBUTES_MAX: usize = 10;
const ATTRIBUTE_NAME_CHARS_MAX: usize = 256;
const DATA_TYPE_CHARS_MAX: usize = 256;
const ID_CHARS_MAX: usize = 128;
/// The trace header is not counted as a part of the message, and is read and shown with it: so it has a bound of its own. Those
/// that tracers write have less than 300.
const TRACE_HEADER_BYTES_MAX: usize = 500;

/// Names in one list of a request. A message has ten attributes, and a queue less than thirty.
const NAMES_MAX: usize = 100;
/// Of one such name: the longest that an attribute can have, and `.*` behind it.
const ASKED_CHARS_MAX: usize = ATTRIBUTE_NAME_CHARS_MAX + 2;

/// What a receive may ask to know about a message.
pub const SYSTEM_ATTRIBUTES: &[&str] = &[
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "MessageGroupId",
    "MessageDeduplicationId",
    "SequenceNumber",
    TRACE_HEADER,
    SOURCE_ARN,
];
const ALL: &str = "All";

pub fn check_body(body: &str) -> Result<()> {
    if body.is_empty() {
        return Err(missing("MessageBody"));
    }
    check_characters("The message body", body)
}

/// The characters of XML 1.0, which carries one of the two protocols.
pub fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..='\u{10FFFF}')
}

fn check_characters(what: &str, text: &str) -> Result<()> {
    match text.chars().find(|c| !is_allowed(*c)) {
        None => Ok(()),
        Some(bad) => {
            let message = format!("{what} holds the character U+{:04X}, which no message may hold.", u32::from(bad));
            Err(Error::new(Code::InvalidMessageContents, message))
        }
    }
}

pub fn check_attributes(attributes: &MessageAttributes) -> Result<()> {
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(Error::invalid(format!("A message has at most {ATTRIBUTES_MAX} attributes.")));
    }
    attributes.iter().try_for_each(|(name, attribute)| {
        check_attribute_name(name)?;
        check_attribute(name, attribute)
    })
}

pub fn check_system_attributes(attributes: &MessageAttributes) -> Result<()> {
    for (name, attribute) in attributes {
        if name != TRACE_HEADER {
            let message = format!("The only message system attribute that can be sent is {TRACE_HEADER}.");
            return Err(Error::invalid(message));
        }
        check_attribute(name, attribute)?;
        if attribute.data_type != "String" {
            return Err(Error::invalid(format!("The data type of {TRACE_HEADER} must be String.")));
        }
        if attribute.string_value.as_ref().is_some_and(|text| text.len() > TRACE_HEADER_BYTES_MAX) {
            return Err(Error::invalid(format!("{TRACE_HEADER} has at most {TRACE_HEADER_BYTES_MAX} bytes.")));
        }
    }
    Ok(())
}

fn check_attribute_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let reserved = ["aws.", "amazon."].iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix));
    let good = (1..=ATTRIBUTE_NAME_CHARS_MAX).contains(&name.chars().count())
        && name.chars().all(allowed)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !reserved;
    if good {
        return Ok(());
    }
    let name: String = name.chars().take(ATTRIBUTE_NAME_CHARS_MAX).collect();
    Err(Error::invalid(format!(
        "The message attribute name {name:?} is not allowed: it has 1 to {ATTRIBUTE_NAME_CHARS_MAX} letters, digits, \
         underscores, hyphens and single dots, and does not begin with AWS. or Amazon."
    )))
}

/// Exactly one value, of the type that is named. An empty one counts as none: some clients write out every field.
fn check_attribute(name: &str, attribute: &MessageAttribute) -> Result<()> {
    let kind = attribute.data_type.as_str();
    let base = kind.split('.').next().unwrap_or_default();
    if !["String", "Number", "Binary"].contains(&base) || kind.chars().count() > DATA_TYPE_CHARS_MAX {
        let message = format!("The message attribute {name} must have the type String, Number or Binary.");
        return Err(Error::invalid(message));
    }
    check_characters(&format!("The data type of {name}"), kind)?;
    let text = attribute.string_value.as_deref().filter(|text| !text.is_empty());
    let bytes = attribute.binary_value.as_ref().filter(|blob| !blob.0.is_empty());
    match (attribute.is_binary(), text, bytes) {
        (true, None, Some(_)) => Ok(()),
        (false, Some(text), None) if base == "Number" && !is_number(text) => {
            let message = format!("The message attribute {name} has the type Number, and its value is not a number.");
            Err(Error::invalid(message).with_cure("Send a number such as 42 or -1.5e3, or give the type String."))
        }
        (false, Some(text), None) => check_characters(&format!("The message attribute {name}"), text),
        (binary, ..) => {
            let wanted = if binary { "BinaryValue" } else { "StringValue" };
            Err(Error::invalid(format!("The message attribute {name} must have a {wanted} and no other value.")))
        }
    }
}

/// Decimal digits with a point or without, a sign before them or none, and an exponent or none. As large and as exact as one likes:
/// nothing here reckons with it.
fn is_number(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (unsigned(mantissa), Some(unsigned(exponent))),
        None => (unsigned(text), None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits(whole)
        && is_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && is_digits(exponent))
}

fn unsigned(number: &str) -> &str {
    number.strip_prefix(['+', '-']).unwrap_or(number)
}

/// For groups, and for what tells duplicates and repeated receives.
pub fn is_id(text: &str) -> bool {
    (1..=ID_CHARS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

pub fn check_id(parameter: &str, text: &str) -> Result<()> {
    if is_id(text) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{parameter} has 1 to {ID_CHARS_MAX} characters, which are letters, digits and punctuation."
    )))
}

/// The body, and of each attribute its name, its type and its value.
pub fn size(body: &str, attributes: &MessageAttributes) -> usize {
    let of = |(name, attribute): (&String, &MessageAttribute)| {
        let value = match attribute.given() {
            Given::Text(text) => text.len(),
            Given::Binary(bytes) => bytes.len(),
        };
        name.len() + attribute.data_type.len() + value
    };
    body.len() + attributes.iter().map(of).sum::<usize>()
}

pub fn check_size(size: usize, max: usize) -> Result<()> {
    if size <= max {
        return Ok(());
    }
    let message = format!("The message has {size} bytes; this queue takes at most {max}.");
    Err(Error::invalid(message).with("limit_bytes", max))
}

/// A list of names that a request asks for. Every message is compared with it in the transaction, and a receive that waits
/// keeps it.
pub fn check_names(parameter: &str, names: &[String]) -> Result<()> {
    if names.len() > NAMES_MAX {
        return Err(Error::invalid(format!("{parameter} has at most {NAMES_MAX} names.")));
    }
    if names.iter().any(|name| name.chars().nth(ASKED_CHARS_MAX).is_some()) {
        return Err(Error::invalid(format!("A name in {parameter} has at most {ASKED_CHARS_MAX} characters.")));
    }
    Ok(())
}

/// Which system attributes were asked for, by the list's old name or its new one. Each is in it once.
#[derive(Debug)]
pub struct Wanted(Vec<&'static str>);

impl Wanted {
    /// The older list may name attributes of the queue as well, which no message has.
    pub fn checked(older: &[String], newer: &[String]) -> Result<Self> {
        let mut wanted = Vec::new();
        let mut want = |name: &'static str| {
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        };
        for (name, is_older) in older.iter().map(|name| (name, true)).chain(newer.iter().map(|name| (name, false))) {
            match SYSTEM_ATTRIBUTES.iter().find(|known| **known == name.as_str()) {
                Some(known) => want(known),
                None if name == ALL => SYSTEM_ATTRIBUTES.iter().for_each(|known| want(known)),
                None if is_older && is_known(name) => {}
                None => return Err(unknown(name)),
            }
        }
        Ok(Self(wanted))
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }
}

/// Those that a list of names, prefixes (`trace.*`) and `All` asks for.
pub fn asked_for(attributes: MessageAttributes, names: &[String]) -> MessageAttributes {
    let is_asked = |name: &str| {
        names.iter().any(|asked| {
            asked == ALL || asked == name || asked.strip_suffix(".*").is_some_and(|prefix| name.starts_with(prefix))
        })
    };
    if names.is_empty() {
        return BTreeMap::new();
    }
    attributes.into_iter().filter(|(name, _)| is_asked(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Blob;

    fn attribute(data_type: &str, text: Option<&str>, bytes: Option<&[u8]>) -> MessageAttribute {
        MessageAttribute {
            data_type: data_type.to_owned(),
            string_value: text.map(str::to_owned),
            binary_value: bytes.map(|bytes| Blob(bytes.to_vec())),
        }
    }

    fn named(name: &str) -> MessageAttributes {
        BTreeMap::from([(name.to_owned(), attribute("String", Some("v"), None))])
    }

    #[test]
    fn characters_are_those_of_xml() {
        for good in ["\t\n\r ", "\u{D7FF}\u{E000}\u{FFFD}", "\u{10000}\u{10FFFF}", "grüße 😀", "\u{7F}"] {
            assert!(check_body(good).is_ok(), "{good:?}");
        }
        for bad in ["a\0", "\u{8}", "\u{B}", "\u{1F}", "\u{FFFE}", "x\u{FFFF}"] {
            assert_eq!(check_body(bad).unwrap_err().code(), Code::InvalidMessageContents, "{bad:?}");
        }
        assert_eq!(check_body("").unwrap_err().code(), Code::MissingParameter);
    }

    #[test]
    fn attribute_names_have_their_alphabet() {
        let longest = "a".repeat(256);
        for good in ["a", "A.b-c_9", "aws", "awsome.x", &longest] {
            assert!(check_attributes(&named(good)).is_ok(), "{good}");
        }
        let too_long = "a".repeat(257);
        for bad in ["", ".a", "a.", "a..b", "a b", "ä", "AWS.x", "aws.x", "Amazon.x", &too_long] {
            assert_eq!(check_attributes(&named(bad)).unwrap_err().code(), Code::InvalidRequest, "{bad}");
        }
        let many: MessageAttributes = (0..11).flat_map(|number| named(&format!("a{number}"))).collect();
        assert!(check_attributes(&many).is_err());
    }

    #[test]
    fn an_attribute_has_one_value_of_its_type() {
        for (attribute, good) in [
            (attribute("String", Some("v"), None), true),
            (attribute("String.label", Some("v"), Some(&[])), true),
            (attribute("Number", Some("1"), None), true),
            (attribute("Binary.png", Some(""), Some(&[0])), true),
            (attribute("String", Some(""), None), false),
            (attribute("String", None, None), false),
            (attribute("String", Some("v"), Some(&[1])), false),
            (attribute("Number", None, Some(&[1])), false),
            (attribute("Binary", Some("v"), None), false),
            (attribute("Binary", None, Some(&[])), false),
            (attribute("Text", Some("v"), None), false),
            (attribute("", Some("v"), None), false),
            (attribute("String", Some("a\u{0}"), None), false),
        ] {
            assert_eq!(check_attribute("a", &attribute).is_ok(), good, "{attribute:?}");
        }
    }

    #[test]
    fn a_number_is_one() {
        let numbers = ["0", "42", "-42.5", "+7", "-42.5e-3", "1E+9", "3e8", ".5", "5.", "-.5", "18446744073709551616"];
        let others = [
            " ", "one", "0x10", "1 ", " 1", "1,5", "1.2.3", ".", "-", "+-1", "--1", "e5", ".e5", "1e", "1e+", "1e1.5",
            "1e5e5", "NaN", "inf", "١",
        ];
        for (text, good) in numbers.map(|text| (text, true)).into_iter().chain(others.map(|text| (text, false))) {
            for kind in ["Number", "Number.custom"] {
                let checked = check_attribute("a", &attribute(kind, Some(text), None));
                assert_eq!(checked.is_ok(), good, "{text:?}");
            }
            assert!(check_attribute("a", &attribute("String", Some(text), None)).is_ok(), "{text:?}");
        }
        let refused = check_attribute("a", &attribute("Number", Some("one"), None)).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidRequest);
    }

    #[test]
    fn only_the_trace_header_is_a_system_attribute_of_a_sender() {
        let with = |name: &str, attribute| BTreeMap::from([(name.to_owned(), attribute)]);
        let text = || attribute("String", Some("Root=1"), None);
        assert!(check_system_attributes(&with(TRACE_HEADER, text())).is_ok());
        assert!(check_system_attributes(&with("SenderId", text())).is_err());
        assert!(check_system_attributes(&with(TRACE_HEADER, attribute("Number", Some("1"), None))).is_err());
        for (bytes, good) in [(500, true), (501, false)] {
            let long = attribute("String", Some(&"x".repeat(bytes)), None);
            assert_eq!(check_system_attributes(&with(TRACE_HEADER, long)).is_ok(), good, "{bytes}");
        }
    }

    #[test]
    fn names_types_and_values_count_as_much_as_the_body() {
        let attributes = BTreeMap::from([
            ("ab".to_owned(), attribute("String.x", Some("ä"), None)),
            ("c".to_owned(), attribute("Binary", None, Some(&[1, 2, 3]))),
        ]);
        assert_eq!(size("12345", &attributes), 5 + (2 + 8 + 2) + (1 + 6 + 3));
        assert!(check_size(1_024, 1_024).is_ok() && check_size(1_025, 1_024).is_err());
    }

    #[test]
    fn a_receive_gets_the_attributes_it_names() {
        let attributes: MessageAttributes = ["foo.a", "foo.b", "bar"].into_iter().flat_map(named).collect();
        for (names, expected) in [
            (vec![], vec![]),
            (vec!["bar"], vec!["bar"]),
            (vec!["nothing", "foo.b"], vec!["foo.b"]),
            (vec!["foo.*"], vec!["foo.a", "foo.b"]),
            (vec!["All"], vec!["bar", "foo.a", "foo.b"]),
            (vec![".*"], vec!["bar", "foo.a", "foo.b"]),
        ] {
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let got = asked_for(attributes.clone(), &names);
            assert_eq!(got.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{names:?}");
        }
    }

    #[test]
    fn both_lists_of_system_attributes_are_heard() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let wanted = Wanted::checked(&list(&["SenderId", "VisibilityTimeout"]), &list(&["SentTimestamp"])).unwrap();
        assert!(wanted.has("SenderId") && wanted.has("SentTimestamp") && !wanted.has("MessageGroupId"));
        assert!(Wanted::checked(&[], &list(&["All"])).unwrap().has("MessageGroupId"));
        let again = Wanted::checked(&list(&["All", "All", "SenderId"]), &list(&["All"])).unwrap();
        assert_eq!(again.0, SYSTEM_ATTRIBUTES, "each once");
        for (older, newer) in [(list(&["Nothing"]), vec![]), (vec![], list(&["VisibilityTimeout"]))] {
            assert_eq!(Wanted::checked(&older, &newer).unwrap_err().code(), Code::InvalidAttributeName);
        }
    }

    #[test]
    fn a_list_of_names_has_its_bounds() {
        for (names, chars, good) in [(0, 0, true), (100, 258, true), (101, 1, false), (1, 259, false)] {
            let list = vec!["ä".repeat(chars); names];
            assert_eq!(check_names("MessageAttributeNames", &list).is_ok(), good, "{names} {chars}");
        }
    }

    #[test]
    fn a_group_is_of_letters_digits_and_punctuation() {
        let (longest, too_long) = ("g".repeat(128), "g".repeat(129));
        let check = |text: &str| check_id("MessageGroupId", text);
        assert!(check("user-1!").is_ok() && check(&longest).is_ok());
        for bad in ["", "a b", "ä", &too_long] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
