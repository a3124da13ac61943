//! JSON as the archive has it: pretty, keys in order, a newline at the end, times as others write them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use waybill_kernel::Time;

use crate::error::{Error, Result};

/// Keys sorted at every depth, so that the same content is always the same bytes.
pub fn write(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = serde_json::to_value(value).map_err(|error| Error::Format(error.to_string()))?;
    value.sort_all_objects();
    let mut text = serde_json::to_vec_pretty(&value).map_err(|error| Error::Format(error.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| Error::Format(error.to_string()))
}

/// A time in RFC 3339, with any offset and as many digits as there are; the Python server writes `+00:00`.
pub fn time(text: &str) -> Result<Time> {
    let at: jiff::Timestamp = text.parse().map_err(|error| Error::Format(format!("{text:?} is no time: {error}")))?;
    Ok(Time::from_micros(at.as_microsecond()))
}

/// For serde: as the kernel writes it, read in any offset.
pub mod timestamp {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use waybill_kernel::Time;

    pub fn serialize<S: Serializer>(at: &Time, to: S) -> Result<S::Ok, S::Error> {
        at.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        let text = String::deserialize(from)?;
        super::time(&text).map_err(serde::de::Error::custom)
    }
}

pub mod timestamp_opt {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use waybill_kernel::Time;

    pub fn serialize<S: Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
        at.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::time(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

/// The value of a key, for files that have more in them than is read.
pub fn field<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}
