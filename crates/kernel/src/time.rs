//! Instants as every table stores them: microseconds since 1970, UTC.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

impl Time {
    pub const EPOCH: Time = Time(0);

    pub const fn from_micros(us: i64) -> Self {
        Time(us)
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Saturates instead of wrapping: a caller's absurd delay must not become the past.
    pub fn after(self, wait: Duration) -> Self {
        Time(self.0.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Zero when `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.6}"),
            Err(_) => write!(f, "{} µs", self.0),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let timestamp: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        Ok(Time(timestamp.as_microsecond()))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_rfc_3339_with_microseconds_and_reads_back() {
        let time = Time::from_micros(1_700_000_000_000_042);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20.000042Z");
        let back: Time = serde_json::from_str(&serde_json::to_string(&time).unwrap()).unwrap();
        assert_eq!(back, time);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::from_micros(i64::MAX).after(Duration::MAX), Time::from_micros(i64::MAX));
        assert_eq!(Time::EPOCH.since(Time::from_micros(5)), Duration::ZERO);
    }
}
