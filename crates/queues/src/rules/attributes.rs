//! The attributes of a queue: which there are, what they may be, and what a queue that was not told has.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_kernel::{Code, Error, Result};

use super::not_offered;
use super::redrive::{REDRIVE_ALLOW_POLICY, REDRIVE_POLICY, RedriveAllowPolicy, RedrivePolicy};

pub const VISIBILITY_TIMEOUT: &str = "VisibilityTimeout";
pub const RETENTION: &str = "MessageRetentionPeriod";
pub const DELAY: &str = "DelaySeconds";
pub const WAIT: &str = "ReceiveMessageWaitTimeSeconds";
pub const MESSAGE_SIZE: &str = "MaximumMessageSize";
pub const POLICY: &str = "Policy";

pub const MESSAGES: &str = "ApproximateNumberOfMessages";
pub const MESSAGES_NOT_VISIBLE: &str = "ApproximateNumberOfMessagesNotVisible";
pub const MESSAGES_DELAYED: &str = "ApproximateNumberOfMessagesDelayed";
pub const CREATED: &str = "CreatedTimestamp";
pub const MODIFIED: &str = "LastModifiedTimestamp";
pub const ARN: &str = "QueueArn";

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
    /// As a text, and with effect.
    Redrive,
    RedriveAllow,
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
    (POLICY, Kind::Text),
    (REDRIVE_ALLOW_POLICY, Kind::RedriveAllow),
    (REDRIVE_POLICY, Kind::Redrive),
    ("SqsManagedSseEnabled", Kind::Flag),
];

const NOT_OFFERED: &[&str] = &[
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoQueue",
    "FifoThroughputLimit",
    "PartitionCount",
    "ThrottleDefaultCapacity",
    "ThrottleDefaultRefillPerSecond",
    "ThrottleRecvCapacity",
    "ThrottleRecvRefillPerSecond",
    "ThrottleSendCapacity",
    "ThrottleSendRefillPerSecond",
];

const READ_ONLY: &[&str] = &[MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE, CREATED, MODIFIED, ARN];

/// Shown only where they were set.
const QUIET: &[&str] = &["KmsDataKeyReusePeriodSeconds"];

/// A name that a request may mention, whether or not it can be set.
pub fn is_known(name: &str) -> bool {
    find(name).is_some() || NOT_OFFERED.contains(&name) || READ_ONLY.contains(&name)
}

/// Every name that a queue can have a value for.
pub fn all() -> impl Iterator<Item = &'static str> {
    SETTABLE.iter().map(|(name, _)| *name).chain(READ_ONLY.iter().copied())
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
        named.0.iter().find(|(name, value)| !is_same(name, &self.effective(name), value)).map(|(name, _)| name.as_str())
    }

    /// These, and those of `named` in their place.
    #[must_use]
    pub fn changed_by(&self, named: &Attributes) -> Self {
        let mut changed = self.0.clone();
        changed.extend(named.0.clone());
        Self(changed)
    }

    /// Also when it is empty, which takes the attribute away.
    pub fn is_named(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What was set; empty when nothing was.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// As those who ask for it see it. None for what is not set and has no default.
    pub fn shown(&self, name: &str) -> Option<String> {
        let is_set = self.0.get(name).is_some_and(|value| !value.is_empty());
        if !is_set && QUIET.contains(&name) {
            return None;
        }
        Some(self.effective(name)).filter(|value| !value.is_empty())
    }

    /// Stored policies were checked when they were set; one that no longer reads is none.
    pub fn redrive(&self) -> Option<RedrivePolicy> {
        Some(self.text(REDRIVE_POLICY)).filter(|text| !text.is_empty()).and_then(|text| RedrivePolicy::parse(text).ok())
    }

    /// One that no longer reads allows nothing.
    pub fn redrive_allow(&self) -> RedriveAllowPolicy {
        match self.text(REDRIVE_ALLOW_POLICY) {
            "" => RedriveAllowPolicy::All,
            text => RedriveAllowPolicy::parse(text).unwrap_or(RedriveAllowPolicy::None),
        }
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
            Kind::Text | Kind::Redrive | Kind::RedriveAllow if value.len() > TEXT_BYTES_MAX => {
                Err(bad_value(name, &format!("a text of at most {TEXT_BYTES_MAX} bytes")))
            }
            Kind::Redrive if !value.is_empty() => RedrivePolicy::parse(value).map(|_| value.to_owned()),
            Kind::RedriveAllow if !value.is_empty() => RedriveAllowPolicy::parse(value).map(|_| value.to_owned()),
            Kind::Text | Kind::Redrive | Kind::RedriveAllow => Ok(value.to_owned()),
        }
    }
}

/// Policies are the same when they say the same.
fn is_same(name: &str, one: &str, other: &str) -> bool {
    match (one == other, find(name)) {
        (true, _) => true,
        (_, Some(Kind::Redrive)) => RedrivePolicy::parse(one)
            .ok()
            .is_some_and(|one| RedrivePolicy::parse(other).is_ok_and(|other| one == other)),
        (_, Some(Kind::RedriveAllow)) => RedriveAllowPolicy::parse(one)
            .ok()
            .is_some_and(|one| RedriveAllowPolicy::parse(other).is_ok_and(|other| one == other)),
        _ => false,
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
            ("RedrivePolicy", "{}", Code::InvalidAttributeValue),
            ("RedriveAllowPolicy", "[]", Code::InvalidAttributeValue),
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
    fn policies_are_compared_by_what_they_say() {
        let spaced = r#"{ "maxReceiveCount": "3", "deadLetterTargetArn": "a" }"#;
        let queue = attributes(&[("RedrivePolicy", r#"{"deadLetterTargetArn":"a","maxReceiveCount":3}"#)]);
        assert_eq!(queue.first_difference(&attributes(&[("RedrivePolicy", spaced)])), None);
        let other = attributes(&[("RedrivePolicy", r#"{"deadLetterTargetArn":"a","maxReceiveCount":4}"#)]);
        assert_eq!(queue.first_difference(&other), Some("RedrivePolicy"));
        assert_eq!(queue.first_difference(&attributes(&[("RedrivePolicy", "")])), Some("RedrivePolicy"));
        assert_eq!(queue.redrive().unwrap().receives_max, 3);
        assert_eq!(queue.changed_by(&attributes(&[("RedrivePolicy", "")])).redrive(), None);
    }

    #[test]
    fn what_is_shown_was_set_or_has_a_default() {
        let queue = attributes(&[(DELAY, "5"), ("Policy", "{}")]);
        for (name, shown) in [
            (DELAY, Some("5")),
            (WAIT, Some("0")),
            ("Policy", Some("{}")),
            ("RedrivePolicy", None),
            ("KmsMasterKeyId", None),
            ("KmsDataKeyReusePeriodSeconds", None),
            ("SqsManagedSseEnabled", Some("false")),
        ] {
            assert_eq!(queue.shown(name).as_deref(), shown, "{name}");
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
