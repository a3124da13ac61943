//! The attributes of a queue: which there are, what they may be, and what a queue that was not told has.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_kernel::{Code, Error, Result};

use super::names::is_fifo;
use super::partitions;
use super::redrive::{REDRIVE_ALLOW_POLICY, REDRIVE_POLICY, RedriveAllowPolicy, RedrivePolicy};
use super::throttle::{self, is_throttle};

pub const VISIBILITY_TIMEOUT: &str = "VisibilityTimeout";
pub const RETENTION: &str = "MessageRetentionPeriod";
pub const DELAY: &str = "DelaySeconds";
pub const WAIT: &str = "ReceiveMessageWaitTimeSeconds";
pub const MESSAGE_SIZE: &str = "MaximumMessageSize";
pub const POLICY: &str = "Policy";
pub const FIFO: &str = "FifoQueue";
const CONTENT_BASED: &str = "ContentBasedDeduplication";
const SCOPE: &str = "DeduplicationScope";
const THROUGHPUT: &str = "FifoThroughputLimit";
const PARTITIONS: &str = "PartitionCount";

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
    /// The first one is the default.
    Choice(&'static [&'static str]),
    /// One unless it was set otherwise.
    Partitions,
    /// Kept and shown, without effect. An empty one is none.
    Text,
    /// As a text, and with effect.
    Redrive,
    RedriveAllow,
    /// Of a bucket of tokens. Zero is none.
    Tokens,
}

const fn number(min: i64, max: i64, default: i64) -> Kind {
    Kind::Number { min, max, default }
}

/// Of a pair that is not set.
const NO_TOKENS: &str = "0";
const QUEUE_SCOPE: &str = "queue";
const GROUP_SCOPE: &str = "messageGroup";
const PER_QUEUE: &str = "perQueue";
const PER_GROUP: &str = "perMessageGroupId";
/// What every queue has that was not told otherwise. It is not stored.
const ONE_PARTITION: &str = "1";

const SETTABLE: &[(&str, Kind)] = &[
    (FIFO, Kind::Flag),
    (CONTENT_BASED, Kind::Flag),
    (SCOPE, Kind::Choice(&[QUEUE_SCOPE, GROUP_SCOPE])),
    (THROUGHPUT, Kind::Choice(&[PER_QUEUE, PER_GROUP])),
    (PARTITIONS, Kind::Partitions),
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
    ("ThrottleDefaultCapacity", Kind::Tokens),
    ("ThrottleDefaultRefillPerSecond", Kind::Tokens),
    ("ThrottleRecvCapacity", Kind::Tokens),
    ("ThrottleRecvRefillPerSecond", Kind::Tokens),
    ("ThrottleSendCapacity", Kind::Tokens),
    ("ThrottleSendRefillPerSecond", Kind::Tokens),
];

/// Those of FIFO queues alone.
const OF_FIFO: &[&str] = &[FIFO, CONTENT_BASED, SCOPE, THROUGHPUT, PARTITIONS];
/// Messages and duplicates are found by them: they stay as they were made.
const FIXED: &[&str] = &[FIFO, SCOPE, THROUGHPUT, PARTITIONS];

const READ_ONLY: &[&str] = &[MESSAGES, MESSAGES_DELAYED, MESSAGES_NOT_VISIBLE, CREATED, MODIFIED, ARN];

/// Shown only where they were set.
const QUIET: &[&str] = &["KmsDataKeyReusePeriodSeconds", SCOPE, THROUGHPUT, PARTITIONS];

/// A name that a request may mention, whether or not it can be set.
pub fn is_known(name: &str) -> bool {
    find(name).is_some() || READ_ONLY.contains(&name)
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
    /// As a request names them for the queue `queue`, each value in the one form it is stored in. Whether it is a FIFO
    /// queue its name tells, so that is not stored.
    pub fn checked(queue: &str, named: &BTreeMap<String, String>) -> Result<Self> {
        let mut checked = BTreeMap::new();
        for (name, value) in named {
            let Some(kind) = find(name) else { return Err(refusal(name)) };
            checked.insert(name.clone(), kind.checked(name, value)?);
        }
        let is_fifo = is_fifo(queue);
        if checked.remove(FIFO).is_some_and(|named| named != is_fifo.to_string()) {
            return Err(Error::invalid(format!(
                "{FIFO} must be true for a queue whose name ends in .fifo, and for no other."
            )));
        }
        if !is_fifo && checked.get(PARTITIONS).is_some_and(|count| count == ONE_PARTITION) {
            checked.remove(PARTITIONS);
        }
        match OF_FIFO.iter().find(|name| checked.contains_key(**name)) {
            Some(name) if !is_fifo => Err(bad_value(name, "left out: this is not a FIFO queue")),
            _ => Ok(Self(checked)),
        }
    }

    /// For a queue that is to be made.
    pub fn checked_new(queue: &str, named: &BTreeMap<String, String>) -> Result<Self> {
        if is_fifo(queue) && !named.contains_key(FIFO) {
            return Err(Error::invalid(format!("{FIFO} must be true for a queue whose name ends in .fifo.")));
        }
        let checked = Self::checked(queue, named)?;
        // An id of the queue would have to be looked for in every partition by every send.
        if checked.is_partitioned() && checked.text(SCOPE) == QUEUE_SCOPE {
            return Err(Error::invalid(format!(
                "{SCOPE} must be {GROUP_SCOPE} or left out where {PARTITIONS} is above 1."
            )));
        }
        Ok(checked)
    }

    /// Refuses to change what stays as it was made.
    pub fn check_change(&self, named: &Attributes) -> Result<()> {
        let is_other = |name: &&&str| named.0.get(**name).is_some_and(|value| *value != self.effective(name));
        match FIXED.iter().find(is_other) {
            None => Ok(()),
            Some(name) => Err(bad_value(name, "as it was made: it cannot be changed")),
        }
    }

    pub fn from_stored(text: &str) -> Result<Self> {
        // Almost every queue.
        if text == "{}" {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map(Self).map_err(Error::internal)
    }

    /// An empty text is none, and so are no tokens: they are not kept. Nor is a single partition.
    pub fn to_stored(&self) -> Result<String> {
        let is_kept = |name: &str, value: &str| match name {
            PARTITIONS => value != ONE_PARTITION,
            name if is_throttle(name) => value != NO_TOKENS,
            _ => !value.is_empty(),
        };
        let kept: BTreeMap<_, _> = self.0.iter().filter(|(name, value)| is_kept(name, value)).collect();
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

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Also when it is empty, which takes the attribute away.
    pub fn is_named(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What was set; empty when nothing was.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// As those who ask for it see it. None for what is not set and has no default, and for what is of FIFO queues alone
    /// on others.
    pub fn shown(&self, queue: &str, name: &str) -> Option<String> {
        let is_set = self.0.get(name).is_some_and(|value| !value.is_empty());
        let is_fifo = is_fifo(queue);
        if (!is_set && QUIET.contains(&name)) || (!is_fifo && OF_FIFO.contains(&name)) {
            return None;
        }
        if name == FIFO {
            return Some(is_fifo.to_string());
        }
        let hidden = if is_throttle(name) { NO_TOKENS } else { "" };
        Some(self.effective(name)).filter(|value| value != hidden)
    }

    pub fn is_content_based(&self) -> bool {
        self.text(CONTENT_BASED) == "true"
    }

    /// Two groups may use the same deduplication id.
    pub fn is_scoped_to_groups(&self) -> bool {
        match self.text(SCOPE) {
            "" => self.is_partitioned(),
            scope => scope == GROUP_SCOPE,
        }
    }

    pub fn partitions(&self) -> u32 {
        partitions::count(self.text(PARTITIONS)).unwrap_or(1)
    }

    /// Also where the queue's throughput limit keeps all of its groups in the first one.
    pub fn is_partitioned(&self) -> bool {
        self.partitions() > 1
    }

    /// The last partition that groups are spread over. All bits of it are set.
    pub fn spread(&self) -> i64 {
        if self.text(THROUGHPUT) == PER_QUEUE { 0 } else { i64::from(self.partitions()) - 1 }
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
            (None, _) if name == SCOPE && self.is_partitioned() => GROUP_SCOPE.to_owned(),
            (None, _) if name == THROUGHPUT && self.is_partitioned() => PER_GROUP.to_owned(),
            (None, Some(Kind::Partitions)) => ONE_PARTITION.to_owned(),
            (None, Some(Kind::Number { default, .. })) => default.to_string(),
            (None, Some(Kind::Flag)) => false.to_string(),
            (None, Some(Kind::Choice(choices))) => {
                choices.first().map_or_else(String::new, |first| (*first).to_owned())
            }
            (None, Some(Kind::Tokens)) => NO_TOKENS.to_owned(),
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
            Kind::Tokens => throttle::checked(name, value),
            Kind::Choice(choices) if choices.contains(&value) => Ok(value.to_owned()),
            Kind::Choice(choices) => Err(bad_value(name, &format!("one of {}", choices.join(", ")))),
            Kind::Partitions => partitions::count(value)
                .map(|count| count.to_string())
                .ok_or_else(|| bad_value(name, "1, 2, 4, 8, 16 or 32")),
            Kind::Text | Kind::Redrive | Kind::RedriveAllow if value.len() > TEXT_BYTES_MAX => {
                Err(bad_value(name, &format!("a text of at most {TEXT_BYTES_MAX} bytes")))
            }
            // They are stored as JSON, which would hide it from the store. The other two are read as JSON, which has none.
            Kind::Text if value.contains('\0') => Err(bad_value(name, "a text without NUL characters")),
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
        Attributes::checked("jobs", &map(pairs)).unwrap()
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
                let error = Attributes::checked("jobs", &map(&[(name, &bad)])).unwrap_err();
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
            ("FifoQueue", "true", Code::InvalidRequest),
            ("FifoQueue", "yes", Code::InvalidAttributeValue),
            ("ContentBasedDeduplication", "true", Code::InvalidAttributeValue),
            ("DeduplicationScope", "queue", Code::InvalidAttributeValue),
            ("RedrivePolicy", "{}", Code::InvalidAttributeValue),
            ("RedriveAllowPolicy", "[]", Code::InvalidAttributeValue),
            ("ThrottleSendCapacity", "NaN", Code::InvalidAttributeValue),
            ("PartitionCount", "2", Code::InvalidAttributeValue),
            ("PartitionCount", "3", Code::InvalidAttributeValue),
            ("FifoThroughputLimit", "perQueue", Code::InvalidAttributeValue),
            ("SqsManagedSseEnabled", "yes", Code::InvalidAttributeValue),
        ] {
            assert_eq!(Attributes::checked("jobs", &map(&[(name, value)])).unwrap_err().code(), code, "{name}");
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
            ("FifoQueue", None),
            ("ContentBasedDeduplication", None),
        ] {
            assert_eq!(queue.shown("jobs", name).as_deref(), shown, "{name}");
        }
    }

    #[test]
    fn a_fifo_queue_says_so_by_its_name_and_by_its_attribute() {
        for (queue, named, good) in [
            ("jobs", &[][..], true),
            ("jobs", &[("FifoQueue", "false")], true),
            ("jobs", &[("FifoQueue", "true")], false),
            ("jobs.fifo", &[("FifoQueue", "true")], true),
            ("jobs.fifo", &[("FifoQueue", "false")], false),
            ("jobs.fifo", &[], false),
            ("jobs.fifo", &[("FifoQueue", "true"), ("DeduplicationScope", "messageGroup")], true),
            ("jobs.fifo", &[("FifoQueue", "true"), ("FifoThroughputLimit", "perMessageGroupId")], true),
            ("jobs.fifo", &[("FifoQueue", "true"), ("FifoThroughputLimit", "much")], false),
            ("jobs.fifo", &[("FifoQueue", "true"), ("PartitionCount", "1")], true),
            ("jobs.fifo", &[("FifoQueue", "true"), ("PartitionCount", "2")], true),
        ] {
            assert_eq!(Attributes::checked_new(queue, &map(named)).is_ok(), good, "{queue} {named:?}");
        }
        let fifo = |named: &[(&str, &str)]| Attributes::checked("jobs.fifo", &map(named)).unwrap();
        let queue = fifo(&[("ContentBasedDeduplication", "true"), ("DeduplicationScope", "queue")]);
        assert!(queue.is_content_based() && !queue.is_scoped_to_groups());
        for (named, good) in [
            (
                fifo(&[("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue"), ("FifoQueue", "true")]),
                true,
            ),
            (fifo(&[("ContentBasedDeduplication", "false")]), true),
            (fifo(&[("DeduplicationScope", "messageGroup")]), false),
            (fifo(&[("FifoThroughputLimit", "perMessageGroupId")]), false),
        ] {
            assert_eq!(queue.check_change(&named).is_ok(), good, "{named:?}");
        }
        for (name, shown) in [
            ("FifoQueue", Some("true")),
            ("ContentBasedDeduplication", Some("true")),
            ("DeduplicationScope", Some("queue")),
            ("FifoThroughputLimit", None),
        ] {
            assert_eq!(queue.shown("jobs.fifo", name).as_deref(), shown, "{name}");
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
