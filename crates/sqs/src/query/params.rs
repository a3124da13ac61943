//! The parameters of a request, from its body and its address, sorted so that what belongs together stands together.
//!
//! ```text
//! Action=SendMessage&MessageAttribute.1.Name=kind&MessageAttribute.1.Value.DataType=String&…
//! ```
//!
//! Names are paths: parts with dots between them, some of which are indexes. They are sorted once, part by part and indexes
//! by their number, so that every list, entry and struct is a range of the whole.

use std::borrow::Cow;
use std::cmp::Ordering;

use waybill_kernel::{Error, Result};

/// Parameters of one request, in body and address together. A batch of ten messages with ten attributes of four
/// parameters each has some 450.
pub const PAIRS_MAX: usize = 1_000;
/// The longest name of SQS has some 90.
pub const NAME_BYTES_MAX: usize = 256;
/// `SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringListValue.1` has seven.
pub const NAME_PARTS_MAX: usize = 8;

/// Borrows what needs no decoding.
#[derive(Debug)]
pub struct Params<'a> {
    action: Option<Cow<'a, str>>,
    /// By name; those of one name in the order in which they came.
    sorted: Vec<Param<'a>>,
}

#[derive(Debug)]
pub(super) struct Param<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) value: Cow<'a, str>,
}

impl<'a> Params<'a> {
    /// `query` is that of the address. Where a name stands in both, the body's comes first.
    pub fn read(query: Option<&'a str>, body: &'a [u8]) -> Result<Self> {
        let mut params = Self { action: None, sorted: Vec::new() };
        let pairs = pairs(body).chain(pairs(query.unwrap_or_default().as_bytes()));
        for (nth, (name, value)) in pairs.enumerate() {
            if nth == PAIRS_MAX {
                return Err(Error::invalid(format!("The request has more than {PAIRS_MAX} parameters.")));
            }
            params.take(name, value)?;
        }
        // Stable: of several with one name the first must stay first.
        params.sorted.sort_by(|a, b| order(&a.name, &b.name));
        Ok(params)
    }

    /// The first one, where there are several.
    pub fn action(&self) -> Option<&str> {
        self.action.as_deref()
    }

    /// Takes the queue from the path, where no parameter names it.
    #[must_use]
    pub fn or_queue(mut self, path: Option<&'a str>) -> Self {
        const QUEUE_URL: &str = "QueueUrl";
        let index = self.sorted.binary_search_by(|param| order(&param.name, QUEUE_URL));
        if let (Err(index), Some(path)) = (index, path) {
            self.sorted.insert(index, Param { name: QUEUE_URL.into(), value: path.into() });
        }
        self
    }

    pub(super) fn sorted(&self) -> &[Param<'a>] {
        &self.sorted
    }

    fn take(&mut self, name: &'a [u8], value: &'a [u8]) -> Result<()> {
        let name =
            decode(name).ok_or_else(|| Error::invalid("The name of a parameter is not UTF-8, percent-encoded."))?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!("The name of a parameter is longer than {NAME_BYTES_MAX} bytes.")));
        }
        let is_action = name == "Action";
        if !is_action && is_no_member(&name) {
            return Ok(());
        }
        if name.split('.').count() > NAME_PARTS_MAX {
            return Err(Error::invalid(format!("The name {name:?} has more than {NAME_PARTS_MAX} parts.")));
        }
        let value = decode(value)
            .ok_or_else(|| Error::invalid(format!("The value of {name:?} is not UTF-8, percent-encoded.")))?;
        if is_action {
            self.action.get_or_insert(value);
        } else {
            self.sorted.push(Param { name, value });
        }
        Ok(())
    }
}

/// Parameters of the protocol and of signatures, in any of their versions.
fn is_no_member(name: &str) -> bool {
    const AMZ: &str = "x-amz-";
    matches!(name, "" | "Version" | "AWSAccessKeyId" | "SecurityToken" | "Timestamp" | "Expires")
        || name.starts_with("Signature")
        || name.get(..AMZ.len()).is_some_and(|start| start.eq_ignore_ascii_case(AMZ))
}

/// Raw names and values. A name without `=` has an empty value; nothing between two `&` is no pair.
fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=');
        equals.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]))
    })
}

/// None when a percent sign begins no byte, or when the bytes are not UTF-8: to guess would be to store something else than
/// what was sent.
fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    let is_coded = |byte: &u8| matches!(byte, b'%' | b'+');
    let Some(first) = raw.iter().position(is_coded) else {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    };
    let percents = raw[first..].iter().filter(|byte| **byte == b'%').count();
    let mut text = Vec::with_capacity(raw.len().saturating_sub(2 * percents));
    text.extend_from_slice(&raw[..first]);
    let mut rest = &raw[first..];
    loop {
        rest = match rest {
            [] => break,
            [b'+', rest @ ..] => {
                text.push(b' ');
                rest
            }
            [b'%', high, low, rest @ ..] => {
                text.push(nibble(*high)? << 4 | nibble(*low)?);
                rest
            }
            [b'%', ..] => return None,
            _ => {
                let plain = rest.iter().position(is_coded).unwrap_or(rest.len());
                text.extend_from_slice(&rest[..plain]);
                &rest[plain..]
            }
        };
    }
    String::from_utf8(text).ok().map(Cow::Owned)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Part by part; a name comes before those that it is the beginning of.
fn order(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(one), Some(other)) => match part_order(one, other) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
            (one, other) => return one.is_some().cmp(&other.is_some()),
        }
    }
}

/// Indexes come before names, and 9 before 10. Equal only when the texts are.
pub(super) fn part_order(one: &str, other: &str) -> Ordering {
    match (is_index(one), is_index(other)) {
        (true, true) => {
            let digits = |part: &str| part.trim_start_matches('0').len();
            let by_size = digits(one).cmp(&digits(other));
            by_size.then_with(|| one.trim_start_matches('0').cmp(other.trim_start_matches('0'))).then(one.cmp(other))
        }
        (false, false) => one.cmp(other),
        (one, other) => other.cmp(&one),
    }
}

pub(super) fn is_index(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use waybill_kernel::Code;

    use super::*;

    fn shown(query: Option<&str>, body: &str) -> Vec<(String, String)> {
        let params = Params::read(query, body.as_bytes()).unwrap();
        params.sorted.into_iter().map(|param| (param.name.into_owned(), param.value.into_owned())).collect()
    }

    fn refusal(body: &[u8]) -> String {
        let error = Params::read(None, body).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        error.message().to_owned()
    }

    #[test]
    fn values_are_decoded_and_names_sorted_with_indexes_by_number() {
        let body = "b=%C3%A9+%2B%2b&a.10=x&a.9=y&a=1&a.b=z&&c&a.2.d=%26%3D&a.2=first";
        let expected = [
            ("a", "1"),
            ("a.2", "first"),
            ("a.2.d", "&="),
            ("a.9", "y"),
            ("a.10", "x"),
            ("a.b", "z"),
            ("b", "é ++"),
            ("c", ""),
        ];
        assert_eq!(shown(None, body), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn the_body_comes_before_the_address_and_the_first_before_the_second() {
        let params = Params::read(Some("a=3&Action=C"), b"a=1&Action=A&a=2&Action=B").unwrap();
        assert_eq!(params.action(), Some("A"));
        let values: Vec<_> = params.sorted().iter().map(|param| param.value.as_ref()).collect();
        assert_eq!(values, ["1", "2", "3"]);
        assert_eq!(Params::read(Some("Action=C"), b"a=1").unwrap().action(), Some("C"));
        assert_eq!(Params::read(None, b"action=C").unwrap().action(), None);
    }

    #[test]
    fn what_belongs_to_protocol_and_signature_is_no_member() {
        let body = "Action=A&Version=2012-11-05&X-Amz-Signature=%zz&x-amz-date=1&AWSAccessKeyId=AKID&Signature=s&\
                    SignatureVersion=2&SignatureMethod=HmacSHA256&Timestamp=t&Expires=e&SecurityToken=t&=v&QueueName=q";
        assert_eq!(shown(None, body), [("QueueName".to_owned(), "q".to_owned())]);
    }

    #[test]
    fn what_cannot_be_decoded_is_refused_by_its_name() {
        for body in ["MessageBody=%", "MessageBody=%4", "MessageBody=%zz", "MessageBody=100%+", "MessageBody=%ff"] {
            assert_eq!(
                refusal(body.as_bytes()),
                "The value of \"MessageBody\" is not UTF-8, percent-encoded.",
                "{body}"
            );
        }
        assert_eq!(refusal(b"a=\xff"), "The value of \"a\" is not UTF-8, percent-encoded.");
        assert_eq!(refusal(b"%ff=a"), "The name of a parameter is not UTF-8, percent-encoded.");
        assert_eq!(shown(None, "a=ü"), [("a".to_owned(), "ü".to_owned())], "clients may leave UTF-8 as it is");
    }

    #[test]
    fn there_is_a_most_of_everything() {
        let many = |count: usize| vec!["a=1"; count].join("&");
        assert!(Params::read(None, many(PAIRS_MAX).as_bytes()).is_ok());
        assert_eq!(refusal(many(PAIRS_MAX + 1).as_bytes()), "The request has more than 1000 parameters.");
        assert!(Params::read(Some("b=1"), many(PAIRS_MAX).as_bytes()).is_err());
        let long = |bytes: usize| format!("{}=1", "a".repeat(bytes));
        assert!(Params::read(None, long(NAME_BYTES_MAX).as_bytes()).is_ok());
        assert_eq!(refusal(long(NAME_BYTES_MAX + 1).as_bytes()), "The name of a parameter is longer than 256 bytes.");
        assert!(Params::read(None, b"a.b.c.d.e.f.g.h=1").is_ok());
        assert_eq!(refusal(b"a.b.c.d.e.f.g.h.=1"), "The name \"a.b.c.d.e.f.g.h.\" has more than 8 parts.");
    }

    #[test]
    fn the_path_names_the_queue_only_where_nothing_else_does() {
        let queue = |body: &str, path: Option<&str>| {
            let params = Params::read(None, body.as_bytes()).unwrap().or_queue(path);
            let found = params.sorted().iter().find(|param| param.name == "QueueUrl");
            found.map(|param| param.value.clone().into_owned())
        };
        assert_eq!(queue("A=1&Z=2", Some("/q")).as_deref(), Some("/q"));
        assert_eq!(queue("QueueUrl=%2Fp&A=1", Some("/q")).as_deref(), Some("/p"));
        assert_eq!(queue("QueueUrl.x=1", Some("/q")).as_deref(), Some("/q"));
        assert_eq!(queue("A=1", None), None);
        let params = Params::read(None, b"Z=1&A=1&QueueUrl.x=2").unwrap().or_queue(Some("/q"));
        assert!(params.sorted().is_sorted_by(|one, other| order(&one.name, &other.name).is_le()));
    }

    proptest! {
        #[test]
        fn the_order_is_one(names in prop::collection::vec("[.0a1]{0,5}", 3)) {
            let [a, b, c] = [&names[0], &names[1], &names[2]];
            prop_assert_eq!(order(a, b), order(b, a).reverse());
            prop_assert_eq!(order(a, b).is_eq(), a == b);
            prop_assert!(!(order(a, b).is_le() && order(b, c).is_le()) || order(a, c).is_le());
        }

        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            let coded = percent_encoding::utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC).to_string();
            prop_assert_eq!(decode(coded.as_bytes()).unwrap(), text.as_str());
            let coded = coded.replace("%20", "+");
            prop_assert_eq!(decode(coded.as_bytes()).unwrap(), text.as_str());
        }
    }
}
