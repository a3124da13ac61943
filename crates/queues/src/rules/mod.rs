//! What SQS allows, as pure functions: names, attributes of queues, contents of messages, digests, receipt handles.

pub mod arn;
pub mod attributes;
pub mod batch;
pub mod contents;
pub mod digest;
pub mod handle;
pub mod names;
pub mod partitions;
pub mod placement;
pub mod policy;
pub mod redrive;
pub mod throttle;

use waybill_kernel::{Code, Error, Result};

/// More tags than this no queue has.
pub const TAGS_MAX: usize = 50;
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

pub fn check_tags<'a>(tags: impl ExactSizeIterator<Item = (&'a String, &'a String)>) -> Result<()> {
    if tags.len() > TAGS_MAX {
        return Err(Error::invalid(format!("A queue has at most {TAGS_MAX} tags.")));
    }
    for (key, value) in tags {
        if !(1..=TAG_KEY_CHARS_MAX).contains(&key.chars().count()) {
            return Err(Error::invalid(format!("The key of a tag has 1 to {TAG_KEY_CHARS_MAX} characters.")));
        }
        if value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(Error::invalid(format!("The value of a tag has at most {TAG_VALUE_CHARS_MAX} characters.")));
        }
        // They are stored as JSON, which would hide it from the store.
        if key.contains('\0') || value.contains('\0') {
            return Err(Error::invalid("A tag holds a NUL character."));
        }
    }
    Ok(())
}

/// A number of the request: never clamped, always refused.
pub fn check_range(parameter: &str, value: i64, min: i64, max: i64) -> Result<i64> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{parameter} must be from {min} to {max}; {value} is not.")))
}

pub fn missing(parameter: &str) -> Error {
    Error::new(Code::MissingParameter, format!("The request must contain the parameter {parameter}."))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn tags_have_their_bounds() {
        let tags = |key: usize, value: usize| BTreeMap::from([("k".repeat(key), "ä".repeat(value))]);
        for (key, value, good) in [(1, 0, true), (128, 256, true), (0, 1, false), (129, 1, false), (1, 257, false)] {
            assert_eq!(check_tags(tags(key, value).iter()).is_ok(), good, "{key} {value}");
        }
        for (key, value) in [("k\0", "v"), ("k", "v\0")] {
            let tags = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            assert_eq!(check_tags(tags.iter()).unwrap_err().code(), Code::InvalidRequest);
        }
        for (count, good) in [(50, true), (51, false)] {
            let many: BTreeMap<_, _> = (0..count).map(|number| (format!("k{number}"), String::new())).collect();
            assert_eq!(check_tags(many.iter()).is_ok(), good, "{count}");
        }
    }

    #[test]
    fn a_number_out_of_range_is_refused_and_not_clamped() {
        assert_eq!(check_range("WaitTimeSeconds", 20, 0, 20).unwrap(), 20);
        for value in [-1, 21] {
            assert_eq!(check_range("WaitTimeSeconds", value, 0, 20).unwrap_err().code(), Code::InvalidRequest);
        }
    }
}
