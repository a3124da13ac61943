//! The attributes of a queue: which there are, what they may be, and what a queue that was not told has.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_kernel::{Code, Error, Result};

use super::not_offered;

pub const VISIBILITY_TIMEOUT: &str = "VisibilityTimeout";
pub const RETENTION: &str = "MessageRetentionPeriod";
pub const DELAY: &str = "DelaySeconds";
pub const WAIT: &str = "ReceiveMessageWaitTimeSeconds";
pub const MESSAGE_SIZE: &str = "MaximumMessageSize";

/// Longer than any policy that a client has reason to store.
const TEXT_BYTES_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Number {
        min: i64,
        max: i64,
        default: i64,
    },
    Flag,
    /// Kept and shown, without effect. An empty one is none.
    Text,
}

const fn number(min: i64, max: i64, default: i64) -> Kind {
    Kind::Number { min, max, default }
}

const SETTABLE: &[(&str, Kind)] = &[
    (VISIBILITY_TIMEOUT, number(0, 43_200, 30)),
    (RETENTION, number(60, 1_209_600, 345_600)),
    (DELAY, number(0, 900, 0)),
    (WAIT, number(0, 20, 0)),
    (MESSAGE_SIZE, number(1_024, 1_048_576, 1_048_576)),
    ("KmsDataKeyReusePeriodSeconds", number(60, 86_400, 300)),
    ("KmsMasterKeyId", Kind::Text),
    ("Policy", Kind::Text),
    ("SqsManagedSseEnabled", Kind::Flag),
];

const NOT_OFFERED: &[&str] = &[
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoQueue",
    "FifoThroughputLimit",
    "PartitionCount",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "ThrottleDefaultCapacity",
    "ThrottleDefaultRefillPerSecond",
    "ThrottleRecvCapacity",
    "ThrottleRecvRefillPerSecond",
    "ThrottleSendCapacity",
    "ThrottleSendRefillPerSecond",
];

const READ_ONLY: &[&str] = &[
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
];

/// A name that a request may mention, whether or not it can be set.
pub fn is_known(name: &str) -> bool {
    find(name).is_some() || NOT_OFFERED.contains(&name) || READ_ONLY.contains(&name)
}

fn find(name: &str) -> Option<Kind> {
    SETTABLE.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// What was set on a queue. What was not has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(BTreeMap<String, String>);

impl Attributes {
    /// As a request names them, each value in the one form it is stored in.
    pub fn checked(named: &BTreeMap<String, String>) -> Result<Self> {
        let mut checked = BTreeMap::new();
        for (name, value) in named {
            let Some(kind) = find(name) else { return Err(refusal(name)) };
            checked.insert(name.clone(), kind.checked(name, value)?);
        }
        Ok(Self(checked))
    }

    pub fn from_stored(text: &str) -> Result<Self> {
        // Almost every queue.
        if text == "{}" {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map(Self).map_err(Error::internal)
    }

    /// An empty text is none: it is not kept.
    pub fn to_stored(&self) -> Result<String> {
        let kept: BTreeMap<_, _> = self.0.iter().filter(|(_, value)| !value.is_empty()).collect();
        serde_json::to_string(&kept).map_err(Error::internal)
    }

    /// The first attribute of `named` that this queue has with another value. What is not named is not compared.
    pub fn first_difference<'a>(&self, named: &'a Attributes) -> Option<&'a str> {
        named.0.iter().find(|(name, value)| self.effective(name) != **value).map(|(name, _)| name.as_str())
    }

    pub fn visibility_timeout_s(&self) -> i64 {
        self.number(VISIBILITY_TIMEOUT)
    }

    pub fn delay_s(&self) -> i64 {
        self.number(DELAY)
    }

    pub fn wait_s(&self) -> i64 {
        self.number(WAIT)
    }

    pub fn message_bytes_max(&self) -> usize {
        usize::try_from(self.number(MESSAGE_SIZE)).unwrap_or(0)
    }

    pub fn retention(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.number(RETENTION)).unwrap_or(0))
    }

    fn effective(&self, name: &str) -> String {
        match (self.0.get(name), find(name)) {
            (Some(value), _) => value.clone(),
            (None, Some(Kind::Number { default, .. })) => default.to_string(),
            (None, Some(Kind::Flag)) => false.to_string(),
            (None, _) => String::new(),
        }
    }

    /// Stored values were checked when they were set; one that no longer reads has its default.
    fn number(&self, name: &str) -> i64 {
        let Some(Kind::Number { default, .. }) = find(name) else { return 0 };
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }
}

impl Kind {
    fn checked(self, name: &str, value: &str) -> Result<String> {
        match self {
            Kind::Number { min, max, .. } => match value.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
                _ => Err(bad_value(name, &format!("a whole number from {min} to {max}"))),
            },
            Kind::Flag if ["true", "false"].contains(&value) => Ok(value.to_owned()),
            Kind::Flag => Err(bad_value(name, "true or false")),
            Kind::Text if value.len() <= TEXT_BYTES_MAX => Ok(value.to_owned()),
            Kind::Text => Err(bad_value(name, &format!("a text of at most {TEXT_BYTES_MAX} bytes"))),
        }
    }
}

fn refusal(name: &str) -> Error {
    if NOT_OFFERED.contains(&name) {
        return not_offered(&format!("The attribute {name}"));
    }
    if READ_ONLY.contains(&name) {
        return Error::new(Code::InvalidAttributeName, format!("The attribute {name} can be read and not be set."));
    }
    unknown(name)
}

pub fn unknown(name: &str) -> Error {
    let name: String = name.chars().take(80).collect();
    Error::new(Code::InvalidAttributeName, format!("There is no attribute {name:?}."))
}

fn bad_value(name: &str, wanted: &str) -> Error {
    Error::new(Code::InvalidAttributeValue, format!("{name} must be {wanted}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn attributes(pairs: &[(&str, &str)]) -> Attributes {
        Attributes::checked(&map(pairs)).unwrap()
    }

    #[test]
    fn every_number_has_its_range_and_its_default() {
        for (name, min, max, default) in [
            (VISIBILITY_TIMEOUT, 0, 43_200, 30),
            (RETENTION, 60, 1_209_600, 345_600),
            (DELAY, 0, 900, 0),
            (WAIT, 0, 20, 0),
            (MESSAGE_SIZE, 1_024, 1_048_576, 1_048_576),
            ("KmsDataKeyReusePeriodSeconds", 60, 86_400, 300),
        ] {
            assert_eq!(Attributes::default().number(name), default, "{name}");
            for value in [min, max] {
                assert_eq!(attributes(&[(name, &value.to_string())]).number(name), value, "{name}");
            }
            for bad in [(min - 1).to_string(), (max + 1).to_string(), String::new(), "1.5".into(), " 60".into()] {
                let error = Attributes::checked(&map(&[(name, &bad)])).unwrap_err();
                assert_eq!(error.code(), Code::InvalidAttributeValue, "{name} {bad:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_by_its_name() {
        for (name, value, code) in [
            ("VisibilityTimeOut", "1", Code::InvalidAttributeName),
            ("", "1", Code::InvalidAttributeName),
            ("All", "1", Code::InvalidAttributeName),
            ("QueueArn", "arn", Code::InvalidAttributeName),
            ("ThrottleNobody", "1", Code::InvalidAttributeName),
            ("FifoQueue", "true", Code::UnsupportedOperation),
            ("RedrivePolicy", "{}", Code::UnsupportedOperation),
            ("ThrottleSendCapacity", "10", Code::UnsupportedOperation),
            ("PartitionCount", "2", Code::UnsupportedOperation),
            ("SqsManagedSseEnabled", "yes", Code::InvalidAttributeValue),
        ] {
            assert_eq!(Attributes::checked(&map(&[(name, value)])).unwrap_err().code(), code, "{name}");
        }
    }

    #[test]
    fn only_what_is_named_is_compared_and_a_default_is_a_value() {
        let queue = attributes(&[(DELAY, "5"), ("Policy", "{}"), ("KmsMasterKeyId", "")]);
        for (named, differs) in [
            (attributes(&[]), None),
            (attributes(&[(DELAY, "5")]), None),
            (attributes(&[(DELAY, "005")]), None),
            (attributes(&[(VISIBILITY_TIMEOUT, "30")]), None),
            (attributes(&[("KmsMasterKeyId", ""), ("SqsManagedSseEnabled", "false")]), None),
            (attributes(&[(DELAY, "0")]), Some(DELAY)),
            (attributes(&[(DELAY, "5"), ("Policy", "")]), Some("Policy")),
        ] {
            assert_eq!(queue.first_difference(&named), differs, "{named:?}");
        }
    }

    #[test]
    fn the_stored_form_is_sorted_and_reads_back() {
        let queue = attributes(&[(VISIBILITY_TIMEOUT, "09"), (DELAY, "1"), ("Policy", "")]);
        let stored = queue.to_stored().unwrap();
        assert_eq!(stored, r#"{"DelaySeconds":"1","VisibilityTimeout":"9"}"#);
        let read = Attributes::from_stored(&stored).unwrap();
        assert_eq!((read.visibility_timeout_s(), read.delay_s(), read.to_stored().unwrap()), (9, 1, stored));
        assert_eq!(Attributes::from_stored("{}").unwrap(), Attributes::default());
    }
}
