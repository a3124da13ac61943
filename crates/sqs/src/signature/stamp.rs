//! The time of a request as its signer wrote it: `20150830T123600Z`.

use jiff::civil::DateTime;
use jiff::tz::Offset;
use waybill_kernel::Time;

const CHARS: usize = 16;
const DAY_CHARS: usize = 8;

/// The text is kept because it is signed as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    text: [u8; CHARS],
    time: Time,
}

impl Stamp {
    /// None for anything but the basic format of ISO 8601 in UTC, and for days and hours that do not exist.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text: [u8; CHARS] = text.try_into().ok()?;
        if text[DAY_CHARS] != b'T' || text[CHARS - 1] != b'Z' {
            return None;
        }
        let two = |at: usize| Some(10 * digit(text[at])? + digit(text[at + 1])?);
        let year = 100 * i16::from(two(0)?) + i16::from(two(2)?);
        let civil = DateTime::new(year, two(4)?, two(6)?, two(9)?, two(11)?, two(13)?, 0).ok()?;
        let timestamp = Offset::UTC.to_timestamp(civil).ok()?;
        Some(Self { text, time: Time::from_micros(timestamp.as_microsecond()) })
    }

    pub(super) const fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// `20150830`, to be compared with the day in the scope.
    pub(super) fn day(&self) -> &[u8] {
        &self.text[..DAY_CHARS]
    }

    pub(super) const fn time(&self) -> Time {
        self.time
    }
}

fn digit(byte: u8) -> Option<i8> {
    byte.is_ascii_digit().then(|| (byte - b'0').cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_a_time_in_utc() {
        let stamp = Stamp::read(b"20150830T123600Z").unwrap();
        assert_eq!(stamp.time().to_string(), "2015-08-30T12:36:00.000000Z");
        assert_eq!((stamp.day(), stamp.as_bytes()), (&b"20150830"[..], &b"20150830T123600Z"[..]));
        assert!(Stamp::read(b"20240229T235959Z").is_some());
        assert!(Stamp::read(b"00010101T000000Z").is_some());
    }

    #[test]
    fn other_forms_and_days_that_never_were_are_none() {
        for wrong in [
            "",
            "20150830",
            "20150830T123600",
            "20150830T123600z",
            "20150830t123600Z",
            "20150830T123600Z ",
            "2015-08-30T12:36",
            "20150230T123600Z",
            "20230229T000000Z",
            "20151330T123600Z",
            "20150830T243600Z",
            "20150830T126000Z",
            "20150830T123661Z",
            "+0150830T123600Z",
            "2015083OT123600Z",
            "Sun, 30 Aug 2015 12:36:00 GMT",
        ] {
            assert_eq!(Stamp::read(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
