//! How often a queue may be used, as its attributes say it: three pairs of a capacity and a refill.
//!
//! `ThrottleSend…` is for sends, `ThrottleRecv…` for receives, deletes and changes of visibility, and `ThrottleDefault…` for
//! whichever of the two has no pair of its own. Sends and receives that both fall to the default share one bucket.

use waybill_kernel::bucket::Limit;
use waybill_kernel::{Code, Error, Result};

use super::attributes::Attributes;

/// Capacity and refill of each action.
const PAIRS: [(Action, &str, &str); 3] = [
    (Action::Send, "ThrottleSendCapacity", "ThrottleSendRefillPerSecond"),
    (Action::Receive, "ThrottleRecvCapacity", "ThrottleRecvRefillPerSecond"),
    (Action::Default, "ThrottleDefaultCapacity", "ThrottleDefaultRefillPerSecond"),
];

/// Of capacities and refills alike.
pub const TOKENS_MAX: f64 = 100_000.0;
/// A batch of ten takes ten tokens at once: a smaller bucket could never give them.
pub const CAPACITY_MIN: f64 = 10.0;
/// Capacities are kept to a thousandth of a token.
const PARTS: u32 = 1_000;

/// What a bucket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    Send,
    Receive,
    /// Of whatever has no bucket of its own.
    Default,
}

impl Action {
    /// As errors name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Receive => "Receive",
            Self::Default => "*",
        }
    }

    /// As metrics name it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Default => "default",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub capacity: f64,
    pub per_second: f64,
}

impl Rate {
    /// In thousandths of a token.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a capacity is from 10 to 100,000")]
    pub(crate) fn limit(self) -> Limit {
        let window = std::time::Duration::try_from_secs_f64(self.capacity / self.per_second);
        Limit {
            capacity: (self.capacity * f64::from(PARTS)).round() as u32,
            window: window.unwrap_or(std::time::Duration::MAX),
        }
    }

    /// So many tokens, in the same parts.
    pub(crate) fn cost(tokens: u32) -> u32 {
        tokens.saturating_mul(PARTS)
    }
}

/// What a queue is held to. A queue without any pair has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    send: Option<Rate>,
    receive: Option<Rate>,
    default: Option<Rate>,
}

impl Throttle {
    /// The bucket that a send or a receive is charged to.
    pub fn bucket(&self, wanted: Action) -> Option<(Action, Rate)> {
        let own = match wanted {
            Action::Send => self.send,
            Action::Receive => self.receive,
            Action::Default => None,
        };
        own.map(|rate| (wanted, rate)).or_else(|| self.default.map(|rate| (Action::Default, rate)))
    }

    /// Of a queue with these attributes, which were checked when they were set. One that cannot be read is an error: a queue
    /// whose limit is not known is not a queue without one.
    pub fn of(attributes: &Attributes) -> Result<Option<Self>> {
        if !attributes.names().any(is_throttle) {
            return Ok(None);
        }
        let mut throttle = Self { send: None, receive: None, default: None };
        for (action, capacity, per_second) in PAIRS {
            let rate = Rate { capacity: stored(attributes, capacity)?, per_second: stored(attributes, per_second)? };
            let slot = match action {
                Action::Send => &mut throttle.send,
                Action::Receive => &mut throttle.receive,
                Action::Default => &mut throttle.default,
            };
            *slot = (rate.capacity > 0.0).then_some(rate);
        }
        Ok((throttle.send.is_some() || throttle.receive.is_some() || throttle.default.is_some()).then_some(throttle))
    }
}

pub fn is_throttle(name: &str) -> bool {
    PAIRS.iter().any(|(_, capacity, per_second)| [*capacity, *per_second].contains(&name))
}

/// One value in the one form that it is stored in: the shortest text that reads back as the same number.
pub fn checked(name: &str, value: &str) -> Result<String> {
    match value.parse::<f64>() {
        // Adding zero makes -0 a plain one. NaN is in no range.
        Ok(number) if (0.0..=TOKENS_MAX).contains(&number) => Ok((number + 0.0).to_string()),
        _ => Err(refused(format!("{name} must be a number from 0 to {TOKENS_MAX}."))),
    }
}

/// The pairs as they would be after a request: whoever changes both halves of one is not judged by the first alone.
pub fn check(attributes: &Attributes) -> Result<()> {
    for (_, capacity, per_second) in PAIRS {
        let rate = Rate { capacity: stored(attributes, capacity)?, per_second: stored(attributes, per_second)? };
        if rate.capacity == 0.0 && rate.per_second == 0.0 {
            continue;
        }
        let pair = format!("{capacity} and {per_second}");
        if rate.capacity == 0.0 || rate.per_second == 0.0 {
            return Err(refused(format!("{pair} must both be more than 0, or both be 0 for no limit.")));
        }
        if rate.capacity < CAPACITY_MIN {
            let message = format!("Of {pair} the capacity must be at least {CAPACITY_MIN}, which a full batch takes.");
            return Err(refused(message));
        }
        if rate.capacity < rate.per_second {
            let message = format!("Of {pair} the capacity must be at least the refill, {}.", rate.per_second);
            return Err(refused(message));
        }
    }
    Ok(())
}

fn stored(attributes: &Attributes, name: &str) -> Result<f64> {
    match attributes.text(name) {
        "" => Ok(0.0),
        text => text.parse().map_err(|error| Error::internal(format!("{name} is {text:?}: {error}"))),
    }
}

fn refused(message: String) -> Error {
    Error::new(Code::InvalidAttributeValue, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    fn attributes(pairs: &[(&str, &str)]) -> Result<Attributes> {
        let named: BTreeMap<_, _> =
            pairs.iter().map(|(name, value)| (format!("Throttle{name}"), (*value).to_owned())).collect();
        let attributes = Attributes::checked("jobs", &named)?;
        check(&attributes).map(|()| attributes)
    }

    fn throttle(pairs: &[(&str, &str)]) -> Option<Throttle> {
        Throttle::of(&attributes(pairs).unwrap()).unwrap()
    }

    const SEND: [(&str, &str); 2] = [("SendCapacity", "20"), ("SendRefillPerSecond", "2")];
    const RECEIVE: [(&str, &str); 2] = [("RecvCapacity", "30"), ("RecvRefillPerSecond", "3")];
    const DEFAULT: [(&str, &str); 2] = [("DefaultCapacity", "40"), ("DefaultRefillPerSecond", "4")];

    #[test]
    fn rule_03_each_action_has_its_own_bucket_or_the_shared_default_or_none() {
        let rate = |capacity, per_second| Rate { capacity, per_second };
        let buckets = |pairs: &[(&str, &str)]| {
            let throttle = throttle(pairs).unwrap();
            (throttle.bucket(Action::Send), throttle.bucket(Action::Receive))
        };
        let (send, receive) = ((Action::Send, rate(20.0, 2.0)), (Action::Receive, rate(30.0, 3.0)));
        let default = (Action::Default, rate(40.0, 4.0));
        for (pairs, expected) in [
            (SEND.to_vec(), (Some(send), None)),
            (RECEIVE.to_vec(), (None, Some(receive))),
            (DEFAULT.to_vec(), (Some(default), Some(default))),
            ([SEND, RECEIVE].concat(), (Some(send), Some(receive))),
            ([SEND, DEFAULT].concat(), (Some(send), Some(default))),
            ([RECEIVE, DEFAULT].concat(), (Some(default), Some(receive))),
            ([SEND, RECEIVE, DEFAULT].concat(), (Some(send), Some(receive))),
        ] {
            assert_eq!(buckets(&pairs), expected, "{pairs:?}");
        }
        let names = [Action::Send, Action::Receive, Action::Default].map(|action| (action.as_str(), action.label()));
        assert_eq!(names, [("Send", "send"), ("Receive", "receive"), ("*", "default")]);
    }

    #[test]
    fn rule_06_a_pair_that_could_not_work_is_refused_with_its_name_and_the_least_it_needs() {
        for (pairs, named) in [
            ([("SendCapacity", "9"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity", "10"][..]),
            ([("RecvCapacity", "9.99"), ("RecvRefillPerSecond", "1")], &["ThrottleRecvCapacity", "10"]),
            ([("DefaultCapacity", "5"), ("DefaultRefillPerSecond", "1")], &["ThrottleDefaultCapacity", "10"]),
            ([("SendCapacity", "10"), ("SendRefillPerSecond", "11")], &["ThrottleSendRefillPerSecond", "11"]),
            ([("SendCapacity", "10"), ("SendRefillPerSecond", "0")], &["ThrottleSendRefillPerSecond", "both"]),
            ([("SendCapacity", "0"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity", "both"]),
            ([("SendCapacity", "1e9"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity", "100000"]),
            ([("SendCapacity", "100000.1"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity", "100000"]),
            ([("SendCapacity", "10"), ("SendRefillPerSecond", "1e9")], &["ThrottleSendRefillPerSecond", "100000"]),
            ([("SendCapacity", "NaN"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
            ([("SendCapacity", "inf"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
            ([("SendCapacity", "-1"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
            ([("SendCapacity", ""), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
            ([("SendCapacity", "ten"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
            ([("SendCapacity", " 10"), ("SendRefillPerSecond", "1")], &["ThrottleSendCapacity"]),
        ] {
            let error = attributes(&pairs).unwrap_err();
            assert_eq!(error.code(), Code::InvalidAttributeValue, "{pairs:?}");
            assert!(named.iter().all(|word| error.message().contains(word)), "{pairs:?}: {}", error.message());
        }
        for good in [("10", "10"), ("10", "0.001"), ("100000", "100000"), ("1e1", "5e-1"), ("0", "0"), ("-0", "0.0")] {
            let pairs = [("SendCapacity", good.0), ("SendRefillPerSecond", good.1)];
            assert!(attributes(&pairs).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn rule_06_zeros_are_no_throttle_at_all() {
        let zeros: Vec<(&str, &str)> =
            [SEND, RECEIVE, DEFAULT].concat().iter().map(|(name, _)| (*name, "0.0")).collect();
        let zeros = attributes(&zeros).unwrap();
        assert_eq!(Throttle::of(&zeros).unwrap(), None);
        assert_eq!(zeros.to_stored().unwrap(), "{}");
        assert_eq!(Throttle::of(&Attributes::default()).unwrap(), None);
    }

    #[test]
    fn rule_02_a_value_is_kept_as_the_shortest_text() {
        for (given, kept) in [("10.0", "10"), ("1e2", "100"), ("0.5", "0.5"), ("0.10", "0.1"), ("+7", "7"), ("-0", "0")]
        {
            assert_eq!(checked("ThrottleSendCapacity", given).unwrap(), kept, "{given}");
        }
    }

    #[test]
    fn a_stored_value_that_does_not_read_is_an_error_and_not_no_limit() {
        let broken = Attributes::from_stored(r#"{"ThrottleSendCapacity":"much"}"#).unwrap();
        assert_eq!(Throttle::of(&broken).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_rate_is_a_limit_in_thousandths() {
        let limit = |capacity, per_second| Rate { capacity, per_second }.limit();
        assert_eq!(limit(10.0, 0.1), Limit { capacity: 10_000, window: Duration::from_secs(100) });
        assert_eq!(limit(100_000.0, 100_000.0), Limit { capacity: 100_000_000, window: Duration::from_secs(1) });
        assert_eq!(limit(12.5, 12.5).capacity, 12_500);
        assert_eq!(limit(10.0, f64::MIN_POSITIVE).window, Duration::MAX);
    }
}
